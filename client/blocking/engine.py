"""A served engine, whose calls block."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...engine.runtime.clock import SystemClock
from ...engine.runtime.ids import SystemRng
from ...errors import (
    ClosedError,
    LeaseLostError,
    LodeqError,
    TaskNotFoundError,
    UnreachableError,
    UsageError,
)
from ...repository.model.arguments import duration_s, listed
from ...repository.model.reports import MigrationReport
from ...repository.model.values import (
    AllTenants,
    AnyId,
    Backoff,
    Codec,
    Duration,
    EngineStats,
    NewTask,
    QueueStats,
    Receipt,
    Result,
    Task,
)
from .. import calls
from ..bulk_engine import SyncRemoteBulk
from ..calls import CLOSED, FORM, LEASE_S, Call, QueueTemplate, Session
from ..lease import LeaseFacts, check_lease, lost_of
from ..records import (
    Granted,
    flat_of,
    health_of,
    queues_of,
    receipt_of,
    report_of,
    result_of,
    stats_of,
    task_of,
)
from .lease import SyncRemoteLease
from .queue import SyncRemoteQueue

if TYPE_CHECKING:
    from ...engine.values import Health
    from ...repository.model.reports import VerifyReport
    from ..link import SyncLink

__all__ = ["SyncRemoteEngine"]

_mono = SystemClock.mono


class SyncRemoteEngine(SyncRemoteBulk):
    """As ``RemoteEngine``, blocking, for any number of threads: ``lodeq.sync.connect(url)``."""

    def __init__(self, link: SyncLink, session: Session) -> None:
        self._link = link
        self.session = session
        self._rng = SystemRng()
        self._lock = Lock()
        self._claims: set[bytes] = set()  # those whose answer is awaited
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<SyncRemoteEngine {self._link.target.url} shards={self.shards} {self.durability}>"

    @property
    def path(self) -> str | None:
        """The store's folder, where the server runs; None in memory."""
        return self.session.path

    @property
    def shards(self) -> int:
        """How many shards the store has."""
        return self.session.shards

    @property
    def durability(self) -> str:
        """``nosync`` or ``fsync``."""
        return self.session.durability

    # -- queues ------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        tenant: str | AllTenants = "",
        max_attempts: int = 5,
        lease: Duration = LEASE_S,
        retention: Duration = 3600.0,
        dead_retention: Duration = 604_800.0,
        backoff: Backoff | None = None,
        boost_after: Duration | None = None,
        codec: Codec | None = None,
    ) -> SyncRemoteQueue:
        """See ``Engine.queue``. The codec stays here: the server never needs it."""
        place = QueueTemplate(
            self.session,
            name,
            tenant,
            max_attempts=max_attempts,
            lease=lease,
            retention=retention,
            dead_retention=dead_retention,
            backoff=backoff,
            boost_after=boost_after,
            codec=codec,
        )
        return SyncRemoteQueue(self, place)

    def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """See ``Engine.enqueue_many``, also for Durability and Cancellation."""
        return self.enqueue_all(None, listed(tasks), durable, atomic)

    def enqueue_all(
        self,
        place: QueueTemplate | None,
        tasks: Sequence[NewTask],
        durable: bool | None,
        is_atomic: bool,
    ) -> list[Receipt]:
        """What both ``enqueue_many`` do: in as many requests as it takes."""
        receipts: list[Receipt | None] = []
        try:
            for call, n in calls.enqueue_many(
                self.session, place, tasks, durable, is_atomic=is_atomic
            ):
                try:
                    doc = self.send(call)
                except LodeqError as error:
                    receipts += error.receipts or [None] * n
                    raise
                receipts += map(receipt_of, doc["receipts"])
        except LodeqError as error:
            error.receipts = receipts + [None] * (len(tasks) - len(receipts))
            raise
        return receipts  # type: ignore[return-value]  # None only where an error was raised

    def claim(
        self,
        queues: Sequence[str | SyncRemoteQueue],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
    ) -> list[SyncRemoteLease]:
        """See ``Engine.claim``, also for Durability and Cancellation.

        ``exported`` says nothing here: leases of a served store always outlive the server.
        """
        if isinstance(queues, str | SyncRemoteQueue) or not queues:
            raise UsageError("queues must be a non-empty list of names or Queue objects")
        places = [q.place if isinstance(q, SyncRemoteQueue) else q for q in queues]
        return self.claim_all(places, limit=limit, lease=lease, wait=wait, worker=worker)

    def claim_all(
        self,
        places: Sequence[str | QueueTemplate],
        *,
        limit: int,
        lease: Duration | None,
        wait: Duration,
        worker: str,
        skip_tenants: Collection[str] = (),
    ) -> list[SyncRemoteLease]:
        """What both ``claim`` do: one poll after another, until there is something."""
        left_s = duration_s(wait, "wait")
        give_up = _mono() + left_s
        while True:
            claim_id = self._rng.bytes(calls.CLAIM_ID_BYTES)
            call = calls.claim(
                self.session,
                places,
                limit=limit,
                lease=lease,
                wait_s=left_s,
                worker=worker,
                skip_tenants=skip_tenants,
                claim_id=claim_id,
            )
            doc = self._send_claim(call, claim_id)
            left_s = give_up - _mono()
            if doc["leases"] or left_s <= 0:
                break
        codecs = self.session.codecs
        granted = [Granted.of(FORM, one) for one in doc["leases"]]
        return [SyncRemoteLease(self, one, codecs.get(one.queue)) for one in granted]

    def _send_claim(self, call: Call, claim_id: bytes) -> Any:
        """Send it; take it back where its answer is not read. Its leases go back at once then."""
        with self._lock:
            if self._is_closing:
                raise ClosedError(CLOSED)
            self._claims.add(claim_id)
        try:
            doc = self.send(call)
        except LodeqError as error:
            if isinstance(error, UnreachableError):
                self._cancel_claim(claim_id)
            raise
        except BaseException:  # an interrupt
            self._cancel_claim(claim_id)
            raise
        finally:
            with self._lock:
                self._claims.discard(claim_id)
                is_closing = self._is_closing
        if is_closing:  # the thread that closes takes back what was granted
            raise ClosedError(CLOSED)
        return doc

    def _cancel_claim(self, claim_id: bytes) -> bool:
        """As well as it can: where this fails too, the leases end with their length."""
        if not self.session.takes_claim_ids:
            return False
        try:
            self.send(calls.cancel_claim(claim_id))
        except LodeqError:
            return False
        return True

    def complete_many(
        self, pairs: Sequence[tuple[LeaseFacts, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """See ``Engine.complete_many``, also for Durability and Cancellation."""
        for lease, _ in pairs:
            check_lease(lease)
        given = [(lease.granted, result) for lease, result in pairs]
        out: list[LeaseLostError | None] = []
        for call, n in calls.complete_many(self.session, given, durable):
            lost = (self.send(call))["lost"]
            for i, (lease, _) in enumerate(pairs[len(out) : len(out) + n]):
                detail = lost.get(str(i))
                out.append(None if detail is None else lost_of(lease, detail))
                lease.end()
        return out

    def heartbeat_many(
        self, leases: Sequence[LeaseFacts], seconds: Duration | None = None
    ) -> list[LeaseLostError | None]:
        """See ``Engine.heartbeat_many``, also for Durability and Cancellation."""
        for lease in leases:
            check_lease(lease)
        given = [lease.granted for lease in leases]
        out: list[LeaseLostError | None] = []
        for call in calls.heartbeat_many(self.session, given, seconds):
            doc = self.send(call)
            for i, deadline in enumerate(doc["deadlines"]):
                lease = leases[len(out)]
                if deadline is None:
                    out.append(lost_of(lease, doc["lost"][str(i)]))
                else:
                    lease.beaten({"deadline": deadline})
                    out.append(None)
        return out

    # -- one task ----------------------------------------------------------------------

    def get(self, task_id: AnyId) -> Task | None:
        """See ``Engine.get``, also for Durability and Cancellation."""
        try:
            doc = self.send(calls.task(task_id))
        except TaskNotFoundError:
            return None
        return task_of(FORM, doc, self.session.codecs)

    def result(self, task_id: AnyId, *, wait: Duration = 0.0) -> Result | None:
        """See ``Engine.result``, also for Durability and Cancellation."""
        left_s = duration_s(wait, "wait")
        give_up = _mono() + left_s
        while True:
            poll_s = min(left_s, self.session.wait_s_max)
            call = calls.task(task_id, what="/result", wait=repr(poll_s))
            doc = self.send(call._replace(wait_s=poll_s))
            left_s = give_up - _mono()
            if doc or left_s <= 0:
                return result_of(FORM, doc, self.session.codecs) if doc else None

    def cancel(self, task_id: AnyId) -> bool:
        """See ``Engine.cancel``, also for Durability and Cancellation."""
        cancelled: bool = (self.send(calls.task(task_id, method="DELETE")))["cancelled"]
        return cancelled

    # -- the whole ---------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """See ``Engine.stats``, also for Durability and Cancellation."""
        return stats_of(self.send(calls.whole("/stats")))

    def queues(self) -> dict[tuple[str, str], QueueStats]:
        """See ``Engine.queues``, also for Durability and Cancellation."""
        found: dict[tuple[str, str], QueueStats] = {}
        after: str | None = None
        while True:
            doc = self.send(calls.queues(after))
            found |= queues_of(doc)
            after = doc.get("next")  # an older server tells them all at once
            if after is None:
                return found

    def health(self) -> Health:
        """See ``Engine.health``, also for Durability and Cancellation."""
        return health_of(self.send(calls.whole("/health")))

    def verify(self) -> VerifyReport:
        """See ``Engine.verify``, also for Durability and Cancellation."""
        return report_of(self.send(calls.whole("/verify", {}, takes_long=True)))

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """See ``Engine.checkpoint``. ``path`` lies below the server's folder for checkpoints.

        Durability and Cancellation: as there.
        """
        self.send(calls.checkpoint(path))

    def migrate_bodies(self) -> MigrationReport:
        """See ``Engine.migrate_bodies``, also for Durability and Cancellation."""
        doc = self.send(calls.whole("/migrate_bodies", {}, takes_long=True))
        return flat_of(MigrationReport, doc)

    def fsync(self) -> None:
        """See ``Engine.fsync``, also for Durability and Cancellation."""
        self.send(calls.whole("/fsync", {}))

    def close(self) -> None:
        """Close the connections. The server and its engine go on; so do leases, until they end.

        Claims of other threads that still wait for their answer are taken back first, and raise
        ``ClosedError`` there; so does any later call.

        Durability: nothing to do. Cancellation: closes all the same.
        """
        with self._lock:
            self._is_closing = True
            claims = list(self._claims)
        try:
            for claim_id in claims:
                if not self._cancel_claim(claim_id):
                    break  # a server that hangs is waited for once
        finally:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
