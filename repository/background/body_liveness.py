"""Live records of a body file, found from its rows alone, without reading the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...engine.records.frame import attempt
from ...engine.records.keyspace import body_at_key, decode_body_at_key
from ...engine.records.rows import decode_body_at
from ...errors import StorageError
from ..state.queue_state import Shard

__all__ = ["LiveBody", "absent_files", "live_bodies", "live_slice"]

SLICE_BYTES = 1 << 20  # copied in one turn of the loop
SCAN_ROWS = 256


class LiveBody(NamedTuple):
    """A record that at least one task needs: its place in the file, and those tasks."""

    offset: int
    size: int
    task_ids: list[bytes]


def absent_files(shard: Shard) -> list[str]:
    """Body files that tasks need and that are not there, or are other ones; in words.

    Where nobody can look, as without a descriptor left, that is said.
    """
    try:
        found = _absent(shard)
    except StorageError as error:
        return [f"shard {shard.index}: {error}"]
    return [
        f"shard {shard.index}: payload file {found[number]}; its tasks wait: put it back"
        for number in sorted(found)
    ]


def _absent(shard: Shard) -> dict[int, str]:
    bodies = shard.bodies
    if bodies is None:
        return {}
    found = {
        number: f"{bodies.files.path(number)!r} is missing"
        for number in bodies.files.gone()
        if next(live_bodies(shard, number), None) is not None
    }
    for number, row in list(bodies.absent.items()):
        if number in found:
            continue
        is_needed = next(live_bodies(shard, number), None) is not None
        if is_needed and (problem := bodies.problem(shard.overlay, row)):
            found[number] = problem
        else:
            del bodies.absent[number]
    return found


def live_slice(shard: Shard, number: int, after: int) -> list[LiveBody]:
    """The next live records from offset ``after`` on, about 1 MiB of them."""
    records: list[LiveBody] = []
    size = 0
    for record in live_bodies(shard, number, after):
        records.append(record)
        size += record.size
        if size >= SLICE_BYTES:
            break
    return records


def live_bodies(shard: Shard, number: int, after: int = 0) -> Iterator[LiveBody]:
    """Records of a file that a task needs, by offset."""
    lower, upper = body_at_key(number, after, b""), body_at_key(number + 1, 0, b"")
    found: LiveBody | None = None
    while True:
        rows, resume = shard.overlay.scan(lower, upper, SCAN_ROWS)
        for key, raw in rows:
            _, offset, task_id = decode_body_at_key(key)
            if found is not None and found.offset != offset:
                yield found
                found = None
            if found is None:
                # A damaged row keeps the file: its size is unknown.
                found = LiveBody(offset, attempt(decode_body_at, raw) or 1, [])
            found.task_ids.append(task_id)
        if resume is None:
            if found is not None:
                yield found
            return
        lower = resume
