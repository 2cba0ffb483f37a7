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
_TENANT_QUEUE: Final = 4
CHUNK_BYTES_MAX: Final = 2 << 20


def chunks(
    encoded_tasks: Sequence[EncodedTask], bytes_max: int = CHUNK_BYTES_MAX
) -> Iterable[list[tuple[int, EncodedTask]]]:
    """Runs of at most 1,024 tasks (256 with a dedup key) and 2 MiB, with their positions.

    Fewer where they are of many queues or tenants: each is work of its own.
    A payload in a body file counts once a run: who shares it does not write it again.

    Args:
        encoded_tasks: those of one call.
        bytes_max: what one run may have, if that is less than 2 MiB.
    """
    bytes_max = min(bytes_max, CHUNK_BYTES_MAX)
    run: list[tuple[int, EncodedTask]] = []
    written: set[int] = set()
    tenant_queues: set[tuple[bytes, bytes]] = set()
    size = work = 0
    for i, encoded in enumerate(encoded_tasks):
        is_long = len(run) >= CHUNK_TASKS_MAX or work >= WORK_MAX
        if run and (is_long or size + _cost(encoded, written) + 128 > bytes_max):
            yield run
            run, size, work = [], 0, 0
            written.clear()
            tenant_queues.clear()
        run.append((i, encoded))
        tenant_queue = encoded.queue, encoded.tenant
        if tenant_queue not in tenant_queues:
            work += _TENANT_QUEUE if tenant_queues else 0
            tenant_queues.add(tenant_queue)
        work += 1 if encoded.ghost is NO_GHOST else _KEYED
        size += _cost(encoded, written) + 128
        written.add(id(encoded.body))
    if run:
        yield run


def _cost(encoded: EncodedTask, written: set[int]) -> int:
    """Bytes written for a task, if the payloads in ``written`` are written already."""
    is_new = encoded.body is not None and id(encoded.body) not in written
    return encoded.row_bytes + (len(encoded.body or b"") if is_new else 0)


def check_atomic(state: EngineState, encoded_tasks: Sequence[EncodedTask]) -> None:
    """Refuse a call that cannot be one batch."""
    written: set[int] = set()
    size = 0
    for encoded in encoded_tasks:
        size += _cost(encoded, written) + 128
        written.add(id(encoded.body))
    if len(encoded_tasks) > CHUNK_TASKS_MAX or size > CHUNK_BYTES_MAX:
        raise LimitError(
            f"atomic=True takes at most {CHUNK_TASKS_MAX} tasks and {CHUNK_BYTES_MAX} bytes, "
            f"this call has {len(encoded_tasks)} and {size}: split it"
        )
    if len(state.shards) > 1 and len({i.slot for i in encoded_tasks}) > 1:
        raise LimitError(
            "atomic=True needs one shard: give all tasks the same shard_key, or none a key"
        )
