"""State that the requests of one server share: the engine, its queues, polls and claim ids.

A client draws an id for each claim, so that it can take the claim back: one that gives up while the
answer is on its way cannot know what was granted. It names the claim in another request: the leases
are released at once, and if the claim arrives later (requests overtake each other) it gets none.

Claim ids keep no lease alive: only id and epoch are kept, of at most ``GRANTED_MAX`` leases and
``CANCELLED_MAX`` claims; the oldest are forgotten first. A lease whose claim is forgotten expires
at its deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from anyio import Semaphore
from msgspec import UNSET
from msgspec.structs import asdict

from ...client.calls import CLAIM_ID_BYTES
from ...errors import UsageError
from ...repository.api.engine import Engine
from ...repository.api.queue import Queue
from ...repository.api.view import EngineView, view_of
from ...repository.model.values import ALL_TENANTS, AllTenants, Backoff, Limits
from ...repository.tasks.lease import Lease
from .access.callers import Callers
from .access.roles import Access
from .admission import Admission
from .guard import Settings
from .schemas import EnqueueMany, Policy, QueueReference
from .unread_answers import ClaimedBytes, UnreadAnswers

if TYPE_CHECKING:
    from anyio import CancelScope

__all__ = [
    "CANCELLED_MAX",
    "GRANTED_MAX",
    "LARGE_BYTES",
    "PAGES_MAX",
    "Claim",
    "ClaimRegister",
    "LargeAnswers",
    "ServerState",
    "tenant_of",
]

_QUEUES_MAX = 1024
GRANTED_MAX: Final = 16_384
CANCELLED_MAX: Final = 16_384
PAGES_MAX: Final = 16  # of tasks, that are made at once: each takes some 10 MiB until it is sent
LARGE_BYTES: Final = 64 << 10  # of an answer to a claim that is made as a page is


class Claim:
    """One claim in progress. ``stop`` ends its wait."""

    __slots__ = ("claim_id", "is_cancelled", "stop")

    def __init__(self, claim_id: bytes | None) -> None:
        self.claim_id = claim_id
        self.is_cancelled = False
        self.stop: Callable[[], object] | None = None


class ClaimRegister:
    """The claims of one server that carry an id."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._in_progress: dict[bytes, Claim] = {}
        self._granted: OrderedDict[bytes, tuple[tuple[bytes, int], ...]] = OrderedDict()
        self._granted_count = 0
        self._cancelled: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, claim_id: bytes | None, owner: bytes = b"") -> Claim:
        """Register a claim. None: it has no id, and cannot be cancelled.

        ``owner``, here and below: whose token it was made with, so that no other takes it back.

        Raises:
            UsageError: the id is not 16 bytes, or was used before. Nothing was granted.
        """
        if claim_id is None:
            return Claim(None)
        if len(claim_id) != CLAIM_ID_BYTES:
            raise UsageError(f"claim_id must be {CLAIM_ID_BYTES} bytes, not {len(claim_id)}")
        claim_id += owner
        claim = Claim(claim_id)
        if claim_id in self._in_progress or claim_id in self._granted:
            raise UsageError("this claim_id was used before: draw another one for each claim")
        claim.is_cancelled = claim_id in self._cancelled
        self._in_progress[claim_id] = claim
        return claim

    def end(self, claim: Claim, leases: Sequence[Lease]) -> bool:
        """Register what was granted. False: the claim is cancelled, release the leases."""
        claim.stop = None
        if claim.claim_id is None:
            return True
        del self._in_progress[claim.claim_id]
        if claim.is_cancelled:
            return False
        if leases:
            self._note(claim.claim_id, leases)
        return True

    def grant(self, claim_id: bytes, leases: Sequence[Lease], owner: bytes = b"") -> bool:
        """``begin`` and ``end`` in one, for a claim that has not waited."""
        claim_id += owner
        if claim_id in self._cancelled:
            return False
        self._note(claim_id, leases)
        return True

    def _note(self, claim_id: bytes, leases: Sequence[Lease]) -> None:
        self._granted_count -= len(self._granted.pop(claim_id, ()))  # an id used again
        self._granted[claim_id] = tuple([(one.task_id, one.epoch) for one in leases])
        self._granted_count += len(leases)
        while self._granted_count > GRANTED_MAX and len(self._granted) > 1:
            self._granted_count -= len(self._granted.popitem(last=False)[1])

    def take_back(self, claim_id: bytes, owner: bytes = b"") -> list[Lease]:
        """The live leases of a claim that has been answered. May be repeated."""
        granted = self._granted.pop(claim_id + owner, ())
        self._granted_count -= len(granted)
        found = (self._view.live_lease(task_id, epoch) for task_id, epoch in granted)
        return [lease for lease in found if lease is not None]

    def cancel(self, claim_id: bytes, owner: bytes = b"") -> list[Lease]:
        """Refuse a claim anything more, and return its live leases. May be repeated."""
        claim_id += owner
        self._cancelled[claim_id] = None
        self._cancelled.move_to_end(claim_id)
        if len(self._cancelled) > CANCELLED_MAX:
            self._cancelled.popitem(last=False)
        claim = self._in_progress.get(claim_id)
        if claim is not None:
            claim.is_cancelled = True
            if claim.stop is not None:
                claim.stop()
            return []
        return self.take_back(claim_id)


class LargeAnswers:
    """``async with``: so many are made at once, and none while those before wait to be read."""

    def __init__(self, unread: UnreadAnswers) -> None:
        self._unread = unread
        self._places = Semaphore(PAGES_MAX)

    async def __aenter__(self) -> None:
        await self._places.acquire()
        try:
            await self._unread.room()
        except BaseException:
            self._places.release()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._places.release()


class ServerState:
    """State of one server."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.view = view_of(engine)
        self.settings = settings
        self.callers = Callers(settings.token, settings.tokens, self.view.clock)
        self.callers.call_when_revoked(self._end_revoked_polls)
        self.admission = Admission(settings.connections_max)
        self._queues: dict[tuple[Any, ...], Queue] = {}
        self._polls: dict[CancelScope, Access | None] = {}
        self.claims = ClaimRegister(self.view)
        self.unread = UnreadAnswers(settings.answers_bytes_max)
        self.claimed = ClaimedBytes(self.unread)
        self.pages = LargeAnswers(self.unread)  # around what reads and makes one
        self._is_closing = False
        self.held_bytes = 0  # of the documents of calls over the link, and of its frames

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
        return self.view.limits

    @contextmanager
    def polling(self, scope: CancelScope, access: Access | None = None) -> Iterator[None]:
        """Let ``close_polls`` end a poll while it waits; so does the end of its caller's access.

        One that comes behind either ends at once: it was at other work meanwhile.
        """
        self._polls[scope] = access
        if self._is_closing or (access is not None and access.is_over):
            scope.cancel()
        try:
            yield
        finally:
            del self._polls[scope]

    def _end_revoked_polls(self) -> None:
        for scope, access in list(self._polls.items()):
            if access is not None and access.is_over:
                scope.cancel()

    @property
    def is_closing(self) -> bool:
        """Whether the server closes: what would go on for long ends."""
        return self._is_closing

    def close_polls(self) -> None:
        """End all polls with an empty answer, now and from now on: the server closes."""
        self._is_closing = True
        for scope in list(self._polls):
            scope.cancel()


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
