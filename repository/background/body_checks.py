"""Whether payloads lie where their rows say, whole: for ``verify``.

Rows are read on the loop, payloads in a thread, a few megabytes at a time. Each time with a reader
of its own: a call that was cancelled leaves a thread behind, and nothing of it is anybody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, BODY_END
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

_FINDINGS_MAX: Final = 10_000  # of a shard, as of its rows
_ROWS: Final = 64
_BYTES: Final = 8 << 20

_Batch = list[tuple[bytes, BodyRow]]  # by task


async def check_bodies(core: EngineState, shard: Shard, view: StoreView) -> list[Finding]:
    """What of a shard's payloads is gone or damaged. No file may be removed meanwhile."""
    findings: list[Finding] = []
    if shard.bodies is None:
        return findings
    for batch in _batches(view):
        if not batch:
            await core.spawner.checkpoint()
            core.check()
            continue
        look = partial(_look, shard.bodies.files, batch)
        found: list[tuple[bytes, str]] = await core.spawner.run_in_thread(look)
        findings += (Finding(shard.index, "body", what, task_id) for task_id, what in found)
        if len(findings) > _FINDINGS_MAX:
            text = f"more than {_FINDINGS_MAX} findings"
            return [*findings[:_FINDINGS_MAX], Finding(shard.index, "truncated", text)]
        core.check()
    return findings


def _batches(view: StoreView) -> Iterator[_Batch]:
    """By task, so about in the order of the files. One that is empty: a turn has passed."""
    batch: _Batch = []
    size = 0
    for rows in Walk(view).pages(BODY, BODY_END):
        if not rows:
            yield []
        for key, raw in rows:
            row = attempt(decode_body, raw)
            if row is None or not row.size:  # damaged, or known to be lost: told of elsewhere
                continue
            batch.append((key[2:], row))
            size += row.size
            if len(batch) == _ROWS or size >= _BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _look(files: BodyFiles, batch: _Batch) -> list[tuple[bytes, str]]:
    """In a thread. What several tasks share is read once if they follow one another."""
    found: list[tuple[bytes, str]] = []
    seen: BodyRow | None = None
    wrong = ""
    reader = files.another_reader()
    try:
        for task_id, row in batch:
            if row != seen:
                seen, wrong = row, _wrong_with(reader, row)
            if wrong:
                found.append((task_id, wrong))
    finally:
        reader.close()
    return found


def _wrong_with(reader: BodyReader, row: BodyRow) -> str:
    try:
        is_there = reader.read_row(row) is not None
    except (SegmentCorruptError, StorageError) as exc:
        return str(exc)
    return "" if is_there else f"{reader.path(row.file)!r} is gone, and its payload"
