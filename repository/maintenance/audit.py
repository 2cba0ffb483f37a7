"""The second half of an audit: checks payload files, and makes a repair plan of all findings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ...engine.bulk.reader import open_shard
from ...engine.files.paths import bodies_path
from ...engine.offline.audit import ShardAudit
from ...engine.offline.repair_plan import RepairPlan
from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, BODY_END, ROW_ID
from ...engine.records.rows import decode_body
from ...engine.store.port import pages
from ...engine.values import Finding
from ...errors import CorruptionError, SegmentCorruptError, StorageError
from ...segments.bodies.layout import Location, examine_folder, file_name, list_numbers
from ...segments.bodies.reader import BodyReader
from ...segments.bodies.sqs import Sqs
from ...segments.item import Damage, Record
from ...segments.source import FileSource

__all__ = ["BodyAudit", "audit_bodies", "plan_repair"]

_BEYOND = frozenset(("unreadable", "segment"))


class BodyAudit(NamedTuple):
    """Audit of a shard's payload files. ``lost``: tasks whose payload is not where it should be."""

    shard: int
    findings: tuple[Finding, ...]
    lost: tuple[bytes, ...]
    records: int


def audit_bodies(root: str, shard: int) -> BodyAudit:
    """Read every record of a shard's payload files, and every payload a row leads to. Blocks.

    Raises:
        OpenError: files have a format that this release does not read.
        StorageError: the disk failed.
    """
    folder = bodies_path(root, shard)
    layout = examine_folder(folder)
    findings: list[Finding] = []
    there: dict[tuple[int, int], tuple[int, bytes]] = {}
    for number in list_numbers(folder):
        if number > layout.last_v1_file:  # older files cannot be read without their rows
            name = file_name(number, layout.last_v1_file)
            _read_file(os.path.join(folder, name), shard, number, there, findings)
    lost: list[bytes] = []
    old = BodyReader(folder, layout.last_v1_file)
    try:
        with open_shard(root, shard) as reader:
            for rows in pages(reader, BODY, BODY_END):
                for key, raw in rows:
                    row = attempt(decode_body, raw)
                    if row is None or not row.size:
                        continue  # damaged, or known to be lost: reported elsewhere
                    is_there = there.get((row.file, row.offset)) == (row.size, row.record_id)
                    if row.file <= layout.last_v1_file:
                        is_there = _can_be_read(
                            old, Location(row.file, row.offset, row.size), row.record_id
                        )
                    if not is_there:
                        lost.append(key[ROW_ID])
                        detail = f"no payload at {row.offset} of file {row.file}"
                        findings.append(Finding(shard, "dangling_body", detail, key[ROW_ID]))
    except CorruptionError as exc:
        findings.append(Finding(shard, "unreadable", f"rows of payloads: {exc}"))
    finally:
        old.close()
    return BodyAudit(shard, tuple(findings), tuple(lost), len(there))


def _read_file(
    path: str,
    shard: int,
    number: int,
    there: dict[tuple[int, int], tuple[int, bytes]],
    findings: list[Finding],
) -> None:
    try:
        with FileSource(path) as source:
            for item in Sqs(is_current=True).salvage(source):
                if isinstance(item, Record):
                    there[number, item.offset] = item.size, item.id
                elif isinstance(item, Damage):
                    detail = f"{os.path.basename(path)} at {item.offset}: {item.reason}"
                    findings.append(Finding(shard, "segment", detail))
    except (CorruptionError, StorageError) as exc:
        findings.append(Finding(shard, "segment", f"{os.path.basename(path)}: {exc}"))


def _can_be_read(reader: BodyReader, at: Location, record_id: bytes) -> bool:
    try:
        return reader.read(at, record_id) is not None
    except SegmentCorruptError:
        return False


def plan_repair(shards: Iterable[ShardAudit], bodies: Iterable[BodyAudit]) -> RepairPlan:
    """Make a plan of everything that can be repaired; ``lodeq repair --plan`` applies it."""
    rows, payloads = list(shards), list(bodies)
    found = [f for one in rows for f in one.findings]
    found += [f for two in payloads for f in two.findings]
    settle = {f.shard for f in found if f.kind not in _BEYOND}
    beyond = [f"shard {f.shard}: {f.detail}" for f in found if f.kind in _BEYOND]
    move = [(one.shard, mark) for one in rows for mark in one.strays]
    if move:
        settle = {one.shard for one in rows}  # whichever they come to
    lost = {(one.shard, task_id) for one in payloads for task_id in one.lost}
    lost |= {(f.shard, f.task_id) for f in found if f.kind == "body" and f.task_id is not None}
    return RepairPlan(
        rows[0].store_id,
        rows[0].shards,
        tuple(sorted(settle)),
        tuple((one.shard, mark) for one in rows for mark in one.damaged),
        tuple(move),
        tuple(sorted(lost)),
        tuple(beyond),
    )
