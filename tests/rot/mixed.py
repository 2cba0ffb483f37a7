"""Parts of a store that do not belong to the rest: each part, each way, and what may come of it.

A store is made in two lives, a copy taken after the first, and a stranger beside it. A case takes
one part of a copy away, cuts it, or puts another shard's, another store's or the older one in its
place. The judge knows of each task in which shard it lies, whether its payload is in a body file,
and whether it has ended.

- An ordinary open is refused with a typed error, and after the right files are put back gives
  every task; or it opens, and gives every task; or says that it does not.
- A salvage delivers no task twice, none of another store, and each payload as it was; what does
  not come is said, and what has ended comes again only where something is said. Tasks of a shard
  that was not touched are all there. After it ``verify`` is content, and an ordinary open silent.
- What a salvage has buried for want of its payload can be redriven once the body file is back.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fault.judge import BrokenError, demand
from support_live import copy_live

import lodeq
from lodeq.engine.runtime.ids import SeededRng, shard_of

__all__ = ["CASES", "Case", "Fact", "Made", "judge", "make_now", "run_all"]

LARGE, TASKS, DONE = 40_000, 24, 4
SHARDS = (1, 2)
JOURNAL = "tasks"


class Fact(NamedTuple):
    """A task of the store: its shard, whether a body file has its payload, and its end."""

    shard: int
    is_large: bool
    is_done: bool


class Made(NamedTuple):
    """A store as it was a life ago and as it is, each closed and killed, and a stranger."""

    shards: int
    facts: dict[int, Fact]
    old: Path
    old_killed: Path
    closed: Path
    killed: Path
    stranger: Path
    stranger_killed: Path


def payload(n: int, whose: str = "") -> bytes:
    return f"{whose}{n}:".encode().ljust(LARGE if n % 2 else 50, b"x")


async def _life(
    root: Path, killed: Path, shards: int, seed: int, life: int, whose: str
) -> tuple[dict[int, bytes], list[int]]:
    """Tasks of two sizes, by number; in the second life some of the first are done: these, too."""
    first = life * TASKS
    async with lodeq.open(
        root, shards=shards, rng=SeededRng(seed + life), journal=JOURNAL
    ) as engine:
        queue = engine.queue("q", retention=7 * 86_400)
        if life:
            leases = await queue.claim(limit=DONE)
            await engine.complete_many([(lease, None) for lease in leases])
            done = [int(lease.payload.lstrip(b"s").partition(b":")[0]) for lease in leases]
        else:
            done = []
        numbers = range(first, first + TASKS)
        receipts = await queue.enqueue_many(
            [lodeq.NewTask(payload(n, whose), dedup_key=f"k{n}") for n in numbers]
        )
        copy_live(root, killed)
        ids = dict(zip(numbers, (one.id for one in receipts), strict=True))
    return ids, done


async def make(folder: Path, shards: int) -> Made:
    """Make the stores, with the tasks of the newer one."""
    paths = [folder / name for name in Made._fields[2:]]
    made = Made(shards, {}, *paths)
    lives = [await _life(made.closed, made.old_killed, shards, 1, 0, "")]
    shutil.copytree(made.closed, made.old)
    lives.append(await _life(made.closed, made.killed, shards, 1, 1, ""))
    done = set(lives[1][1])
    for ids, _ in lives:
        for n, id in ids.items():
            made.facts[n] = Fact(shard_of(id, shards), n % 2 == 1, n in done)
    for life in range(2):
        shutil.rmtree(made.stranger_killed, ignore_errors=True)
        await _life(made.stranger, made.stranger_killed, shards, 7, life, "s")
    return made


def make_now(folder: Path, shards: int, known: dict[int, Made]) -> None:
    """Make them on a loop of their own."""
    known[shards] = asyncio.run(make(folder, shards))


def run_all(folder: Path) -> tuple[Counter[str], list[str]]:
    """Run every case; outcomes, and what is broken."""
    known: dict[int, Made] = {}
    for shards in SHARDS:
        (folder / f"of-{shards}").mkdir()
        make_now(folder / f"of-{shards}", shards, known)
    outcomes: Counter[str] = Counter()
    broken = []
    for case in CASES:
        try:
            outcomes[asyncio.run(judge(case, known[case.shards], folder))] += 1
        except BrokenError as error:
            broken.append(f"{case}: {error}")
    return outcomes, broken


# -- parts: files below a store's folder ---------------------------------------------------------


def _body_file(root: Path, shard: int) -> list[Path]:
    return sorted((root / f"bodies{shard}").iterdir())[:1]


def _tables(root: Path, shard: int) -> list[Path]:
    return sorted((root / f"shard{shard}").glob("*.sst"))


def _one_table(root: Path, shard: int) -> list[Path]:
    return sorted(_tables(root, shard), key=lambda path: (-path.stat().st_size, path.name))[:1]


def _log(root: Path, shard: int) -> list[Path]:
    return [path for path in (root / f"shard{shard}").glob("*.log") if path.stat().st_size]


def _database(root: Path, shard: int) -> list[Path]:
    return [path for path in (root / f"shard{shard}").iterdir() if path.suffix != ".log"]


PARTS: dict[str, Callable[[Path, int], list[Path]]] = {
    "a body file": _body_file,
    "all body files": lambda root, shard: [root / f"bodies{shard}"],
    "the log": _log,
    "a table": _one_table,
    "all tables": _tables,
    "the watermark": lambda root, shard: [root / f"watermark{shard}"],
    "tables and manifest": _database,
    "the shard": lambda root, shard: [root / f"{name}{shard}" for name in ("shard", "watermark")],
    "the shard and its body files": lambda root, shard: [
        root / f"{name}{shard}" for name in ("shard", "watermark", "bodies")
    ],
    "the journal": lambda root, shard: [root / "journals"],
}


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)


def _replace(root: Path, part: str, other: Path, shard: int, its_shard: int) -> None:
    """Put a part of another store, or of another shard, in the place of ours."""
    for path in PARTS[part](root, shard):
        _remove(path)
    for path in PARTS[part](other, its_shard):
        name = path.name
        if path.parent == other:
            name = name.replace(str(its_shard), str(shard))
            _copy(path, root / name)
        else:
            folder = root / path.parent.name.replace(str(its_shard), str(shard))
            _copy(path, folder / name)


def _cut(root: Path, part: str) -> None:
    """Half of each file, or of a folder's first file."""
    for path in PARTS[part](root, 0):
        files = [one for one in sorted(path.rglob("*")) if one.is_file()] or [path]
        for file in files[:1] if path.is_dir() else files:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _missing(root: Path, part: str) -> None:
    for path in PARTS[part](root, 0):
        _remove(path)


