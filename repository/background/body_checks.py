"""Check for ``verify`` that every payload file holds what the rows say, undamaged.

Rows are read on the event loop, payloads in a thread, up to 8 MiB at a time. Each batch has a
reader of its own: a cancelled call leaves its thread running, which then shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, BODY_END, ROW_ID
from ...engine.records.rows import BodyRow, decode_body
from ...engine.store.port import StoreView
from ...engine.store.walk import Walk
from ...engine.values import Finding
from ...errors import SegmentCorruptError, StorageError
from ...segments.bodies.files import BodyFiles
from ...segments.bodies.reader import BodyReader
from ..state.engine_state import EngineState
from ..state.queue_state import Shard

__all__ = ["check_bodies"]

_FINDINGS_MAX: Final = 10_000  # per shard, as for its rows
_ROWS: Final = 64
_BYTES: Final = 8 << 20

_Batch = list[tuple[bytes, BodyRow]]  # by task


async def check_bodies(state: EngineState, shard: Shard, view: StoreView) -> list[Finding]:
    """Find missing or damaged payloads of a shard. No body file may be removed meanwhile."""
    findings: list[Finding] = []
    if shard.bodies is None:
        return findings
    for batch in _batches(view):
        if not batch:
            await state.spawner.checkpoint()
            state.check()
            continue
        check = partial(_check_batch, shard.bodies.files, batch)
        found: list[tuple[bytes, str]] = await state.spawner.run_in_thread(check)
        findings += (Finding(shard.index, "body", what, task_id) for task_id, what in found)
        if len(findings) > _FINDINGS_MAX:
            text = f"more than {_FINDINGS_MAX} findings"
            return [*findings[:_FINDINGS_MAX], Finding(shard.index, "truncated", text)]
        state.check()
    return findings


def _batches(view: StoreView) -> Iterator[_Batch]:
    """Rows of payloads by task id, so roughly in file order. An empty batch only ends a turn."""
    batch: _Batch = []
    size = 0
    for rows in Walk(view).pages(BODY, BODY_END):
        if not rows:
            yield []
        for key, raw in rows:
            row = attempt(decode_body, raw)
            if row is None or not row.size or row.is_lost:  # reported elsewhere, or known
                continue
            batch.append((key[ROW_ID], row))
            size += row.size
            if len(batch) == _ROWS or size >= _BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _check_batch(files: BodyFiles, batch: _Batch) -> list[tuple[bytes, str]]:
    """Read a batch of payloads, in a thread. Tasks in a row that share one have it read once."""
    found: list[tuple[bytes, str]] = []
    seen: BodyRow | None = None
    problem = ""
    reader = files.another_reader()
    try:
        for task_id, row in batch:
            if row != seen:
                seen, problem = row, _problem_with(reader, row)
            if problem:
                found.append((task_id, problem))
    finally:
        reader.close()
    return found


def _problem_with(reader: BodyReader, row: BodyRow) -> str:
    try:
        is_there = reader.has_row(row)
    except (SegmentCorruptError, StorageError) as exc:
        return str(exc)
    return "" if is_there else f"{reader.path(row.file)!r} is gone, and its payload"
