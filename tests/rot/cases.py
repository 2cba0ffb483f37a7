"""Stores that are made once, and cases of damage that run on copies of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from crash.nursery import Nursery
from fault.judge import BrokenError, demand
from rot.judge import KINDS_OF_STORES, Base, drawn, judge, survey

LIFE_S_MAX = 120.0
CASES_A_LIFE = 50


class Store(NamedTuple):
    """A sort of store. ``is_merged``: one table a shard, all of its levels compacted."""

    mode: str
    shards: int
    is_merged: bool


STORES = [
    Store("fsync", 1, is_merged=False),
    Store("nosync", 1, is_merged=True),
    Store("nosync", 4, is_merged=False),
    Store("fsync", 4, is_merged=True),
]

assert len(STORES) == KINDS_OF_STORES


class Rig:
    """A nursery, a folder, and the stores in it."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = folder
        self._bases: dict[Store, Base] = {}

    def base(self, store: Store) -> Base:
        """A closed store of that sort."""
        if store not in self._bases:
            path = self._folder / f"base-{len(self._bases)}"
            child = self._nursery.start("rot.child", {"path": str(path), **store._asdict()})
            records = child.rest()
            demand(self._nursery.wait(child) == 0 and records, records)
            facts = {task_id: (kind, n) for task_id, (kind, n) in records[0][1].items()}
            self._bases[store] = survey(path, store.shards, facts)
        return self._bases[store]

    def run(self, store: Store, numbers: list[int]) -> Counter[str]:
        """Outcomes by ``kind: outcome``. Raise ``BrokenError`` at the first that may not be."""
        outcomes: Counter[str] = Counter()
        for at in range(0, len(numbers), CASES_A_LIFE):
            outcomes += self._run(self.base(store), numbers[at : at + CASES_A_LIFE])
        return outcomes

    def _run(self, base: Base, numbers: list[int]) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        cases = [drawn(base, number) for number in numbers]
        child = self._nursery.start(
            "rot.child",
            {
                "base": str(base.path),
                "scratch": str(self._folder / "copy"),
                "completed": base.completed,
                "cases": [case for case, _ in cases],
            },
        )
        begun, until = -1, time.monotonic() + LIFE_S_MAX

        def broken(what: Any) -> BrokenError:
            number = numbers[begun] if begun >= 0 else "none"
            case = cases[begun] if begun >= 0 else None
            return BrokenError(f"{base.path.name}, case {number}, {_short(case)}: {what}")

        while not child.is_over:
            for record in child.read(until):
                until = time.monotonic() + LIFE_S_MAX
                if record[0] == "begun":
                    begun = record[1]
                    continue
                if record[0] != "seen":
                    self._nursery.kill(child)
                    raise broken(record)
                case, target = cases[record[1]]
                try:
                    outcome = judge(base, case, target, *record[2:])
                except BrokenError as error:
                    self._nursery.kill(child)
                    raise broken(error) from error
                outcomes[f"{target.kind} {case[0]}: {outcome}"] += 1
            if not child.is_over and time.monotonic() > until:
                self._nursery.kill(child)
                raise broken("it hangs")
        os.close(child.fd)
        demand(self._nursery.wait(child) == 0, f"case {begun}: the process ended")
        return outcomes


def _short(case: Any) -> str:
    if case is None:
        return ""
    (how, name, at, bit), target = case
    return f"{how} {name} at {at} bit {bit} ({target.kind}, {len(target.keys)} rows)"
