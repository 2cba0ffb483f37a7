"""A salvage leaves tables of another shard or store out, and names them."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

import lodeq
from lodeq import NewTask

pytestmark = pytest.mark.slow

TASKS = 400
OURS = {f"ours {n}" for n in range(2 * TASKS)}


def fill(path: Path, what: str, shards: int = 2) -> None:
    """A store whose shards have several tables, the first with the stamp."""
    texts = [f"{what} {n}" for n in range(2 * TASKS)]

    async def main() -> None:
        for part in range(2):  # closing writes a table
            async with lodeq.open(path, shards=shards) as engine:
                for at in range(part * TASKS, (part + 1) * TASKS, 20):
                    tasks = [NewTask(text) for text in texts[at : at + 20]]
                    await engine.queue("mail").enqueue_many(tasks)

    asyncio.run(main())


def tables(path: Path, shard: int) -> list[Path]:
    """The largest first."""
    return sorted((path / f"shard{shard}").glob("*.sst"), key=os.path.getsize, reverse=True)


def salvaged(path: Path) -> tuple[list[str], list[str]]:
    """Payloads that are claimed, in order of the texts, and what the recovery said."""

    async def main() -> tuple[list[str], list[str]]:
        async with lodeq.open(path, recovery="salvage") as engine:
            report = await engine.verify()
            assert report.ok, report.findings
            said = list((await engine.stats()).recoveries)
            found: list[str] = []
            while leases := await engine.queue("mail").claim(limit=300):
                found += [lease.payload for lease in leases]
                await engine.complete_many([(lease, None) for lease in leases])
            return sorted(found), said

    return asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "s", "ours")
    return tmp_path / "s"


def strict_refuses(path: Path) -> None:
    async def main() -> None:
        async with lodeq.open(path):
            pass

    with pytest.raises(lodeq.LodeqError):
        asyncio.run(main())


def test_a_table_of_the_other_shard_runs_no_task_twice(path: Path) -> None:
    mine, other = tables(path, 0), tables(path, 1)[0]
    shutil.copyfile(other, mine[0])  # instead of ours
    strict_refuses(path)
    found, said = salvaged(path)
    assert len(set(found)) == len(found)
    assert set(found) < OURS
    assert any(f"table {mine[0].name} of shard 1: left out" in text for text in said)


def test_largest_tables_of_two_shards_swapped_bring_no_row_of_the_other(path: Path) -> None:
    one, other = tables(path, 0)[0], tables(path, 1)[0]
    kept = one.with_suffix(".kept")
    one.rename(kept)
    other.rename(one)
    kept.rename(other)
    strict_refuses(path)
    found, said = salvaged(path)
    assert len(set(found)) == len(found)
    assert set(found) < OURS
    assert sum("left out" in text for text in said) == 2


@pytest.mark.parametrize("instead", [False, True])
def test_a_table_of_another_store_with_a_stamp_is_left_out(
    path: Path, tmp_path: Path, instead: bool
) -> None:
    fill(tmp_path / "other", "theirs")
    foreign = min(tables(tmp_path / "other", 0), key=lambda one: one.name)  # has the stamp
    mine = tables(path, 0)
    shutil.copyfile(foreign, mine[0].with_name("000999.sst") if not instead else mine[0])
    if not instead:
        (path / "shard0" / "CURRENT").unlink()
        for one in (path / "shard0").glob("MANIFEST-*"):
            one.unlink()
    strict_refuses(path)
    found, said = salvaged(path)
    assert found
    assert all(one.startswith("ours") for one in found)
    assert any("of store" in text and "left out" in text for text in said)


def test_a_store_does_not_become_another_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    fill(path, "ours", 1)
    fill(tmp_path / "other", "theirs", 1)
    for one in tables(path, 0):
        one.unlink()
    for one in tables(tmp_path / "other", 0):
        shutil.copyfile(one, path / "shard0" / one.name)
    strict_refuses(path)
    with pytest.raises(lodeq.RecoveryRefusedError, match=r"of store .*left out"):
        salvaged(path)


def test_a_table_of_another_store_without_a_stamp_says_so_by_its_commits(
    path: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "other", "theirs")
    foreign = max(tables(tmp_path / "other", 0), key=lambda one: one.name)
    shutil.copyfile(foreign, max(tables(path, 0), key=lambda one: one.name))
    strict_refuses(path)
    found, said = salvaged(path)
    assert found
    assert all(one.startswith("ours") for one in found)
    assert any("another shard or store: left out" in text for text in said), said


def test_a_whole_database_of_another_store_is_no_shard_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "s"
    fill(path, "ours", 1)
    fill(tmp_path / "other", "theirs", 1)
    shutil.rmtree(path / "shard0")
    shutil.copytree(tmp_path / "other" / "shard0", path / "shard0")
    strict_refuses(path)
    with pytest.raises(lodeq.RecoveryRefusedError, match="put the right folder back"):
        salvaged(path)


def test_a_store_whose_only_shard_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    path, aside = tmp_path / "s", tmp_path / "aside"
    fill(path, "ours", 1)
    aside.mkdir()
    for name in ("shard0", "watermark0"):
        (path / name).rename(aside / name)
    strict_refuses(path)
    for name in ("shard0", "watermark0"):
        (aside / name).rename(path / name)
    found, said = salvaged(path)
    assert (set(found), said) == (OURS, [])
    shutil.rmtree(path / "shard0")
    (path / "watermark0").unlink()
    found, said = salvaged(path)
    assert found == []
    assert said, "it is said that all is gone"
