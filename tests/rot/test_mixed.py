"""Files that do not belong together, as after a restore or a mount that got one folder wrong.

Each kind: an ordinary open refuses; what is put back afterwards is all there; a salvage gives every
task back once, as a dead letter, or says what the shard has lost. Never a task twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support_live import copy_live
from support_loop import on_loop

import lodeq
from lodeq.engine.runtime.ids import SeededRng

LARGE, TASKS = 40_000, 24

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Stores(NamedTuple):
    """One store as it was a life ago and as it is, closed and killed, and a stranger."""

    old: Path
    closed: Path
    killed: Path
    stranger: Path


def payload(n: int) -> bytes:
    return (b"%d:" % n).ljust(LARGE if n % 2 else 50, b"x")


async def life(root: Path, seed: int, first: int, killed: Path | None = None) -> None:
    async with lodeq.open(root, shards=2, rng=SeededRng(seed + first)) as engine:
        numbers = range(first, first + TASKS)
        tasks = [lodeq.NewTask(payload(n), dedup_key=f"k{n}") for n in numbers]
        await engine.queue("q").enqueue_many(tasks)
        if killed is not None:
            copy_live(root, killed)


async def make(folder: Path) -> Stores:
    made = Stores(*(folder / name for name in Stores._fields))
    await life(made.closed, 1, 0)
    shutil.copytree(made.closed, made.old)
    await life(made.closed, 1, TASKS, made.killed)
    for first in (0, TASKS):
        await life(made.stranger, 7, first)
    return made


def put(source: Path, target: Path) -> None:
    shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, target)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def first_file(folder: Path) -> Path:
    return sorted(folder.iterdir())[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: LARGE // 2])


def older_shard(root: Path, made: Stores) -> None:
    put(made.old / "shard0", root / "shard0")
    put(made.old / "watermark0", root / "watermark0")


def log_of(root: Path, shard: int) -> Path:
    (log,) = [p for p in (root / f"shard{shard}").glob("*.log") if p.stat().st_size]
    return log


KINDS: dict[str, Callable[[Path, Stores], object]] = {
    "a body file is missing": lambda r, m: first_file(r / "bodies0").unlink(),
    "a body file is cut": lambda r, m: cut(first_file(r / "bodies0")),
    "body files are swapped": lambda r, m: swap(*sorted((r / "bodies0").iterdir())[:2]),
    "a body file of the other shard": lambda r, m: put(
        first_file(r / "bodies1"), first_file(r / "bodies0")
    ),
    "a body file of another store": lambda r, m: put(
        first_file(m.stranger / "bodies0"), first_file(r / "bodies0")
    ),
    "body files are missing": lambda r, m: shutil.rmtree(r / "bodies0"),
    "body files of two shards are swapped": lambda r, m: swap(r / "bodies0", r / "bodies1"),
    "body files are older": lambda r, m: put(m.old / "bodies0", r / "bodies0"),
    "body files are of another store": lambda r, m: put(m.stranger / "bodies0", r / "bodies0"),
    "a shard is older": older_shard,
    "a shard and its body files are older": lambda r, m: (
        older_shard(r, m),
        put(m.old / "bodies0", r / "bodies0"),
    ),
    "the log of the other shard": lambda r, m: put(log_of(r, 1), log_of(r, 0)),
}


async def seen(root: Path, **how: str) -> tuple[list[int], list[int], str]:
    """Numbers of what is delivered, of what has died, and what the open said."""
    async with lodeq.open(root, **how) as engine:
        assert (await engine.verify()).ok
        queue, delivered = engine.queue("q"), []
        while leases := await queue.claim(limit=16):
            for lease in leases:
                n = int(lease.payload.partition(b":")[0])
                assert lease.payload == payload(n)
                delivered.append(n)
        dead = [0 for _ in await queue.dead_letters(1000)]
        assert (await queue.stats()).delayed == 0, "nothing waits for what a salvage gave up"
        return sorted(delivered), dead, " ".join((await engine.stats()).recoveries)


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_what_does_not_belong_together_is_refused_and_nothing_comes_twice(
    tmp_path: Path, kind: str
) -> None:
    made = await make(tmp_path)
    whole = made.killed if "log" in kind else made.closed
    mixed, salvaged = tmp_path / "mixed", tmp_path / "salvaged"
    shutil.copytree(whole, mixed)
    KINDS[kind](mixed, made)
    shutil.copytree(mixed, salvaged)
    for _ in range(2):
        with pytest.raises(lodeq.RecoveryRefusedError, match="shard 0"):
            await seen(mixed)
    for name in ("shard0", "watermark0", "bodies0", "bodies1"):  # put back
        put(whole / name, mixed / name)
    assert (await seen(mixed))[0] == list(range(2 * TASKS))
    delivered, dead, said = await seen(salvaged, recovery="salvage")
    assert len(delivered) == len(set(delivered)), "nothing twice"
    assert said
    if kind.startswith(("a body", "body")):  # its rows are all there
        assert len(delivered) + len(dead) == 2 * TASKS
