# Generated from client/requests.py by make twins; do not edit.
"""Requests that queues, lease streams and the engine of a client that blocks share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...engine.runtime.clock import SystemClock
from ...errors import IncompleteError, LeaseLostError, LodeqError, NotLeaderError
from ...repository.model.arguments import check_limit, check_worker, duration_s, length_s
from ...repository.model.payload_sources import PayloadSource
from ...repository.model.values import Duration, NewTask, Receipt
from .. import calls
from ..calls import FORM, Call, QueueTemplate, Session
from ..documents.records import Granted, receipt_of, when
from ..lease_facts import LeaseFacts, check_lease, lost_error, may_be_live
from ..transport.target import Doubt
from .lease import SyncRemoteLease
from .waits import PendingClaims

if TYPE_CHECKING:
    from ..transport.transport import SyncTransport
    from .cluster.fast_calls import SyncClusterFastCalls
    from .cluster.transport import SyncClusterTransport
    from .fast_calls import SyncFastCalls

__all__ = ["SyncRemoteRequests", "read_whole"]

T = TypeVar("T")
_mono = SystemClock.mono


_NO_LEADER: Final = "no leader of its shard was found before the lease was over; drop the task"


def read_whole(engine: SyncRemoteRequests, call: Call, read: Callable[[Any], T]) -> T:
    """Send a call over whole queues, and read its answer.

    Raises:
        IncompleteError: of a cluster; what the other shards have answered is read, too.
    """
    try:
        return read(engine.send(call))
    except IncompleteError as error:
        error.found = read(error.found)
        raise


class SyncRemoteRequests:
    """One client's connections, the session it has with its server, and what is sent in parts."""

    def __init__(self, transport: SyncTransport | SyncClusterTransport, session: Session) -> None:
        self._transport = transport
        self.session = session
        self.fast: SyncFastCalls | SyncClusterFastCalls | None = transport.fast_calls(session)
        self._claims = PendingClaims(self.send, session)

    def send(self, call: Call) -> Any:
        """Send one request of ``calls`` and return the document of its answer."""
        return self._transport.send(call)

    def upload(self, call: Call, source: PayloadSource) -> Any:
        """Send a request whose body is a stream, and return the document of its answer."""
        return self._transport.upload(call, source, self.session.stream_bytes_max)

    def enqueue_tasks(
        self,
        template: QueueTemplate | None,
        tasks: Sequence[NewTask],
        durable: bool | None,
        is_atomic: bool,
    ) -> list[Receipt]:
        """Enqueue in as many requests as it takes.

        Args:
            template: the queue of tasks that name none; None refuses those.
            tasks: of any number, unless ``is_atomic``.
            durable: None waits as the store's durability says.
            is_atomic: all of them in one request, or a ``LimitError``.

        Raises:
            LodeqError: its ``receipts`` are those of the requests before it, None for the others.
        """
        receipts: list[Receipt | None] = []
        fast = self.fast
        try:
            if fast is not None and template is not None and durable is None and not is_atomic:
                try:
                    found = fast.enqueue_many(template, tasks)
                except LodeqError as error:
                    calls.place(error, 0)
                    receipts += error.receipts
                    raise
                if found is not None:
                    return found
            for call, n in calls.enqueue_many(
                self.session, template, tasks, durable, is_atomic=is_atomic
            ):
                try:
                    doc = self.send(call)
                except LodeqError as error:
                    calls.place(error, len(receipts))
                    receipts += error.receipts or [None] * n
                    raise
                receipts += map(receipt_of, doc["receipts"])
        except LodeqError as error:
            error.receipts = receipts + [None] * (len(tasks) - len(receipts))
            raise
        return receipts  # type: ignore[return-value]  # None only where an error was raised

    def claim_from(
        self,
        queues: Sequence[str | QueueTemplate],
        *,
        limit: int,
        lease: Duration | None,
        wait: Duration,
        worker: str,
        skip_tenants: Collection[str] = (),
        dead: bool = False,
        skip_functions: Collection[str] = (),
    ) -> list[SyncRemoteLease]:
        """Claim by one poll after another, until there is something or the wait is over.

        Args:
            queues: names, or queues with their tenant and their length of leases.
            limit: the most leases, 1 to 4,096.
            lease: seconds; None takes the shortest length of the queues.
            wait: seconds in all; the server bounds each poll.
            worker: who claims, in at most 256 bytes.
            skip_tenants: tenants that are passed over.
            dead: of the dead letters, of one queue and tenant.
            skip_functions: functions whose tasks are left to others where that can be.
        """
        left_s = 0.0 if wait == 0 else duration_s(wait, "wait")
        give_up = _mono() + left_s
        codecs = self.session.codecs
        is_plain = len(queues) == 1 and not skip_tenants and not skip_functions and dead is False
        fast = self.fast if is_plain else None
        while True:
            if fast is not None:
                granted = self._claim_fast(fast, queues[0], limit, lease, left_s, worker)
                if granted is not None:
                    left_s = give_up - _mono()
                    if granted or left_s <= 0:
                        return [
                            SyncRemoteLease(self, one, codecs.get(one.queue)) for one in granted
                        ]
                    continue
            claim_id = self._claims.draw_id()
            call = calls.claim(
                self.session,
                queues,
                limit=limit,
                lease=lease,
                wait_s=left_s,
                worker=worker,
                skip_tenants=skip_tenants,
                claim_id=claim_id,
                dead=dead,
                skip_functions=skip_functions,
            )
            doc = self._claims.send(call, claim_id)
            left_s = give_up - _mono()
            if doc["leases"] or left_s <= 0:
                break
        granted = [Granted.of(FORM, one) for one in doc["leases"]]
        return [SyncRemoteLease(self, one, codecs.get(one.queue)) for one in granted]

    def _claim_fast(
        self,
        fast: SyncFastCalls | SyncClusterFastCalls,
        queue: str | QueueTemplate,
        limit: int,
        lease: Duration | None,
        wait_s: float,
        worker: str,
    ) -> list[Granted] | None:
        """One poll the short way; None: go the general way."""
        if not isinstance(queue, QueueTemplate):
            return None
        session = self.session
        check_limit(limit)
        if worker:
            worker = check_worker(worker).decode()
        lease_s = queue.lease_s if lease is None else length_s(lease)
        poll_s = min(wait_s, session.wait_s_max)
        most = min(limit, session.batch_max)
        return self._claims.send_fast(fast, queue, most, lease_s, poll_s, worker)

    def complete_many(
        self, pairs: Sequence[tuple[LeaseFacts, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """See ``Engine.complete_many``, also for Durability and Cancellation."""
        for lease, _ in pairs:
            check_lease(lease)
        given = [(lease.granted, result) for lease, result in pairs]
        out: list[LeaseLostError | None] = []
        with Doubt() as doubt:
            if self.fast is not None and durable is None and pairs:
                details = self.fast.complete_many(given, doubt)
                if details is not None:
                    for i, (lease, _) in enumerate(pairs):
                        detail = details.get(i)
                        out.append(None if detail is None else lost_error(lease, detail))
                        lease.end()
                    return out
            for call, n in calls.complete_many(self.session, given, durable):
                lost = (self.send(call))["lost"]
                for i, (lease, _) in enumerate(pairs[len(out) : len(out) + n]):
                    detail = lost.get(str(i))
                    out.append(None if detail is None else lost_error(lease, detail))
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
        wanted_s = None if seconds is None else duration_s(seconds, "seconds")
        if self.fast is not None and given:
            found, sent = None, _mono()
            with suppress(NotLeaderError):  # of some: HTTP says of which
                found = self.fast.heartbeat_many(given, wanted_s)
            if found is not None:
                for lease, one in zip(leases, found, strict=True):
                    if isinstance(one, str):
                        out.append(lost_error(lease, one))
                    else:
                        lease.extend(one, sent, wanted_s)
                        out.append(None)
                return out
        for call in calls.heartbeat_many(self.session, given, seconds):
            sent = _mono()
            doc = self.send(call)
            unknown = doc.get("unknown", ())  # of a cluster
            for i, deadline in enumerate(doc["deadlines"]):
                lease = leases[len(out)]
                if i in unknown and may_be_live(lease):
                    out.append(None)  # its shard has no leader now, and no other worker has it yet
                elif i in unknown:
                    out.append(lost_error(lease, _NO_LEADER))
                elif deadline is None:
                    out.append(lost_error(lease, doc["lost"][str(i)]))
                else:
                    lease.extend(when(deadline), sent, wanted_s)
                    out.append(None)
        return out
