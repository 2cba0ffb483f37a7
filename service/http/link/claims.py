"""Claims over the link: answered when the engine commits, waiting, or taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ....engine.records.task import created_us
from ....errors import LodeqError, PayloadNotLoadedError, RecordCorruptError
from ....repository.api.direct_calls import ClaimOutcome
from ....repository.api.engine import claim_within
from ....repository.api.queue import Queue as EngineQueue
from ....repository.model.arguments import duration_s
from ....repository.model.codec import MSGPACK
from ....repository.tasks.lease import Lease
from ..access.roles import Role
from ..server_state import Claim as RegisteredClaim
from ..unread_answers import ClaimShare
from . import requests
from .port import LinkPort
from .queues import fail, queue_of

__all__ = ["ClaimAnswer", "claim"]


_SMALL_LIMIT: Final = 8  # tasks of a claim of which many may be under way
_WAITING_LIMIT: Final = 1024  # tasks of a claim that has waited: what one turn takes


class ClaimAnswer(ClaimOutcome):
    """Answers a claim, or gives back what it took."""

    __slots__ = ("_id", "_is_counted", "_link", "_registered", "_size", "share")

    def __init__(self, link: LinkPort, id: int) -> None:
        self.is_over = False
        self.poll = None
        self._leases = ()
        self._link = link
        self._id = id
        self._is_counted = False  # as a long poll
        self._size = 0  # of its leases, in bytes, while their commit is awaited
        self._registered: RegisteredClaim | None = None
        self.share: ClaimShare | None = None  # of all claims' bytes, of one for several tasks

    def measure(self) -> None:
        """Count what it has taken so far: a client has so much under way at most."""
        size = 0
        for lease in self._leases if self.poll is None else self.poll.leases:
            size += lease.record_bytes
        self._size = size
        self._link.cost += size
        self._link.claimed_bytes += size

    def begin_wait(self) -> None:
        """There is nothing ready: count it, and let it be taken back by its id.

        Raises:
            TooManyError: as many wait as may. UsageError: another claim has the same id.
        """
        link = self._link
        claims = link.serving.hub.claims
        try:
            self._registered = claims.begin(link.claim_id(self._id), link.access.owner)
        except LodeqError:
            self._cancel()  # or it would take tasks for nobody
            raise
        if self._registered.is_cancelled:
            self._ended()
            self._cancel()
            link.answer(self._id, [])
            return
        self._registered.stop = self.end_wait
        try:
            link.admission.begin_poll()
        except LodeqError:
            self._ended()
            self._cancel()
            raise
        self._is_counted = True
        link.waits(True)

    def end_wait(self) -> None:
        """Answer that there was nothing: it is cancelled elsewhere, or the server stops."""
        if not self.is_over:
            self._ended()
            self._cancel()
            self._link.answer(self._id, [])

    def take_back(self) -> None:
        """Give up without an answer: the client is gone, or wants it no more."""
        if not self.is_over:
            self._ended()
            self._cancel()
            self._link.forget()

    def granted(self, leases: Sequence[Lease]) -> None:
        """See ``ClaimOutcome``."""
        try:
            self._granted(leases)
        except Exception as error:  # noqa: BLE001 - a bug of ours: it must not fail the commit
            self._link.break_off(error)
            self._link.serving.direct.give_back(leases)

    def _granted(self, leases: Sequence[Lease]) -> None:
        link, claims = self._link, self._link.serving.hub.claims
        if self._registered is None:
            link.claims.pop(self._id, None)
            link.claimed_bytes -= self._size
            is_good = not leases or claims.grant(link.claim_id(self._id), leases, link.access.owner)
        else:
            is_good = self._ended(leases)
        if not is_good:
            link.serving.direct.give_back(leases)
            leases = ()
        size = 0
        for lease in leases:
            size += lease.record_bytes
        link.answer_claim(self._id, _lease_entries(leases), leases, size)
        if self.share is not None:
            self.share.end()
        for lease in leases:  # it may live for hours yet: whoever has it has its payload as well
            lease.record = None

    def failed(self, error: BaseException) -> None:
        """See ``ClaimOutcome``."""
        if self.share is not None:
            self.share.end()
        try:
            self._ended()
            fail(self._link, self._id, error)
        except Exception as bug:  # noqa: BLE001 - others who wait for the shard hear of it, too
            self._link.break_off(bug)

    def _ended(self, leases: Sequence[Lease] = ()) -> bool:
        """Forget that it waits; False: it is cancelled."""
        link = self._link
        link.claims.pop(self._id, None)
        link.claimed_bytes -= self._size
        if self._is_counted:
            self._is_counted = False
            link.admission.end_poll()
            link.waits(False)
        registered, self._registered = self._registered, None
        return registered is None or link.serving.hub.claims.end(registered, leases)

    def _cancel(self) -> None:
        if self.share is not None:
            self.share.end()
        self._link.serving.direct.cancel_claim(self)


def claim(link: LinkPort, entry: requests.Claim) -> None:
    """Claim from one queue."""
    queue = queue_of(link, entry.handle)
    hub = link.serving.hub
    limit = min(entry.limit, hub.settings.batch_max)
    wait_s = hub.wait_s(duration_s(entry.wait, "wait")) if entry.wait else 0.0
    _begin(link, queue, entry, limit, _until(link, entry.deadline, wait_s))


def _until(link: LinkPort, deadline: float | None, wait_s: float) -> float:
    """How long a claim may wait: not beyond its deadline, where it is answered empty."""
    if deadline is None or not wait_s:
        return wait_s
    return max(0.0, min(wait_s, deadline - link.serving.loop.time()))


def _begin(
    link: LinkPort, queue: EngineQueue, entry: requests.Claim, limit: int, wait_s: float
) -> None:
    id = entry.id
    outcome = link.claims[id] = ClaimAnswer(link, id)
    if limit > 1:
        outcome.share = ClaimShare(link.serving.hub.claimed)
    try:
        is_direct = link.serving.direct.claim(
            queue, limit, entry.lease, wait_s, entry.worker, outcome, outcome.share
        )
        if outcome.is_waiting:
            outcome.begin_wait()
        elif is_direct and not outcome.is_over:
            outcome.measure()
    except BaseException:
        link.claims.pop(id, None)
        if outcome.share is not None:
            outcome.share.end()
        raise
    if not is_direct:
        del link.claims[id]
        link.calls[id] = link.spawn(id, _claim_slowly(link, queue, entry, limit, wait_s))


async def _claim_slowly(
    link: LinkPort, queue: EngineQueue, entry: requests.Claim, limit: int, wait_s: float
) -> None:
    """A claim that has to stand in line, or takes its tasks in several turns; then it may wait."""
    hub, id = link.serving.hub, entry.id
    try:
        async with link.small_claims if limit <= _SMALL_LIMIT else link.large_claims:
            if not await link.readable():
                return
            link.check_time(entry.deadline)
            link.access.require(Role.WORKER)  # it may have lost its rights in the line
            share = ClaimShare(hub.claimed)
            try:
                leases = await claim_within(
                    hub.engine,
                    [queue],
                    share,
                    limit=limit,
                    lease=entry.lease,
                    wait=0.0,
                    worker=entry.worker,
                )
            finally:
                share.end()  # its answer is made in this turn
    finally:
        is_wanted = link.calls.pop(id, None) is not None
    if not is_wanted:  # taken back in this very turn: too late to be cancelled
        hub.view.give_back(leases)
        link.forget()
        return
    if leases and not hub.claims.grant(link.claim_id(id), leases, link.access.owner):
        hub.view.give_back(leases)
        leases = []
    elif not leases and wait_s and link.transport is not None and not link.access.is_over:
        wait_s = _until(link, entry.deadline, wait_s)
        _begin(link, queue, entry, min(limit, _WAITING_LIMIT), wait_s)
        return
    link.answer_claim(id, _lease_entries(leases), leases, sum(one.record_bytes for one in leases))
    for lease in leases:
        lease.record = None


def _lease_entries(leases: Sequence[Lease]) -> list[Any]:
    if not leases:
        return []
    clock = leases[0].state.clock
    skew_us = clock.wall_us() - round(clock.mono() * 1e6)
    entries = []
    for lease in leases:
        try:
            kind, data, headers = lease.stored
            streamed: tuple[int, ...] = ()
        except PayloadNotLoadedError:  # the client reads it, in slices
            kind, data, headers = MSGPACK, b"", lease.stored_headers
            streamed = (lease.payload_bytes,)
        except RecordCorruptError:  # raised where the payload is read, as from an embedded engine
            kind, data, headers, streamed = MSGPACK, b"", b"", ()
        entries.append(
            (
                bytes(lease.task_id),
                lease.epoch,
                lease.token,
                lease.priority,
                lease.attempt,
                created_us(lease.times),
                skew_us + round(lease.deadline_mono * 1e6),
                lease.lease_s,
                lease.packed_policy,
                kind,
                data,
                headers or None,
                lease.shard_queue.tenant_queue.tenant.decode(),
                lease.face or None,
                *streamed,
            )
        )
    return entries
