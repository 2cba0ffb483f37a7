"""State that the requests of one server share: the engine, its queues, the polls that wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import asdict

from ...errors import UsageError
from ...repository.api.engine import Engine, runtime_of
from ...repository.api.queue import Queue
from ...repository.model.values import ALL_TENANTS, AllTenants, Backoff, Limits
from ...repository.tasks.lease import Lease
from ...repository.tasks.task_end import give_back
from .admission import Admission
from .claim_ids import ClaimRegister
from .guard import Settings
from .schemas import EnqueueMany, Policy, QueueReference

if TYPE_CHECKING:
    from anyio import CancelScope

__all__ = ["ServerState", "tenant_of"]

_QUEUES_MAX = 1024


class ServerState:
    """State of one server."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.engine_state = runtime_of(engine).core
        self.settings = settings
        self.admission = Admission(settings.connections_max)
        self._queues: dict[tuple[Any, ...], Queue] = {}
        self._polls: set[CancelScope] = set()
        self.claims = ClaimRegister(self.engine_state)
        self._is_closing = False

    # -- queues ------------------------------------------------------------------------

    def queue(self, name: str, tenant: str | AllTenants = "", **options: Any) -> Queue:
        """A queue object; the same one for the same arguments."""
        key = name, tenant, *options.items()
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= _QUEUES_MAX:
                self._queues.clear()
            queue = self._queues[key] = self.engine.queue(name, tenant=tenant, **options)
        return queue

    def queue_of(self, members: QueueReference | EnqueueMany) -> Queue:
        """The queue that a document names, with the options that it gives."""
        options: dict[str, Any] = {}
        if members.boost_after is not UNSET and members.boost_after is not None:
            options["boost_after"] = members.boost_after
        if isinstance(members.policy, Policy):
            given = asdict(members.policy)
            options |= {name: value for name, value in given.items() if value is not None}
            if members.policy.backoff is not None:
                options["backoff"] = Backoff(**asdict(members.policy.backoff))
        tenant = "" if members.tenant is UNSET else members.tenant
        name = "" if members.queue is UNSET else members.queue
        return self.queue(name, tenant_of(tenant, members.all_tenants is True), **options)

    # -- polls -------------------------------------------------------------------------

    def wait_s(self, wait_s: float) -> float:
        """Seconds that one poll may take, of those that its client wants."""
        return 0.0 if self._is_closing else min(wait_s, self.settings.wait_s_max)

    @property
    def limits(self) -> Limits:
        """Bounds of the engine."""
        return self.engine_state.limits

    @contextmanager
    def polling(self, scope: CancelScope) -> Iterator[None]:
        """Let ``close_polls`` end a poll while it waits."""
        self._polls.add(scope)
        try:
            yield
        finally:
            self._polls.discard(scope)

    def close_polls(self) -> None:
        """End all polls with an empty answer, now and from now on: the server closes."""
        self._is_closing = True
        for scope in list(self._polls):
            scope.cancel()

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases that nobody will work on."""
        give_back(self.engine_state, leases)


def tenant_of(tenant: str, is_all: bool) -> str | AllTenants:
    """A tenant, or all of them.

    Raises:
        UsageError: both are given.
    """
    if not is_all:
        return tenant
    if tenant != "":
        raise UsageError("give tenant or all_tenants, not both")
    return ALL_TENANTS
