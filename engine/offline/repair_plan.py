"""Repair plan: a small file that says how to mend an audit's findings, for an operator to read.

The rules that tie rows together can be made true again without asking what was found
(``engine/recovery/repair.py``): ``settle`` only says in which shards. What they cannot know is in
the plan: which rows do not decode and go, which lie in a wrong shard and move, whose payload is to
be looked for. Each row is named with a checksum of its value, so a plan that is old does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...errors import CorruptionError, StorageError
from ..bulk.documents import natural, read_document, write_document
from .audit_marks import RowMark

__all__ = ["RepairPlan", "read_plan", "write_plan"]

_FORMAT, _VERSION = "lodeq-repair-plan", 1
ShardRow = tuple[int, RowMark]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """``settle``: shards to be repaired. ``drop``, ``move``: (shard, row). ``bodies``: (shard, id).

    ``beyond``: what no repair can do anything about, in words.
    """

    store_id: bytes
    shards: int
    settle: tuple[int, ...] = ()
    drop: tuple[ShardRow, ...] = ()
    move: tuple[ShardRow, ...] = ()
    bodies: tuple[tuple[int, bytes], ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """There is nothing to do."""
        return not (self.settle or self.drop or self.move or self.bodies)


def write_plan(path: str | os.PathLike[str], plan: RepairPlan) -> None:
    """Write it, whole or not at all. Raises ``StorageError``."""
    body: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "store_id": plan.store_id.hex(),
        "shards": plan.shards,
        "settle": list(plan.settle),
        "drop": [_row_out(one) for one in plan.drop],
        "move": [_row_out(one) for one in plan.move],
        "bodies": [[shard, task_id.hex()] for shard, task_id in plan.bodies],
        "beyond": list(plan.beyond),
    }
    try:
        write_document(os.path.abspath(path), body)
    except OSError as exc:
        raise StorageError(f"{exc.filename or path}: {exc.strerror}") from exc


def read_plan(path: str | os.PathLike[str]) -> RepairPlan:
    """The inverse.

    Raises:
        CorruptionError: it is damaged, changed, or none.
        FormatTooNewError: a newer lodeq has written it.
    """
    name: Final = os.path.abspath(path)
    body = read_document(name, _FORMAT, _VERSION)
    try:
        plan = RepairPlan(
            bytes.fromhex(body["store_id"]),
            natural(body["shards"]),
            tuple(natural(one) for one in body["settle"]),
            tuple(_row_in(one) for one in body["drop"]),
            tuple(_row_in(one) for one in body["move"]),
            tuple((natural(shard), bytes.fromhex(task_id)) for shard, task_id in body["bodies"]),
            tuple(str(one) for one in body["beyond"]),
        )
        named = [*plan.settle, *(shard for shard, _ in (*plan.drop, *plan.move, *plan.bodies))]
        if any(shard >= plan.shards for shard in named):
            raise ValueError("it names a shard that there is not")
    except (ValueError, TypeError, KeyError) as exc:
        raise CorruptionError(f"{name} is damaged ({exc}): audit the store again") from exc
    return plan


def _row_out(one: ShardRow) -> list[object]:
    shard, mark = one
    return [shard, mark.key.hex(), mark.checksum]


def _row_in(raw: Sequence[Any]) -> ShardRow:
    shard, key, checksum = raw
    return natural(shard), RowMark(bytes.fromhex(key), natural(checksum))
