"""A log that somebody has cut after a kill: what can be known of it is told."""

import os
from pathlib import Path

import pytest
from support_live import copy_live
from support_loop import on_loop

import lodeq


async def killed(tmp_path: Path) -> tuple[Path, Path]:
    """A store in fsync mode with 50 acknowledged tasks newer than its watermark; and its log."""
    async with lodeq.open(tmp_path / "live", durability="fsync", sync_interval=3600) as engine:
        for n in range(50):
            await engine.queue("q").enqueue(b"%d" % n)
        copy_live(tmp_path / "live", tmp_path / "s")
    (log,) = [p for p in (tmp_path / "s" / "shard0").glob("*.log") if p.stat().st_size]
    return tmp_path / "s", log


async def recovered(root: Path) -> tuple[int, str]:
    async with lodeq.open(root) as engine:
        assert (await engine.verify()).ok
        said = " ".join((await engine.stats()).recoveries)
        return (await engine.queue("q").stats()).ready, said


@on_loop
async def test_a_log_that_ends_within_a_commit_is_told_in_fsync_mode(tmp_path: Path) -> None:
    root, log = await killed(tmp_path)
    os.truncate(log, log.stat().st_size // 2)
    ready, said = await recovered(root)
    assert 0 < ready < 50
    assert "ends in the middle of a commit" in said
    assert await recovered(root) == (ready, "")


@on_loop
async def test_a_whole_log_is_nothing_to_tell(tmp_path: Path) -> None:
    root, _ = await killed(tmp_path)
    assert await recovered(root) == (50, "")


@pytest.mark.parametrize("harm", ["empty", "missing"])
@on_loop
async def test_a_log_that_is_gone_whole_is_refused(tmp_path: Path, harm: str) -> None:
    """The row of its own opening went with it."""
    root, log = await killed(tmp_path)
    log.unlink() if harm == "missing" else os.truncate(log, 0)
    with pytest.raises(lodeq.RecoveryRefusedError, match="the open row says"):
        await recovered(root)