HOWS = ("missing", "cut", "swapped", "of another store", "older")


class Case(NamedTuple):
    """A part, what becomes of it, and the number of shards."""

    part: str
    how: str
    shards: int

    def __str__(self) -> str:
        return f"{self.part}, {self.how}, {self.shards}"

    @property
    def is_log(self) -> bool:
        return self.part == "the log"

    @property
    def is_bodies(self) -> bool:
        return self.part in ("a body file", "all body files")

    def damage(self, root: Path, made: Made) -> None:
        """Do it to a copy of the store."""
        if self.how == "exchanged":
            one, other, *_ = sorted((root / "bodies0").iterdir())
            one.rename(root / "aside")
            other.rename(one)
            (root / "aside").rename(other)
        elif self.how == "missing":
            _missing(root, self.part)
        elif self.how == "cut":
            _cut(root, self.part)
        elif self.how == "swapped":
            for shard in (0, 1):
                _replace(root, self.part, self.whole(made), shard, 1 - shard)
        else:
            older = (made.old, made.old_killed)
            other = (made.stranger, made.stranger_killed) if "store" in self.how else older
            _replace(root, self.part, other[self.is_log], 0, 0)

    def whole(self, made: Made) -> Path:
        """The store that it happens to: with a log only a killed one has anything in that."""
        return made.killed if self.is_log else made.closed

    def touches(self, shard: int) -> bool:
        return shard == 0 or self.how == "swapped"


def _is_mixed(case: Case) -> bool:
    """Or there is nothing to swap with, or nothing left that it could be compared with."""
    if case.how == "swapped":
        return case.shards > 1 and case.part != "the journal"
    is_all = case.shards == 1 and case.part.startswith("the shard")
    return not (is_all and case.how in ("of another store", "older"))


CASES = [
    *filter(_is_mixed, (Case(*one) for one in product(PARTS, HOWS, SHARDS))),
    *(Case("a body file", "exchanged", shards) for shards in SHARDS),
]


# -- what may come of it -------------------------------------------------------------------------


class Seen(NamedTuple):
    """All that a user could learn of a store by using it up."""

    delivered: Counter[int]
    dead: int
    said: str  # by open, verify and health


