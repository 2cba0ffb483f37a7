"""The log of another shard, or of another store, in a shard's folder."""

from pathlib import Path

import pytest
from support_live import copy_live
from support_loop import on_loop

import lodeq
from lodeq.engine.runtime.ids import SeededRng

KEYS = [f"k{n}" for n in range(40)]


async def crashed(tmp_path: Path, name: str, seed: int) -> Path:
    """A store of two shards that was killed: 20 tasks in tables, 20 in logs."""
    root = tmp_path / f"{name}.live"
    for keys in (KEYS[:20], KEYS[20:]):
        async with lodeq.open(root, shards=2, rng=SeededRng(seed)) as engine:
            tasks = [lodeq.NewTask(key.encode(), dedup_key=key) for key in keys]
            await engine.queue("q").enqueue_many(tasks)
            if keys[-1] == KEYS[-1]:
                copy_live(root, tmp_path / name)
    return tmp_path / name


def log_of(root: Path, shard: int) -> Path:
    (log,) = [p for p in (root / f"shard{shard}").glob("*.log") if p.stat().st_size]
    return log


async def drained(root: Path, **how: str) -> tuple[list[bytes], str]:
    async with lodeq.open(root, **how) as engine:
        report = await engine.verify()
        assert report.ok, report.findings
        leases = await engine.queue("q").claim(limit=100)
        return [lease.payload for lease in leases], " ".join((await engine.stats()).recoveries)


@pytest.mark.parametrize("of", ["another shard", "another store"])
@on_loop
async def test_a_foreign_log_is_refused_and_left_out_in_a_salvage(tmp_path: Path, of: str) -> None:
    root = await crashed(tmp_path, "s", 1)
    other = root if of == "another shard" else await crashed(tmp_path, "t", 2)
    own = log_of(root, 0)
    kept = own.read_bytes()
    own.write_bytes(log_of(other, 1 if other is root else 0).read_bytes())
    for _ in range(2):
        with pytest.raises(lodeq.RecoveryRefusedError, match="another shard or store"):
            await drained(root)
    copy_live(root, tmp_path / "salvaged")
    payloads, said = await drained(tmp_path / "salvaged", recovery="salvage")
    assert len(payloads) == len(set(payloads)), "nothing twice"
    assert set(payloads) >= {key.encode() for key in KEYS[:20]}
    assert "left out" in said
    assert list((tmp_path / "salvaged").glob("shard0.refused-*"))
    own.write_bytes(kept)
    assert sorted((await drained(root))[0]) == sorted(key.encode() for key in KEYS)
