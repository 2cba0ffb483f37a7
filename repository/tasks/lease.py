"""A lease: the right to work on a task, until a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ...engine.records.compression import inflate
from ...engine.records.face import unpack_face
from ...engine.records.keyspace import ID_AT, SEQ_AT
from ...engine.records.lease import DEAD_LEASE
from ...engine.records.policy import Policy, decode_policy
from ...engine.records.rows import decode_index_row
from ...engine.records.task import (
    BODY_FLAG,
    PAYLOAD_AT,
    TASK_FIELDS,
    created_us,
    is_streamed,
    record_id_in,
)
from ...errors import LeaseLostError
from ..model.arguments import duration_s
from ..model.codec import SLICE_BYTES, check_slice, decode_headers, decode_value, not_loaded
from ..model.encoded_tasks import to_datetime
from ..model.error_text import repr_of
from ..model.faces import labels_of
from ..model.values import Duration, NewTask
from ..state.lease_state import LeaseState
from . import fast_path, lease_operations
from .enqueue import check_durable
from .in_line import complete_in_line
from .streamed_payloads import (
    PayloadReader,
    open_streamed,
)
from .task_end import give_back

if TYPE_CHECKING:
    from ..state.engine_state import EngineState
    from ..state.queue_state import ShardQueue

__all__ = [
    "Lease",
    "restored",
]

_LENGTHS: Final = TASK_FIELDS.picked("flags", "queue", "tenant", "headers", "raw", "face")


class Lease(LeaseState):
    """One claimed task. Use it as ``async with lease:`` or call ``complete``/``nack`` yourself.

    Leaving the block cleanly completes the task, an exception nacks it with its repr,
    cancellation releases it; a block that has already ended the lease changes nothing.

    Every call raises ``LeaseLostError`` (and changes nothing) once the lease has been reaped,
    revoked or ended. It stays valid until it really is: a deadline that has passed but was not
    reaped yet still completes.
    """

    __slots__ = ()

    state: EngineState

    def __repr__(self) -> str:
        return f"<Lease {self.task_id} attempt={self.attempt} live={self.is_live}>"

    # -- the claimed task --------------------------------------------------------------

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.shard_queue.tenant_queue.queue.decode()

    @property
    def tenant(self) -> str:
        """The tenant it belongs to."""
        return self.shard_queue.tenant_queue.tenant.decode()

    @property
    def policy(self) -> Policy:
        """The task's policy, frozen at enqueue."""
        return decode_policy(self.packed_policy)

    @property
    def enqueued_at(self) -> datetime:
        """Wall time of the enqueue."""
        return to_datetime(created_us(self.times))

    @property
    def deadline(self) -> datetime:
        """When the lease may be reaped, as wall time (measured on the monotonic clock)."""
        clock = self.state.clock
        left = timedelta(seconds=self.deadline_mono - clock.mono())
        return datetime.fromtimestamp(clock.wall_us() / 1e6, UTC) + left

    def _part(self) -> tuple[int, int, int, int, int, bytes]:
        # Flags; where the headers begin and end, where the payload begins; its raw bytes.
        record = self.record
        if record is None:
            raise RuntimeError("a lease restored at open has no payload")
        flags, queue, tenant, headers, raw_bytes, face = _LENGTHS.unpack_from(record)
        start = PAYLOAD_AT + queue + tenant
        end = start + headers
        return flags, start, end, end + face, raw_bytes, record

    @property
    def payload(self) -> Any:
        """The payload: bytes as bytes, other values as the codec or msgpack gives them.

        Raises:
            PayloadNotLoadedError: it has more than 3 MiB: ``read_payload``, ``open_payload``.
        """
        flags, _, _, start, raw_bytes, record = self._part()
        data = record[start:-8]
        if not flags & 31:
            return data
        if flags & BODY_FLAG:
            raise not_loaded(self.task_id, raw_bytes)
        return decode_value(flags & 3, flags >> 2 & 3, data, raw_bytes, self.codec)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload, as it was packed and before compression."""
        return self._part()[4]

    async def read_payload(self) -> Any:
        """The payload, of any size, whole: as ``payload`` gives it.

        Raises:
            LeaseLostError: it is streamed, and the lease is no longer yours.
            RecordCorruptError: it is lost or damaged.
            StorageError: the disk failed.

        Durability: nothing is written. Cancellation: nothing has happened.
        """
        self.state.check()
        if not is_streamed(self._part()[5]):
            return self.payload
        async with await self.open_payload() as reader:
            return await reader.read()

    async def open_payload(self, *, slice_bytes: int = SLICE_BYTES) -> PayloadReader:
        """The payload, of any size, in slices, as bytes: ``async for data in`` what this returns.

        Args:
            slice_bytes: of each slice; at least 1. So much is in memory of a streamed payload.

        The task may end meanwhile: it can be read to its end. A value that was not given as bytes
        comes as msgpack or the codec has packed it.

        Raises:
            LeaseLostError: it is streamed, and the lease is no longer yours.
            RecordCorruptError: it is lost or damaged.
            StorageError: the disk failed.

        Durability: nothing is written. Cancellation: nothing has happened.
        """
        self.state.check()
        check_slice(slice_bytes)
        record = self._part()[5]
        if not is_streamed(record):
            return PayloadReader(self.state, self.stored[1], slice_bytes)
        if not self.is_live:
            raise LeaseLostError(
                f"the lease of task {self.task_id} has ended", task_id=self.task_id
            )
        return await open_streamed(
            self.state, self.shard_queue.shard, self.task_id, record_id_in(record), slice_bytes
        )

    @property
    def stored(self) -> tuple[int, bytes, bytes]:
        """The payload's kind and bytes (uncompressed) and the headers' bytes, nothing decoded.

        Raises:
            PayloadNotLoadedError: it has more than 3 MiB.
        """
        flags, start, end, payload_at, raw_bytes, record = self._part()
        if flags & BODY_FLAG:
            raise not_loaded(self.task_id, raw_bytes)
        data = inflate(flags >> 2 & 3, record[payload_at:-8], raw_bytes)
        return flags & 3, data, record[start:end]

    @property
    def stored_headers(self) -> bytes:
        """The headers' bytes, nothing decoded."""
        _, start, end, _, _, record = self._part()
        return record[start:end]

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given at enqueue; empty if none."""
        _, start, end, _, _, record = self._part()
        return decode_headers(record[start:end])

    @property
    def function(self) -> str:
        """The function given at enqueue; empty if none. See ``Queue.enqueue``."""
        return unpack_face(self.face).function

    @property
    def preview(self) -> str:
        """The preview of the arguments given at enqueue; empty if none."""
        return unpack_face(self.face).preview

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels given at enqueue; empty if none."""
        return labels_of(unpack_face(self.face).labels)

    @property
    def dead_at(self) -> datetime | None:
        """When the task died; None unless the lease is of a dead letter (``claim(dead=True)``)."""
        if not self.flags & DEAD_LEASE:
            return None
        return to_datetime(int.from_bytes(self.key[SEQ_AT:ID_AT], "big") * 1000)

    @property
    def reason(self) -> str:
        """Why the task died; empty unless the lease is of a dead letter."""
        if not self.flags & DEAD_LEASE:
            return ""
        return decode_index_row(self.dead_row).reason.decode("utf-8", "replace")

    # -- calls -------------- ------------------------------------------------------

    async def heartbeat(self, seconds: Duration | None = None) -> datetime:
        """Move the deadline to now + ``seconds`` (default: the length it was claimed with).

        Raises:
            LeaseLostError: it is no longer yours.
            NotLeaderError: the store is a replica, and another may lead by now. Nothing was
                extended, and nothing is lost: the lease is yours for its length from the last
                heartbeat that returned. Try again meanwhile.

        Durability: none needed. Leases go back at open. Of exported ones a close keeps the
            end; after a kill they start again in full, once until the next heartbeat (with the
            longest length they were given, which is queued to be written and not waited for).
        Cancellation: nothing to cancel; it does not wait.
        """
        self.state.check()
        lease_operations.heartbeat(
            self, self.lease_s if seconds is None else duration_s(seconds, "seconds")
        )
        return self.deadline

    async def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Report how far the work has come: ``Task.progress``, for as long as this lease lives.

        Args:
            fraction: from 0 to 1; None where nobody knows.
            note: a status text; cut to 256 bytes.

        Each report is a small row, so a loop reports once a second or so, not once a step.

        Raises:
            LeaseLostError: it is no longer yours.
            NotLeaderError: as for ``heartbeat``.
            UsageError: the fraction is no such number, or the note no text.

        Durability: queued to be written with what comes next, and not waited for.
        Cancellation: nothing to cancel; it does not wait.
        """
        self.state.check()
        lease_operations.report_progress(self, fraction, note)

    async def complete(
        self,
        result: Any = None,
        *,
        then: Sequence[NewTask] = (),
        keep: bool = True,
        durable: bool | None = None,
    ) -> None:
        """End the task as completed, store its result, enqueue follow-ups: one atomic batch.

        Args:
            result: bytes, or anything msgpack (or the queue's codec) packs; at most
                ``Limits.result_bytes_max``.
            then: follow-up tasks. They live on this task's shard, so they take neither
                ``dedup_key`` nor ``shard_key``.
            keep: False stores no result.
            durable: True waits for an fsync, whatever the engine's mode.

        Completing the same lease again succeeds again while its result is kept.

        Raises:
            LeaseLostError: reaped, revoked, or already ended in another way.
            PayloadTooLargeError, LimitError, UsageError: too large, too many (256 follow-ups of
                3 MiB, 4 MiB with the result), or wrong; nothing was written.

        Durability: on return, result and follow-ups survive a process crash (nosync) or a
            power cut (fsync, or durable=True).
        Cancellation: while waiting for a turn nothing has happened; in the last wait it happens.
        """
        self.state.check()
        if durable is not None:
            check_durable(self.state, durable)
        is_admitted = False
        if not then:
            submitted = fast_path.submit_complete(self, result, keep, durable)
            if submitted is None and (result is None or type(result) is bytes):
                coalescer = self.shard_queue.shard.coalescer
                if self.is_live and not coalescer.has_capacity:
                    if durable is True:
                        await coalescer.wait_in_line()
                        self.state.check()
                    elif await complete_in_line(self, coalescer, result, keep=keep):
                        return
                    is_admitted = True
                    submitted = fast_path.submit_complete(self, result, keep, durable, None, True)
            if submitted is not None:
                if submitted[0] is not None:
                    await submitted[0]
                return
        await lease_operations.complete(self, result, then, keep, durable, is_admitted=is_admitted)

    async def nack(self, *, delay: Duration | None = None, reason: str = "") -> None:
        """Give the task back: it failed. Counts the attempt; at max_attempts it is buried.

        A dead letter goes back to the dead letters as it was: same reason, time and attempts.

        Args:
            delay: seconds until it is ready again; None uses the task's backoff, 0 means at once.
            reason: kept with the task, cut to ``Limits.reason_bytes_max``.

        Raises:
            LeaseLostError: it is no longer yours; nothing changed.
            UsageError: a dead letter takes no delay.

        Durability: as ``complete``. Cancellation: in the last wait it happens.
        """
        await lease_operations.nack(self, delay, reason)

    async def release(self, *, delay: Duration | None = None) -> None:
        """Give the task back unworked: the attempt is not counted, the place in line is kept.

        A dead letter goes back to the dead letters, as with ``nack``.

        Args:
            delay: seconds until it is ready again; None means at once, at its old place.

        Raises:
            LeaseLostError: it is no longer yours; nothing changed.
            UsageError: a dead letter takes no delay.

        Durability: as ``complete``. Cancellation: in the last wait it happens.
        """
        await lease_operations.release(self, delay)

    async def bury(self, reason: str = "") -> None:
        """Move the task to the dead letters, whatever attempts it has left.

        One that was claimed as a dead letter goes back as it was: its first reason stays.

        Raises:
            LeaseLostError: it is no longer yours; nothing changed.

        Durability: as ``complete``. Cancellation: in the last wait it happens.
        """
        await lease_operations.bury(self, reason)

    async def redrive(self) -> None:
        """Send a leased dead letter back to the tail of its queue, with a fresh set of attempts.

        As ``Queue.redrive``, for who has the dead letter under a lease (``claim(dead=True)``).

        Raises:
            LeaseLostError: it is no longer yours; nothing changed.
            UsageError: the lease is not of a dead letter.
            DuplicateTaskError: another task holds its dedup key. The lease goes on.
            RecordCorruptError: its record cannot be read any more. The lease goes on.

        Durability: as ``complete``. Cancellation: in the last wait it happens.
        """
        self.state.check()
        await lease_operations.redrive(self)

    async def cancel(self) -> None:
        """End the task as cancelled, for good. ``Engine.cancel`` does so whoever has the lease.

        Raises:
            LeaseLostError: it is no longer yours; nothing changed.

        Durability: as ``complete``. Cancellation: in the last wait it happens.
        """
        await lease_operations.cancel(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_live:
            return
        if error is None:
            await self.complete()
        elif isinstance(error, Exception):
            await self.nack(reason=repr_of(error))
        else:  # cancelled, or the process is on its way out: no await may be left to wait for
            give_back(self.state, [self])


def restored(state: EngineState, shard_queue: ShardQueue, fill: Callable[[Lease], None]) -> Lease:
    """A lease found on disk at open: it has no payload, only what the reaper needs."""
    lease = Lease()
    lease.state, lease.shard_queue, lease.record, lease.codec = state, shard_queue, None, None
    lease.is_live = True
    fill(lease)
    return lease