async def _seen(root: Path, *, is_redriven: bool = False, **how: Any) -> Seen:
    async with lodeq.open(root, journal=JOURNAL, **how) as engine:
        report = await engine.verify()
        if how:
            demand(report.ok, "verify after a salvage:", report.findings[:3])
        queue, delivered = engine.queue("q"), Counter[int]()
        if is_redriven:
            await queue.redrive()
        while leases := await queue.claim(limit=64):
            for lease in leases:
                n = int(lease.payload.partition(b":")[0].lstrip(b"s"))
                demand(lease.payload == payload(n), "a payload that was never ours:", n)
                delivered[n] += 1
            await engine.complete_many([(lease, None) for lease in leases])
        dead = len(await queue.dead_letters(1000))
        health = await engine.health()
        recoveries = (await engine.stats()).recoveries
        delayed = (await queue.stats()).delayed
        said = [*recoveries, *map(repr, report.findings), *health.reasons]
        if delayed:
            said.append(f"{delayed} wait for their body file")
        return Seen(delivered, dead, " ".join(said))


async def _strictly(root: Path, made: Made) -> bool:
    """An ordinary open; whether it was refused. What opens has everything, or says what not."""
    try:
        seen = await _seen(root)
    except (lodeq.CorruptionError, lodeq.OpenError) as error:
        place = "shard" in str(error) or "watermark" in str(error)
        demand(place, "refused, without a place:", error)
        return True
    _demand_once(made, seen)
    lost = _live(made) - seen.delivered.keys()
    demand(not lost or seen.said, "gone without a word:", sorted(lost))
    return False


def _live(made: Made) -> set[int]:
    return {n for n, fact in made.facts.items() if not fact.is_done}


def _demand_once(made: Made, seen: Seen) -> None:
    twice = [n for n, count in seen.delivered.items() if count > 1]
    demand(not twice, "delivered twice:", twice)
    again = [n for n in seen.delivered if made.facts[n].is_done]
    demand(not again or seen.said, "done again without a word:", again)


async def judge(case: Case, made: Made, folder: Path) -> str:
    """Run a case; the outcome in a word. Raises ``BrokenError`` where it may not be."""
    mixed, salvaged = folder / "mixed", folder / "salvaged"
    for path in (mixed, salvaged):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(case.whole(made), path)
        case.damage(path, made)
    is_refused = await _strictly(mixed, made)
    if is_refused:
        demand(await _strictly(mixed, made), "a second open was not refused")
        for path in mixed.iterdir():
            _remove(path)
        for path in case.whole(made).iterdir():  # put back
            _copy(path, mixed / path.name)
        back = await _seen(mixed)
        demand(set(back.delivered) == _live(made), "put back, and not all there")
    return f"{'refused' if is_refused else 'opened'}, {await _salvage(case, made, salvaged)}"


async def _salvage(case: Case, made: Made, root: Path) -> str:
    try:
        async with lodeq.open(root, journal=JOURNAL, recovery="salvage") as engine:
            said = " ".join((await engine.stats()).recoveries)
            demand((await engine.verify()).ok, "verify after a salvage")
    except (lodeq.CorruptionError, lodeq.OpenError) as error:
        demand("put" in str(error) or "checkpoint" in str(error), "refused without advice:", error)
        return "salvage refused"
    silent = await _seen(root)  # an ordinary open of what the salvage has left
    demand(not silent.said or silent.dead, "an open after a salvage says:", silent.said)
    _demand_once(made, silent._replace(said=said))
    lost = _live(made) - silent.delivered.keys()
    demand(not lost or said or silent.dead, "gone without a word:", sorted(lost))
    sound = {n for n in lost if not case.touches(made.facts[n].shard)}
    demand(not sound, "of a shard that was not touched:", sorted(sound))
    if case.is_bodies:
        whole = {n for n in lost if not made.facts[n].is_large}
        demand(not whole, "no body file has them:", sorted(whole))
        demand(len(lost) == silent.dead, "neither delivered nor buried:", sorted(lost))
        await _put_back(case, made, root, lost)
    if case.part in ("the watermark", "the journal"):
        demand(not lost, "tasks were lost with", case.part, sorted(lost))
    return "all back" if not lost else "rest reported"


async def _put_back(case: Case, made: Made, root: Path, lost: set[int]) -> None:
    """The right body files come too late, but they come."""
    for shard in range(made.shards):
        for path in (case.whole(made) / f"bodies{shard}").iterdir():
            _remove(root / f"bodies{shard}" / path.name)
            (root / f"bodies{shard}").mkdir(mode=0o700, exist_ok=True)
            _copy(path, root / f"bodies{shard}" / path.name)
    later = await _seen(root, is_redriven=True)
    demand(set(later.delivered) == lost, "redriven, and not all there:", sorted(lost))
