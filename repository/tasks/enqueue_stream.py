"""Enqueue a payload that comes in slices, of which no more than a few are in memory.

It is written as it comes: what is below ``body_bytes_min`` in all is kept until the end and queued
as any other payload, the rest goes to a body file of its own. The task is queued once all of it is
there; whatever fails before leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from ...engine.records.task import NO_GHOST, WHOLE_BYTES_MAX
from ...errors import UsageError
from ..model.codec import SLICE_BYTES, too_large
from ..model.encoded_tasks import EncodedTask, TaskTemplate, encoded_task
from ..model.task_options import PRIORITY_DEFAULT
from ..model.values import NewTask, Receipt
from ..state.engine_state import EngineState
from .enqueue import check_one, enqueue, enqueue_on, route
from .streamed_payloads import PayloadWriter

__all__ = ["PayloadSource", "enqueue_stream"]

WRITE_BYTES: Final = 64 << 10  # smaller slices are written several at once
_END: Final = object()


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """The next bytes; none at the end."""


PayloadSource: TypeAlias = AsyncIterable[bytes] | Iterable[bytes] | _Readable


async def enqueue_stream(
    state: EngineState,
    shared: TaskTemplate,
    source: PayloadSource,
    task: NewTask,
    durable: bool | None,
) -> Receipt:
    """See ``Queue.enqueue_stream``.

    Args:
        state: the engine's state.
        shared: of the queue.
        source: gives the payload.
        task: its options; without a payload.
        durable: True waits for an fsync, whatever the engine's mode.
    """
    chunks = _chunks(state, source)
    first = encoded_task(state, shared, task, state.clock.wall_us())  # refused here, if at all
    state.check_intake()
    if first.ghost is NO_GHOST:
        check_one(state, first)
    shard, task_id = route(state, first, state.clock.wall_us() // 1000)
    bodies = shard.bodies
    has_files = bodies is not None and not bodies.is_replica
    kept_max = min(state.body_bytes_min - 1, WHOLE_BYTES_MAX) if has_files else WHOLE_BYTES_MAX
    limit = state.limits.payload_bytes_max
    kept: list[bytes] = []
    kept_bytes = size = 0
    writer: PayloadWriter | None = None
    with ExitStack() as stack:
        try:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise too_large("payload", size, limit)
                kept.append(chunk)
                kept_bytes += len(chunk)
                if writer is None and kept_bytes > kept_max:
                    is_durable = state.is_fsync or bool(durable)
                    writer = PayloadWriter(state, shard, is_durable=is_durable)
                    stack.enter_context(writer.busy())
                if writer is not None and kept_bytes >= WRITE_BYTES:
                    data = kept[0] if len(kept) == 1 else b"".join(kept)
                    kept, kept_bytes = [], 0
                    await writer.write(data)
            now_us = state.clock.wall_us()
            if writer is None:
                whole = task._replace(payload=b"".join(kept))
                state.check()
                return await enqueue(state, encoded_task(state, shared, whole, now_us), durable)
            await writer.write(b"".join(kept))
            row = await writer.finish()
        finally:
            if writer is not None:
                await writer.discard()
        state.check_intake()
        like = EncodedTask(shared, 0, PRIORITY_DEFAULT, b"")
        like.set_body(b"", b"", size)
        encoded = encoded_task(state, shared, task, state.clock.wall_us(), like)
        encoded.record_bytes += size
        encoded.body_row = row
        return await enqueue_on(state, shard, encoded, task_id, state.clock.wall_us(), durable)


def _chunks(state: EngineState, source: Any) -> AsyncIterator[bytes]:
    """The slices of a source. One that blocks is asked in a thread."""
    if isinstance(source, bytes | bytearray | memoryview | str):
        raise UsageError("enqueue_stream takes a file or an iterable of bytes: enqueue takes bytes")
    if isinstance(source, AsyncIterable):
        return _checked(source)
    if callable(getattr(source, "read", None)):
        return _checked(_asked(state, partial(source.read, SLICE_BYTES), b""))
    if isinstance(source, Iterable):
        return _checked(_asked(state, partial(next, iter(source), _END), _END))
    raise UsageError(
        f"enqueue_stream takes a file or an iterable of bytes, not {type(source).__name__}"
    )


async def _asked(state: EngineState, ask: Callable[[], Any], end: object) -> AsyncIterator[Any]:
    """Call ``ask`` in a thread until it gives ``end``. None is no end: it is refused later."""

    def step() -> Any:
        try:
            return ask()
        except StopIteration as exc:  # no future can bear one: the call would never be over
            raise RuntimeError("the source of enqueue_stream raised StopIteration") from exc

    while (chunk := await state.spawner.run_in_thread(step)) != end:
        yield chunk


async def _checked(source: AsyncIterable[Any]) -> AsyncIterator[bytes]:
    async for chunk in source:
        if type(chunk) is bytes:
            yield chunk
        elif isinstance(chunk, bytes | bytearray | memoryview):
            yield bytes(chunk)
        else:
            raise UsageError(f"enqueue_stream takes slices of bytes, not {type(chunk).__name__}")
