"""The handlers of a link whose token may not do everything.

A link's access is known from its hello, so its handlers are chosen then: where a role has no limits
the handler is the common one, and costs what it always did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ....engine.runtime.task_id import as_task_id
from ....repository.api.lease_proof import LeaseProof
from ..access.roles import ANY, Access, Role
from ..named_queues import queue_of_object, require_leases
from . import operations, requests
from .port import LinkPort
from .queues import queue_of

__all__ = ["NEEDS", "Handler", "limited_handlers"]

Handler = Callable[[LinkPort, Any], None]
_Check = Callable[[LinkPort, Any, Role], None]

# The roles of which each request needs one. What a call needs is declared with its operation.
NEEDS: Final[Mapping[type, Role]] = {
    requests.Queue: ANY,
    requests.Enqueue: Role.PRODUCER,
    requests.EnqueueMany: Role.PRODUCER,
    requests.Claim: Role.WORKER,
    requests.Complete: Role.WORKER,
    requests.CompleteMany: Role.WORKER,
    requests.End: Role.WORKER,
    requests.Heartbeat: Role.WORKER,
    requests.Call: ANY,
    requests.Cancel: ANY,
    requests.EnqueueWith: Role.PRODUCER,
    requests.EnqueueManyWith: Role.PRODUCER,
}


def limited_handlers(access: Access) -> Mapping[type, Handler]:
    """The handlers for a token: those that refuse, those that look, and the common ones."""
    found: dict[type, Handler] = {}
    for kind, handler in operations.HANDLERS.items():
        needs = NEEDS[kind]
        if not access.roles & needs:
            found[kind] = partial(_refused, needs)
        elif access.whole & needs or needs is ANY:  # a call is looked at by its route
            found[kind] = handler
        else:
            found[kind] = partial(_looked_at, handler, needs, _CHECKS[kind])
    return found


def _refused(needs: Role, link: LinkPort, entry: Any) -> None:
    del entry
    link.access.require(needs)


def _looked_at(handler: Handler, needs: Role, check: _Check, link: LinkPort, entry: Any) -> None:
    check(link, entry, needs)
    handler(link, entry)


def _check_handle(link: LinkPort, entry: Any, needs: Role) -> None:
    link.access.require_on(needs, queue_of_object(queue_of(link, entry.handle)))


def _check_lease(link: LinkPort, entry: Any, needs: Role) -> None:
    del needs
    _require(link, [(entry.task_id, entry.epoch, entry.token)])


def _check_leases(link: LinkPort, entry: Any, needs: Role) -> None:
    del needs
    _require(link, [one[:3] for one in entry.leases])


def _require(link: LinkPort, given: Iterable[tuple[bytes, int, bytes]]) -> None:
    proofs = [LeaseProof(as_task_id(task_id), epoch, token) for task_id, epoch, token in given]
    require_leases(link.access, link.serving.hub.view, proofs)


_CHECKS: Final[Mapping[type, _Check]] = {
    requests.Enqueue: _check_handle,
    requests.EnqueueMany: _check_handle,
    requests.Claim: _check_handle,
    requests.Complete: _check_lease,
    requests.CompleteMany: _check_leases,
    requests.End: _check_lease,
    requests.Heartbeat: _check_leases,
    requests.EnqueueWith: _check_handle,
    requests.EnqueueManyWith: _check_handle,
}
