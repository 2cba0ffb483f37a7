"""What the requests of one server share: the engine, its queues, the polls that wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...repository.api.engine import Engine
from ...repository.api.queue import Queue
from ...repository.model.arguments import duration_s
from ...repository.model.values import ALL_TENANTS, Backoff
from ...repository.tasks.lease import Lease
from ...repository.tasks.task_end import give_back
from .admission import Admission
from .claim_ids import ClaimRegister
from .guard import Settings
from .request_context import DocumentReader

if TYPE_CHECKING:
    from anyio import CancelScope

__all__ = ["ServerState"]

_QUEUES_MAX = 1024
_POLICY = ("max_attempts", "retention", "dead_retention")


class ServerState:
    """One server's state."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.core = engine._core
        self.settings = settings
        self.admission = Admission(settings.connections_max)
        self._queues: dict[tuple[Any, ...], Queue] = {}
        self._polls: set[CancelScope] = set()
        self.claims = ClaimRegister(self.core)
        self._is_closing = False

    # -- queues ------------------------------------------------------------------------

    def queue(self, name: object, tenant: object = "", **options: Any) -> Queue:
        """A queue object; the same one for the same arguments."""
        # With types: True is equal to 1, and no number of attempts.
        key = (name, tenant, *((option, type(value), value) for option, value in options.items()))
        try:
            queue = self._queues.get(key)
        except TypeError:  # something that cannot be hashed: the engine will say what is wrong
            return self._made(name, tenant, options)
        if queue is None:
            if len(self._queues) >= _QUEUES_MAX:
                self._queues.clear()
            queue = self._queues[key] = self._made(name, tenant, options)
        return queue

    def _made(self, name: Any, tenant: Any, options: dict[str, Any]) -> Queue:
        return self.engine.queue(name, tenant=tenant, **options)

    def queue_in(self, members: DocumentReader) -> Queue:
        """The queue that a document names: ``queue``, ``tenant``, ``all_tenants``, ``policy``."""
        name = members.need("queue")
        tenant: object = members.take("tenant", "")
        if members.flag("all_tenants", False):
            if tenant != "":
                raise UsageError("give tenant or all_tenants, not both")
            tenant = ALL_TENANTS
        options: dict[str, Any] = {}
        boost_after = members.take("boost_after")
        if boost_after is not None:
            options["boost_after"] = boost_after
        given = members.take("policy")
        if given is not None:
            policy = DocumentReader(members.form, given, "policy")
            for option in _POLICY:
                value = policy.whole(option)
                if value is not None:
                    options[option] = value
            backoff = policy.take("backoff")
            if backoff is not None:
                options["backoff"] = _backoff(DocumentReader(members.form, backoff, "backoff"))
            policy.done()
        return self.queue(name, tenant, **options)

    # -- polls -------------------------------------------------------------------------

    def wait_s(self, wait: Any) -> float:
        """How long one poll may take."""
        seconds = duration_s(wait, "wait")
        return 0.0 if self._is_closing else min(seconds, self.settings.wait_s_max)

    @contextmanager
    def polling(self, scope: CancelScope) -> Iterator[None]:
        """While a poll waits, closing ends it."""
        self._polls.add(scope)
        try:
            yield
        finally:
            self._polls.discard(scope)

    def close_polls(self) -> None:
        """The server closes: answer those who wait."""
        self._is_closing = True
        for scope in list(self._polls):
            scope.cancel()

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Nobody will work on these."""
        give_back(self.core, leases)


def _backoff(members: DocumentReader) -> Backoff:
    plain = Backoff()
    made = Backoff(
        members.take("kind", plain.kind),
        members.take("base", plain.base),
        members.take("factor", plain.factor),
        members.take("cap", plain.cap),
    )
    members.done()
    return made
