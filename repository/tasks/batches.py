"""How many tasks of one call share a batch: bounded in tasks, and in the bytes that are written.

A payload in a body file is written before the batch, but at the same moment on the same loop, so it
counts as well: once for all tasks of a run that share it, for it is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ...engine.records.task import NO_GHOST
from ...errors import LimitError
from ..model.encoded_tasks import EncodedTask
from ..state.engine_state import EngineState

__all__ = ["check_atomic", "chunks"]

CHUNK_TASKS_MAX = 4096
# A batch is built in one turn of the loop. So one that need not be atomic is smaller, the more so
# where dedup keys are looked up and queues or tenants may be new ones: each is work for four tasks.
WORK_MAX: Final = 1024
_KEYED: Final = 4
_LANE: Final = 4
CHUNK_BYTES_MAX: Final = 2 << 20


def chunks(
    items: Sequence[EncodedTask], bytes_max: int = CHUNK_BYTES_MAX
) -> Iterable[list[tuple[int, EncodedTask]]]:
    """Runs of at most 1,024 tasks (256 with a dedup key) and 2 MiB, with their positions.

    Fewer where they are of many queues or tenants: each is work of its own.
    A payload in a body file counts once a run: who shares it does not write it again.

    Args:
        items: tasks of one call.
        bytes_max: what one run may have, if that is less than 2 MiB.
    """
    bytes_max = min(bytes_max, CHUNK_BYTES_MAX)
    run: list[tuple[int, EncodedTask]] = []
    written: set[int] = set()
    lanes: set[tuple[bytes, bytes]] = set()
    size = work = 0
    for i, item in enumerate(items):
        is_long = len(run) >= CHUNK_TASKS_MAX or work >= WORK_MAX
        if run and (is_long or size + _cost(item, written) + 128 > bytes_max):
            yield run
            run, size, work = [], 0, 0
            written.clear()
            lanes.clear()
        run.append((i, item))
        lane = item.queue, item.tenant
        if lane not in lanes:
            work += _LANE if lanes else 0
            lanes.add(lane)
        work += 1 if item.ghost is NO_GHOST else _KEYED
        size += _cost(item, written) + 128
        written.add(id(item.body))
    if run:
        yield run


def _cost(item: EncodedTask, written: set[int]) -> int:
    """Bytes written for a task, if the payloads in ``written`` are written already."""
    is_new = item.body is not None and id(item.body) not in written
    return item.row_bytes + (len(item.body or b"") if is_new else 0)


def check_atomic(core: EngineState, items: Sequence[EncodedTask]) -> None:
    """Refuse a call that cannot be one batch."""
    written: set[int] = set()
    size = 0
    for item in items:
        size += _cost(item, written) + 128
        written.add(id(item.body))
    if len(items) > CHUNK_TASKS_MAX or size > CHUNK_BYTES_MAX:
        raise LimitError(
            f"atomic=True takes at most {CHUNK_TASKS_MAX} tasks and {CHUNK_BYTES_MAX} bytes, "
            f"this call has {len(items)} and {size}: split it"
        )
    if len(core.shards) > 1 and len({i.slot for i in items}) > 1:
        raise LimitError(
            "atomic=True needs one shard: give all tasks the same shard_key, or none a key"
        )
