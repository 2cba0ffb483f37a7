"""What may come of a damaged store, derived before it is damaged.

The oracle reads the tables by itself (``tables.py``): a block has keys, a key belongs to tasks. So
it knows, for each case, which tasks have a row in the damaged part and which have none.

- A task with its record intact is there after a salvage, with its payload, in a state it can be in.
- One whose record lay in the damaged part is there, or the salvage names or counts it.
- Whoever opens without salvage is refused with a typed error, or gets all other tasks. Where
  something is missing, ``recoveries``, ``verify``, ``health``, a dead letter or a typed error says
  so.
- After a salvage ``verify`` finds nothing, a full compaction succeeds, and an ordinary open has
  nothing to report.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from fault.judge import demand
from rot.tables import Block, blocks

KINDS_OF_STORES = 4
Case = tuple[str, str, int, int]  # how, file, byte, bit
Facts = dict[str, tuple[str, int]]  # by id: kind and number

PENDING = {"ready", "delayed", "moved", "keyed", "body", "dead"}
SMALL = ("CURRENT", "MANIFEST", "IDENTITY", "OPTIONS", "rocksdict-config.json", "watermark", "lock")


class Target(NamedTuple):
    """A part of the store that can be damaged, and the rows in it."""

    name: str
    kind: str
    offset: int
    size: int
    keys: frozenset[bytes] = frozenset()


class Base(NamedTuple):
    """A closed store, its tasks, and its parts by kind."""

    path: Path
    shards: int
    facts: Facts
    targets: dict[str, list[Target]]

    @property
    def completed(self) -> list[str]:
        return [task_id for task_id, (kind, _) in self.facts.items() if kind == "completed"]


def survey(path: Path, shards: int, facts: Facts) -> Base:
    """Find every part of a closed store."""
    targets: dict[str, list[Target]] = defaultdict(list)
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        size = file.stat().st_size
        if not file.is_file() or file.name.startswith(("LOG", "LOCK")):
            continue
        if file.suffix == ".sst":
            found = blocks(file)
            rows = frozenset(key for block in found for key in block.keys)
            for block in found:
                targets[_kind(block)].append(_target(name, block, rows))
            targets["table"].append(Target(name, "table", 0, size, rows))
        elif file.suffix == ".sqs":
            targets["payloads"].append(Target(name, "payloads", 0, size))
        elif file.name.startswith(SMALL):
            kind = file.name.rstrip("0123456789").rstrip("-")
            targets[kind].append(Target(name, kind, 0, size))
    return Base(path, shards, facts, dict(targets))


def _kind(block: Block) -> str:
    """Data blocks by the family of their first row: each means another loss."""
    return f"data {block.keys[0][:1].decode()}/" if block.keys else block.kind


def _target(name: str, block: Block, rows: frozenset[bytes]) -> Target:
    # Without its index or its footer a table is not readable as one.
    keys = frozenset(block.keys) if block.keys else rows if block.kind != "filter" else frozenset()
    return Target(name, _kind(block), block.offset, block.size, keys)


def drawn(base: Base, number: int) -> tuple[Case, Target]:
    """The damage of that number. Every kind of part comes equally often."""
    draw = random.Random(number)
    turn = number // KINDS_OF_STORES  # each of which has every so many'th number
    kind = sorted(base.targets)[turn % len(base.targets)]
    target = draw.choice(base.targets[kind])
    at = target.offset + draw.randrange(max(1, target.size))
    how = "flip"
    if target.offset == 0 and kind != "lock" and not kind.startswith("data"):
        how = draw.choice(["flip", "drop", "cut", "empty"])
    if target.size == 0:
        how = "drop"
    return (how, target.name, at, draw.randrange(8)), target


class Damage(NamedTuple):
    """What the damaged part held: tasks that lost their record, and all that lost a row."""

    records: frozenset[str]
    touched: frozenset[str]
    results: frozenset[str]


def damage_of(base: Base, case: Case, target: Target) -> Damage:
    """By id, before anything is damaged."""
    records, touched, results = set(), set(), set()
    for key in target.keys:
        if key[:2] in (b"t/", b"s/", b"l/", b"r/"):
            task_id = key[2:18].hex()
        elif key[:2] == b"q/":
            task_id = key[-16:].hex()
        else:
            continue
        touched.add(task_id)
        if key[:2] == b"t/":
            records.add(task_id)
        if key[:2] == b"r/":
            results.add(task_id)
    if target.kind == "payloads":
        how, name, at, _ = case
        data = (base.path / name).read_bytes()
        for task_id, (kind, n) in base.facts.items():
            if kind != "body":
                continue
            start = data.find(b"%d:" % n)
            if start < 0:
                continue
            # A record has its header in front; a cut takes what is behind it.
            if how != "flip" or start - 200 <= at <= start + 4096:
                records.add(task_id)
                touched.add(task_id)
    return Damage(frozenset(records), frozenset(touched), frozenset(results))


def judge(base: Base, case: Case, target: Target, ordinary: Any, salvaged: Any, again: Any) -> str:
    """Raise ``BrokenError``, or say what an ordinary open did: refused, reported or harmless."""
    harm = damage_of(base, case, target)
    outcome = _judge_ordinary(base, harm, ordinary)
    if "refused" in salvaged and _is_all_there_was(base, target):
        demand(_typed(salvaged["refused"]), "an untyped refusal", salvaged["refused"])
        demand("restore a checkpoint" in salvaged["refused"][-1], salvaged["refused"])
        return "hopeless"
    _judge_salvage(base, target, harm, salvaged)
    demand("refused" not in again, "an ordinary open refuses what was salvaged", again)
    demand(not again["recoveries"], "an ordinary open has something to mend", again["recoveries"])
    # What a task waited for nobody knows when its join is gone: verify goes on naming it.
    findings = [one for one in again["findings"] if NO_JOIN not in one]
    demand(not findings and not again["errors"], "salvaged, but not sound", findings, again)
    return outcome


def _is_all_there_was(base: Base, target: Target) -> bool:
    """Whether no other table of this shard has the record of a task."""
    shard = target.name.partition("/")[0]
    others = (table for table in base.targets["table"] if table.name.startswith(f"{shard}/"))
    keys = {key for table in others if table.name != target.name for key in table.keys}
    return not any(key.startswith(b"t/") for key in keys - target.keys)


NO_JOIN = "waits, and there is no join to let it go"


def _typed(error: list[str]) -> bool:
    return "LodeqError" in error and "InvariantError" not in error


def _absent(base: Base, seen: Any) -> set[str]:
    """Tasks that did not come back whole, and results that are gone."""
    dead = set(seen["dead"])
    absent = set()
    for task_id, (kind, n) in base.facts.items():
        if kind == "completed":
            if seen["results"].get(task_id) != n:
                absent.add(task_id)
        elif not seen["claimed"].get(task_id) and not (kind == "dead" and task_id in dead):
            absent.add(task_id)
    return absent


def _judge_ordinary(base: Base, harm: Damage, seen: Any) -> str:
    if "refused" in seen:
        demand(_typed(seen["refused"]), "an untyped refusal", seen["refused"])
        return "refused"
    for error in seen["errors"]:
        demand(_typed(error), "an untyped error", error)
    absent = _absent(base, seen)
    again = {t for t in seen["claimed"] if base.facts.get(t, ("completed",))[0] == "completed"}
    said = [seen["recoveries"], seen["findings"], seen["reasons"], seen["errors"]]
    said.append([t for t in seen["dead"] if base.facts.get(t, ("?",))[0] != "dead"])
    demand(not again - harm.touched, "completed tasks are done again", again - harm.touched)
    demand(
        absent <= harm.touched or _is_unread(seen),
        "lost beside the damage",
        len(absent - harm.touched),
        said,
    )
    if absent or again:
        demand(any(said), "lost without a word", sorted(absent))
        return "reported"
    return "harmless"


def _is_unread(seen: Any) -> bool:
    """Whether health says that it cannot read a part of the store, as for a whole table."""
    return any("read" in reason or "damaged" in reason for reason in seen["reasons"])


def _judge_salvage(base: Base, target: Target, harm: Damage, seen: Any) -> None:
    demand("refused" not in seen, "salvage refuses", seen.get("refused"))
    demand(not seen["errors"], "errors after a salvage", seen["errors"])
    absent = _absent(base, seen)
    pending = {t for t in absent if base.facts[t][0] in PENDING}
    demand(
        pending <= harm.records,
        "a task whose record is intact is gone",
        [(base.facts[t], t) for t in pending - harm.records],
        seen["recoveries"],
    )
    results = absent - pending
    demand(results <= harm.results, "an intact result is gone", results - harm.results)
    again = {t for t in seen["claimed"] if base.facts.get(t, ("completed",))[0] == "completed"}
    demand(again <= harm.touched, "completed tasks are done again", again - harm.touched)
    named = _named(seen)
    if any(Path(target.name).name in line for line in seen["recoveries"]):
        return  # it names the table; how much was in one that cannot be read nobody knows
    demand(
        len(absent - named) <= _counted(seen["recoveries"]),
        "neither named nor counted",
        len(absent - named),
        seen["recoveries"],
    )


def _named(seen: Any) -> set[str]:
    """Tasks that a report or a dead letter names."""
    text = " ".join(seen["recoveries"]).replace("-", "")
    return set(seen["dead"]) | set(re.findall(r"\b[0-9a-f]{32}\b", text))


def _counted(recoveries: list[str]) -> int:
    """How many tasks and rows a salvage says it has not got back."""
    return sum(
        int(count.replace(",", ""))
        for line in recoveries
        for count in re.findall(r"(\d[\d,]*) (?:tasks?|results?|rows?|payloads?)\b", line)
    )
