"""Expiry entries of results: their kinds, and results that go before their time, entry included.

An entry of a final result is acted on by time alone (``background/expiry_sweep.py``), so one that
is left behind would count its result out twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....coalescer.group import Group
from ....engine.records.frame import attempt
from ....engine.records.keyspace import RESULT
from ....engine.records.result import (
    HAS_ATTEMPTS,
    HAS_VALUE,
    ResultRecord,
    Status,
    decode_result,
)
from ....engine.records.rows import decode_expiry, encode_expiry
from ....engine.records.workflow import MEMBER_RESULT
from ..engine_state import EngineState
from ..queue_state import Shard, ShardQueue
from .task_location import forget_result

__all__ = [
    "FINAL_KIND",
    "IN_SHARD_QUEUE_KINDS",
    "OLD_SHARD_QUEUE_KIND",
    "READ_KIND",
    "RESULT_KIND",
    "RESULT_KINDS",
    "SHARD_QUEUE_KIND",
    "SHARD_QUEUE_KINDS",
    "VALUE_KIND",
    "Entry",
    "drop_with_entries",
    "is_final",
]

Entry = tuple[int, bytes]
RESULT_KIND, OLD_SHARD_QUEUE_KIND, FINAL_KIND, SHARD_QUEUE_KIND = b"rbcB"
VALUE_KIND, READ_KIND = b"vh"
SHARD_QUEUE_KINDS: Final = (SHARD_QUEUE_KIND, OLD_SHARD_QUEUE_KIND)
# Behind an entry that names their shard queue.
IN_SHARD_QUEUE_KINDS: Final = (FINAL_KIND, VALUE_KIND, READ_KIND)
RESULT_KINDS: Final = (RESULT_KIND, *IN_SHARD_QUEUE_KINDS)


def is_final(record: ResultRecord) -> bool:
    """Whether the result's entry is (or may be) one that is acted on without reading the result."""
    if record.status != Status.COMPLETED or record.flags & (HAS_ATTEMPTS | MEMBER_RESULT):
        return False
    return not record.flags & HAS_VALUE or record.history_s * 1000 <= record.retention_ms


def drop_with_entries(
    state: EngineState,
    shard: Shard,
    group: Group,
    key: bytes,
    raw: bytes,
    meant: Mapping[bytes, int],
) -> list[bytes]:
    """Delete results that one expiry row names, and their entries in it. Returns their ids.

    Those that a workflow may still read stay.

    Args:
        group: of the shard; gets the rows.
        key: of the expiry row.
        raw: the row.
        meant: ids, and when each of these tasks ended, ms since 1970; another end is left alone.
    """
    entries = attempt(decode_expiry, raw) or []
    keep: list[Entry] = []
    gone: list[bytes] = []
    header: Entry | None = None
    shard_queue: ShardQueue | None = None
    is_kept = False
    for kind, ref in entries:
        if kind in SHARD_QUEUE_KINDS:
            header, is_kept = (kind, ref), False
            shard_queue = shard.shard_queues_by_hash.get(ref) if kind == SHARD_QUEUE_KIND else None
            continue
        ended_ms = meant.get(ref) if kind in RESULT_KINDS else None
        if ended_ms is not None and kind == FINAL_KIND and shard_queue is not None:
            group.ops.append((RESULT + ref, None))
            group.dirty[shard_queue] = None
            shard_queue.results -= 1
            shard.results -= 1
            gone.append(ref)
        elif ended_ms is not None and _drop_if_same(state, shard, group, ref, ended_ms):
            gone.append(ref)
        else:
            if kind in IN_SHARD_QUEUE_KINDS and header is not None and not is_kept:
                keep.append(header)
                is_kept = True
            keep.append((kind, ref))
    if gone:
        left = encode_expiry(bytes((kind,)) + ref for kind, ref in keep) if keep else None
        group.ops.append((key, left))
    return gone


def _drop_if_same(state: EngineState, shard: Shard, group: Group, id: bytes, ended_ms: int) -> bool:
    record = attempt(decode_result, shard.overlay.get_sound(RESULT + id))
    if record is None or record.finished_us // 1000 != ended_ms:
        return False
    if record.flags & MEMBER_RESULT and state.flows.pins(shard, id):
        return False
    forget_result(state, shard, group, id, record)
    return True
