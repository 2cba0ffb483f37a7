# Generated from client/requests.py by make twins; do not edit.
"""Requests that queues, lease streams and the engine of a client that blocks share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.runtime.clock import SystemClock
from ...errors import LeaseLostError, LodeqError
from ...repository.model.arguments import duration_s
from ...repository.model.values import Duration, NewTask, Receipt
from .. import calls
from ..calls import FORM, Call, QueueTemplate, Session
from ..lease_facts import LeaseFacts, check_lease, lost_error
from ..records import Granted, receipt_of
from .lease import SyncRemoteLease
from .waits import PendingClaims

if TYPE_CHECKING:
    from ..link import SyncLink

__all__ = ["SyncRemoteRequests"]

_mono = SystemClock.mono


class SyncRemoteRequests:
    """One client's connections, the session it has with its server, and what is sent in parts."""

    def __init__(self, link: SyncLink, session: Session) -> None:
        self._link = link
        self.session = session
        self._claims = PendingClaims(self.send, session)

    def send(self, call: Call) -> Any:
        """Send one request of ``calls`` and return the document of its answer."""
        return self._link.send(call)

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
        try:
            for call, n in calls.enqueue_many(
                self.session, template, tasks, durable, is_atomic=is_atomic
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

    def claim_from(
        self,
        queues: Sequence[str | QueueTemplate],
        *,
        limit: int,
        lease: Duration | None,
        wait: Duration,
        worker: str,
        skip_tenants: Collection[str] = (),
    ) -> list[SyncRemoteLease]:
        """Claim by one poll after another, until there is something or the wait is over.

        Args:
            queues: names, or queues with their tenant and their length of leases.
            limit: the most leases, 1 to 4,096.
            lease: seconds; None takes the shortest length of the queues.
            wait: seconds in all; the server bounds each poll.
            worker: who claims, in at most 256 bytes.
            skip_tenants: tenants that are passed over.
        """
        left_s = duration_s(wait, "wait")
        give_up = _mono() + left_s
        while True:
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
            )
            doc = self._claims.send(call, claim_id)
            left_s = give_up - _mono()
            if doc["leases"] or left_s <= 0:
                break
        codecs = self.session.codecs
        granted = [Granted.of(FORM, one) for one in doc["leases"]]
        return [SyncRemoteLease(self, one, codecs.get(one.queue)) for one in granted]

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
        for call in calls.heartbeat_many(self.session, given, seconds):
            doc = self.send(call)
            for i, deadline in enumerate(doc["deadlines"]):
                lease = leases[len(out)]
                if deadline is None:
                    out.append(lost_error(lease, doc["lost"][str(i)]))
                else:
                    lease.extend({"deadline": deadline})
                    out.append(None)
        return out
