"""Streamed payloads, those above 3 MiB: written before their tasks, read by whoever asks.

The bytes go to a body file of their own, in slices, each in a thread: no turn of the loop takes
long, and other calls go on meanwhile. Only then the task's rows are queued, with the place of the
payload among them. So a crash in between leaves a file that no row leads to, which goes after the
next open; and in fsync mode the bytes are synced in the caller's own thread before that, so that no
other caller's commit waits for them.

Until the rows are queued the file is *busy*: nothing else says that it is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, Self
from zlib import crc32

from ...engine.records.rows import BodyRow
from ...engine.records.task import WHOLE_BYTES_MAX
from ...engine.runtime.shielded import await_shielded, obtain
from ...errors import (
    ClosedError,
    PayloadTooLargeError,
    RecordCorruptError,
    SegmentCorruptError,
)
from ...segments.bodies.streams import StreamReader, StreamWriter
from ..model.codec import SLICE_BYTES
from ..model.encoded_tasks import EncodedTask
from ..state.bodies import Bodies
from ..state.engine_state import EngineState
from ..state.queue_state import Shard

__all__ = [
    "PayloadReader",
    "PayloadWriter",
    "open_streamed",
    "write_streamed",
]

STEP_BYTES: Final = 4 << 20  # written in one call of a thread: how soon a cancellation is followed


class PayloadWriter:
    """Writes one payload to a body file of its own.

    Args:
        state: the engine's state.
        shard: of the task.
        is_durable: sync it at its end.

    Raises:
        PayloadTooLargeError: the shard has no body files.
    """

    def __init__(self, state: EngineState, shard: Shard, *, is_durable: bool) -> None:
        self._state = state
        self._bodies = _bodies_of(shard)
        self._is_durable = is_durable
        self._file: StreamWriter = self._bodies.files.begin_stream(state.ids.token())
        self._is_taken = False

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.size

    @property
    def number(self) -> int:
        """Number of its file."""
        return self._file.number

    async def write(self, data: bytes | memoryview) -> None:
        """Append.

        Raises:
            StorageFullError, StorageError: nothing will lead to what was written.

        Cancellation: after a step; ``discard`` it.
        """
        view = memoryview(data)
        for at in range(0, len(view), STEP_BYTES):
            part = view[at : at + STEP_BYTES]
            await self._state.spawner.run_in_thread(partial(self._file.write, part))

    async def finish(self) -> BodyRow:
        """Make it one of the shard's body files; where it lies. Raises as ``write`` does."""
        found: list[BodyRow] = []

        def finish() -> None:
            at = self._file.finish(is_durable=self._is_durable)
            found.append(BodyRow(at.size, at.file, at.offset, self._file.record_id))

        await self._state.spawner.run_in_thread(finish)
        if self._state.is_closed:
            raise ClosedError("the engine is closed")
        self._bodies.files.take_in(self._file)
        self._is_taken = True
        return found[0]

    async def discard(self) -> None:
        """Remove it, unless it was finished. Idempotent."""
        if not self._is_taken:
            thread = self._state.spawner.run_in_thread
            cancelled = await await_shielded(partial(thread, self._file.discard))
            if cancelled is not None:
                raise cancelled

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the file until rows lead to it; without any, it goes."""
        with self._bodies.busy(self.number):
            try:
                yield
            finally:
                self._bodies.to_look.add(self.number)


def _bodies_of(shard: Shard) -> Bodies:
    if shard.bodies is None or shard.bodies.is_replica:
        where = "a store in memory" if shard.bodies is None else "a replicated store"
        raise PayloadTooLargeError(
            f"{where} takes no payload above {WHOLE_BYTES_MAX} bytes: store it elsewhere and "
            "enqueue a reference",
            limit_bytes=WHOLE_BYTES_MAX,
        )
    return shard.bodies


async def write_streamed(
    state: EngineState,
    shard: Shard,
    encoded_tasks: Iterable[EncodedTask],
    stack: ExitStack,
    *,
    is_durable: bool,
) -> None:
    """Write the streamed payloads among those of tasks about to be queued. One they share, once.

    Args:
        state: the engine's state.
        shard: of all these tasks.
        encoded_tasks: what to enqueue.
        stack: keeps the files busy until it is closed: after their rows are queued.
        is_durable: sync them.

    Raises:
        PayloadTooLargeError: the shard has no body files.
        StorageFullError, StorageError: nothing was queued. What was written is garbage.
    """
    written: dict[int, BodyRow] = {}
    for encoded in encoded_tasks:
        if not encoded.is_streamed or encoded.body is None or encoded.body_row is not None:
            continue
        row = written.get(id(encoded.body))
        if row is None:
            writer = PayloadWriter(state, shard, is_durable=is_durable)
            stack.enter_context(writer.busy())
            try:
                await writer.write(encoded.body)
                row = written[id(encoded.body)] = await writer.finish()
            finally:
                await writer.discard()
        encoded.body_row = row


class PayloadReader:
    """The payload of one task, in slices. ``async with`` it, or ``aclose`` it.

    Iterate over it, or ``read`` as from a file. Of a streamed payload no more than a slice is in
    memory; it can be read to its end although the task ends meanwhile. Its checksum is known at the
    end: the last slice comes only if it is right.

    Args:
        state: the engine's state.
        source: the payload, or its file.
        slice_bytes: of each that iterating gives.
    """

    def __init__(
        self, state: EngineState, source: bytes | StreamReader, slice_bytes: int = SLICE_BYTES
    ) -> None:
        self._state = state
        self.slice_bytes = slice_bytes
        self._file = source if isinstance(source, StreamReader) else None
        self._rest = memoryview(b"" if isinstance(source, StreamReader) else source)
        self.size: int = source.size if isinstance(source, StreamReader) else len(source)

    async def read(self, most: int | None = None) -> bytes:
        """The next bytes; none at the end.

        Args:
            most: how many at most; None, or a negative number as of a file: all that are left.

        Raises:
            RecordCorruptError: it is not what was written.
            StorageError: the disk failed.

        Durability: nothing is written.
        Cancellation: what was being read is skipped; close it.
        """
        if most is not None and most < 0:
            most = None
        if self._file is None:
            count = len(self._rest) if most is None else most
            found, self._rest = bytes(self._rest[:count]), self._rest[count:]
            return found
        file = self._file
        count = file.left if most is None else most
        try:
            data: bytes = await self._state.spawner.run_in_thread(partial(file.read, count))
        except SegmentCorruptError as exc:
            raise RecordCorruptError(str(exc)) from exc
        return data

    async def part(self, offset: int, most: int) -> tuple[int, bytes]:
        """CRC-32 of the whole payload, and a part of it. Whoever has all parts compares.

        Args:
            offset: of the part, in bytes.
            most: its bytes; fewer at the end.

        Raises:
            StorageError: the disk failed.

        Durability: nothing is written. Cancellation: changes nothing.
        """
        if self._file is None:
            return crc32(self._rest), bytes(self._rest[offset : offset + most])
        part = partial(self._file.part, offset, most)
        data: bytes = await self._state.spawner.run_in_thread(part)
        return self._file.sum, data

    async def aclose(self) -> None:
        """Let go of the file. Idempotent.

        Durability: nothing is written. Cancellation: nothing to cancel; it does not wait.
        """
        if self._file is not None:
            self._file.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        found = await self.read(self.slice_bytes)
        if not found:
            await self.aclose()
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


async def open_streamed(
    state: EngineState, shard: Shard, task_id: bytes, record_id: bytes, slice_bytes: int
) -> PayloadReader:
    """A reader of a task's streamed payload.

    Args:
        state: the engine's state.
        shard: of the task.
        task_id: it is not over.
        record_id: as its record names it.
        slice_bytes: of each that iterating gives.

    Raises:
        RecordCorruptError: it is lost or damaged.
        StorageError: the disk failed.
    """
    bodies = shard.bodies
    if bodies is None:
        raise RecordCorruptError(f"task {task_id.hex()}: its shard has no body files")
    row = bodies.locate(shard.overlay, task_id, record_id)
    opened = partial(bodies.open_stream, task_id, row)
    file = await obtain(state.spawner, opened, StreamReader.close)
    return PayloadReader(state, file, slice_bytes)
