"""Enqueue a payload that comes in slices, of which no more than a few are in memory.

It is written as it comes: what is below ``body_bytes_min`` in all is kept until the end and queued
as any other payload, the rest goes to a body file of its own. The task is queued once all of it is
there; whatever fails before leaves nothing behind.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ...engine.records.task import NO_GHOST, WHOLE_BYTES_MAX
from ..model.codec import too_large
from ..model.encoded_tasks import EncodedTask, TaskTemplate, encoded_task
from ..model.payload_sources import PayloadSource, slices_of
from ..model.task_options import PRIORITY_DEFAULT
from ..model.values import NewTask, Receipt
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from .enqueue import check_one, enqueue, enqueue_on, route
from .streamed_payloads import PayloadWriter

__all__ = ["enqueue_stream", "kept_bytes_max", "stream_bytes_max"]

WRITE_BYTES: Final = 64 << 10  # smaller slices are written several at once


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
    chunks = slices_of(source, state.spawner.run_in_thread)
    first = encoded_task(state, shared, task, state.clock.wall_us())  # refused here, if at all
    state.check_intake()
    if first.ghost is NO_GHOST:
        check_one(state, first)
    shard, task_id = route(state, first, state.clock.wall_us() // 1000)
    kept_max = kept_bytes_max(state, shard)
    limit = state.limits.payload_bytes_max
    kept: list[bytes] = []
    kept_bytes = size = 0
    writer: PayloadWriter | None = None
    with ExitStack() as stack:
        try:
            async for chunk in chunks:
                if not chunk:  # of a source that has nothing yet: there may be any number
                    continue
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


def kept_bytes_max(state: EngineState, shard: Shard) -> int:
    """Bytes of a payload that are in memory until its end, at most; a longer one goes to a file."""
    return min(state.body_bytes_min - 1, WHOLE_BYTES_MAX) if _has_files(shard) else WHOLE_BYTES_MAX


def stream_bytes_max(state: EngineState) -> int:
    """Bytes of a streamed payload at most, in the shards that are here."""
    has_files = any(_has_files(one) for one in state.hosted)
    return state.limits.payload_bytes_max if has_files else state.limits.value_bytes_max


def _has_files(shard: Shard) -> bool:
    return shard.bodies is not None and not shard.bodies.is_replica
