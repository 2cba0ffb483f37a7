"""Flipped bits, and what may come of them.

A flip is *harmless* (everything is there), *refused* (a typed error; with the bit turned back
everything is there) or *reported* (``recoveries``, a finding of ``verify``, a typed error of a
read, a dead letter). Anything else is silent, and silent is a bug.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from crash.nursery import Nursery
from fault.injector import kind_of
from fault.judge import BrokenError, demand

STORES = [
    (mode, shards, ends)
    for mode in ("nosync", "fsync")
    for shards in (1, 4)
    for ends in ("close", "kill")
]
WATERMARK_BYTES = [*range(64), *range(4096, 4160)]  # the two slots; the rest means nothing
LIFE_S_MAX = 60.0
FLIPS_A_LIFE = 1000  # as many as a message to the nursery holds
Flip = tuple[str, int, int]  # file, byte, bit


class Base(NamedTuple):
    """A store to be damaged. ``covered``: durable tasks, and the watermark says so."""

    path: Path
    mode: str
    shards: int
    ends: str
    covered: list[int]
    later: list[int]
    completed: list[int]

    def files(self) -> dict[str, int]:
        """Size by name, of whatever means something."""
        return {
            str(path.relative_to(self.path)): path.stat().st_size
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not path.name.startswith(("LOG", "LOCK", "lock"))
        }


def made(nursery: Nursery, path: Path, mode: str, shards: int, ends: str) -> Base:
    child = nursery.start(
        "fault.flipchild",
        {"path": str(path), "mode": mode, "shards": shards, "ends": ends},
    )
    records = child.rest()
    demand(nursery.wait(child) == 0 and records and records[0][0] == "made", records)
    return Base(path, mode, shards, ends, *records[0][1:])


def every(base: Base) -> list[Flip]:
    """One bit of every byte that means something."""
    draw = random.Random(7)
    return [
        (name, at, draw.randrange(8))
        for name, size in base.files().items()
        for at in (WATERMARK_BYTES if kind_of(name_in(name)) == "watermark" else range(size))
    ]


def some(base: Base, each: int, seed: int) -> list[Flip]:
    """About ``each`` of every kind of file."""
    draw = random.Random(seed)
    by_kind: dict[str, list[Flip]] = {}
    for flip in every(base):
        by_kind.setdefault(kind_of(name_in(flip[0])), []).append(flip)
    return [
        flip for flips in by_kind.values() for flip in draw.sample(flips, min(each, len(flips)))
    ]


def name_in(name: str) -> str:
    return f"/store/{name}"


def judged(
    nursery: Nursery, base: Base, scratch: Path, flips: list[Flip], gone: set[int] | None = None
) -> Counter[str]:
    """Outcomes by ``kind: outcome``. Raises ``BrokenError`` at the first that may not be.

    ``gone`` gathers the tasks that a reported flip has cost.
    """
    outcomes: Counter[str] = Counter()
    for at in range(0, len(flips), FLIPS_A_LIFE):
        part = flips[at : at + FLIPS_A_LIFE]
        outcomes += _judged(nursery, base, scratch, part, set() if gone is None else gone)
    return outcomes


def _judged(
    nursery: Nursery, base: Base, scratch: Path, flips: list[Flip], gone: set[int]
) -> Counter[str]:
    """Those that one child looks at."""
    outcomes: Counter[str] = Counter()
    child = nursery.start(
        "fault.flipchild",
        {
            "base": str(base.path),
            "scratch": str(scratch),
            "mode": base.mode,
            "shards": base.shards,
            "flips": flips,
        },
    )
    begun = -1
    until = time.monotonic() + LIFE_S_MAX
    while not child.is_over:
        for record in child.read(until):
            until = time.monotonic() + LIFE_S_MAX
            if record[0] == "begun":
                begun = record[1]
            elif record[0] == "told":
                flip = flips[record[1]]
                try:
                    outcome = outcome_of(base, flip, record[2])
                except BrokenError as error:
                    nursery.kill(child)
                    raise BrokenError(f"{base[1:4]}, {flip}: {error}\n{record[2]}") from error
                if outcome == "reported":
                    gone |= lost(base, record[2])
                outcomes[f"{kind_of(name_in(flip[0]))}: {outcome}"] += 1
            else:
                nursery.kill(child)
                raise BrokenError(f"{base[1:4]}, {flips[begun]}: {record}")
        if not child.is_over and time.monotonic() > until:
            nursery.kill(child)
            raise BrokenError(f"{base[1:4]}, {flips[begun]}: it hangs")
    os.close(child.fd)
    status = nursery.wait(child)
    demand(status == 0, f"{base[1:4]}, {flips[begun]}: the process ended with {status}")
    return outcomes


def outcome_of(base: Base, flip: Flip, told: dict[str, Any]) -> str:
    for error in told["errors"]:
        demand("LodeqError" in error, "an untyped error", error)
    demand(not told["left"], "a copy was left behind", told["left"])
    if "refused" in told:
        demand("LodeqError" in told["refused"], "an untyped refusal", told["refused"])
        healed = told["healed"]
        demand("refused" not in healed and not lost(base, healed), "the refusal changed the store")
        return "refused"
    gone = lost(base, told)
    if told["reports"] or told["errors"]:
        return "reported"
    if not gone:
        return "harmless"
    raise BrokenError(f"lost without a word: {sorted(gone)}")


def lost(base: Base, told: dict[str, Any]) -> set[int]:
    """Tasks that are not as they were acknowledged: gone, or back after their completion."""
    drained = set(told["drained"])
    missing = {n for n in (*base.covered, *base.later) if n not in drained}
    return missing | (drained & set(base.completed))
