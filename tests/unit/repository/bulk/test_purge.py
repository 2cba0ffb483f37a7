"""Applying a purge plan: exactly what it names goes, and every count stays right."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from support_jobs import live
from support_purge import end_some, engine_results, make_plan

import lodeq
from lodeq.coalescer.write_pause import writes_paused
from lodeq.engine.offline.purge_plan import EndedRows, write_rows
from lodeq.engine.records.keyspace import EXPIRY, expiry_key
from lodeq.engine.records.rows import encode_expiry
from lodeq.engine.store.rocks import RocksStore
from lodeq.errors import CorruptionError, UsageError
from lodeq.service.cli.app import lodeq as command
from lodeq.testing import ManualClock


async def counts(engine: lodeq.Engine) -> tuple[int, int]:
    assert (await engine.verify()).findings == ()
    stats = await engine.queue("mail").stats()
    return stats.results, stats.dead


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_what_is_named_goes_and_counts_stay_right(store: Path, tmp_path: Path) -> None:
    results, dead = live(store, end_some)
    assert (len(results), len(dead)) == (70, 20)
    plan = make_plan(store, tmp_path / "plan", results[::2], dead[::3])

    async def purge(engine: lodeq.Engine) -> lodeq.PurgeReport:
        assert await counts(engine) == (70, 20)
        report = await engine.purge_archived(plan)
        assert await counts(engine) == (35, 13)
        return report

    assert live(store, purge) == lodeq.PurgeReport(35, 7, 0)

    async def left(engine: lodeq.Engine) -> None:
        assert await counts(engine) == (35, 13)
        ids = {bytes(task_id) for task_id in engine_results(engine)}
        assert ids == {id for id, _ in results[1::2]}

    live(store, left)


def test_an_end_of_another_moment_stays(store: Path, tmp_path: Path) -> None:
    """As those of a dead letter that was redriven, and has died again since."""
    _, dead = live(store, end_some)
    earlier = [(id, ended_ms - 1) for id, ended_ms in dead]
    plan = make_plan(store, tmp_path / "plan", earlier, earlier)

    async def purge(engine: lodeq.Engine) -> lodeq.PurgeReport:
        return await engine.purge_archived(plan)

    assert live(store, purge) == lodeq.PurgeReport(0, 0, 40)
    assert live(store, counts) == (70, 20)


def test_what_a_pending_group_deletes_at_the_scan_point_is_not_the_end(
    store: Path, tmp_path: Path
) -> None:
    results, dead = live(store, end_some)
    plan = make_plan(store, tmp_path / "plan", results, [])
    first, file_count = expiry_key(1000, 1), 5

    async def purge(engine: lodeq.Engine) -> lodeq.PurgeReport:
        shard = engine._state.shards[0]
        needless = [(first + bytes([n]), encode_expiry([])) for n in range(file_count)]
        group = shard.coalescer.begin()
        group.ops += needless
        await shard.coalescer.wait(group)
        shard.expiry_head = EXPIRY
        with writes_paused(shard.coalescer):
            shard.coalescer.begin().ops.extend((key, None) for key, _ in needless)
            shard.coalescer.seal_full(always=True)
            purging = asyncio.create_task(engine.purge_archived(plan))
            async with asyncio.timeout(10):
                while len(engine_results(engine)) == 70:
                    assert not purging.done(), "it ended before the first result"
                    await asyncio.sleep(0)
        return await purging

    assert live(store, purge, reaper=False) == lodeq.PurgeReport(70, 0, 0)
    assert len(dead) == 20


@pytest.mark.parametrize("family", [b"r/", b"x/"])
def test_a_damaged_block_costs_what_is_in_it_and_poisons_nothing(
    store: Path, tmp_path: Path, family: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of several results that one expiry row names cannot be read; or a dead letter."""
    get = RocksStore.get

    async def end_together(engine: lodeq.Engine) -> None:
        mail = engine.queue("mail")
        await mail.enqueue_many([lodeq.NewTask(b"%d" % n, shard_key="a") for n in range(3)])
        await asyncio.gather(*(lease.bury() for lease in await mail.claim(limit=3)))

    live(store, end_together)

    async def ends(engine: lodeq.Engine) -> list[tuple[bytes, int]]:
        found = [(bytes(id), await engine.result(id)) for id in engine_results(engine)]
        return [(id, round(one.finished_at.timestamp() * 1e6) // 1000) for id, one in found]

    named = live(store, ends)
    plan = make_plan(store, tmp_path / "plan", *((named, []) if family == b"r/" else ([], named)))
    damaged = (b"r/" if family == b"r/" else b"s/") + named[1][0]

    async def purge(engine: lodeq.Engine) -> lodeq.PurgeReport:
        def failing(self: RocksStore, key: bytes) -> bytes | None:
            if key == damaged:
                raise CorruptionError("block checksum mismatch")
            return get(self, key)

        monkeypatch.setattr(RocksStore, "get", failing)
        report = await engine.purge_archived(plan)
        await engine.queue("mail").enqueue(b"goes on", shard_key="a")
        assert "poisoned" not in str((await engine.health()).reasons)
        return report

    purged = live(store, purge)
    assert (purged.results + purged.dead, purged.absent) == (2, 1)
    monkeypatch.setattr(RocksStore, "get", get)
    assert sum(live(store, counts)) == 4


def test_what_expires_later_is_not_counted_twice(store: Path, tmp_path: Path) -> None:
    """Entries of the expiry range go with their results: a sweep finds the others only."""
    results, dead = live(store, end_some)
    plan = make_plan(store, tmp_path / "plan", results[:40], dead)

    async def purge(engine: lodeq.Engine) -> None:
        await engine.purge_archived(plan)
        await engine.queue("mail").enqueue(b"one more")
        for lease in await engine.queue("mail").claim():
            await lease.complete()

    live(store, purge)
    clock = ManualClock(datetime.now(UTC) + timedelta(days=8))

    async def later(engine: lodeq.Engine) -> tuple[int, int]:
        for _ in range(100):
            clock.advance(1.0)
            await engine.fsync()
            if await counts(engine) == (0, 0):
                break
        return await counts(engine)

    assert live(store, later, clock=clock) == (0, 0)


def test_from_the_command_line(store: Path, tmp_path: Path) -> None:
    results, dead = live(store, end_some)
    plan = make_plan(store, tmp_path / "plan", results, dead)
    refused = CliRunner().invoke(command, ["forget", str(store), plan])
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    run = CliRunner().invoke(command, ["forget", str(store), plan, "--yes"])
    assert run.exit_code == 0, run.output
    gone = "70 results and 20 dead letters removed; 0 were gone already, or have changed\n"
    assert run.output == gone
    assert live(store, counts) == (0, 0)


def test_what_does_not_fit_is_refused(store: Path, tmp_path: Path) -> None:
    results, dead = live(store, end_some)
    plan = make_plan(store, tmp_path / "plan", results, dead)

    async def purge(engine: lodeq.Engine) -> None:
        await engine.purge_archived(plan)

    with pytest.raises(UsageError, match="of another store"):
        live(tmp_path / "other", purge)
    wider = make_plan(store, tmp_path / "wider", results, dead, shards=4)
    with pytest.raises(UsageError, match="4 shards, the store has 2"):
        live(store, lambda engine: engine.purge_archived(wider))
    file = next((tmp_path / "plan").glob("dead-*.rows"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match=r"dead-\d\.rows is damaged"):
        live(store, purge)
    (tmp_path / "plan" / "plan.json").write_text("{}")
    with pytest.raises(CorruptionError, match="is damaged"):
        live(store, purge)


def test_rows_are_found_by_id(tmp_path: Path) -> None:
    ends = [(bytes([n]) * 16, n * 1000) for n in range(1, 200, 2)]
    file = write_rows(str(tmp_path), "some", 0, "dead", ends)
    rows = EndedRows.read(str(tmp_path), file)
    assert len(rows) == len(ends)
    assert rows[3:5] == ends[3:5]
    assert [rows.find(id) for id, _ in ends] == [ended_ms for _, ended_ms in ends]
    assert [rows.find(bytes([n]) * 16) for n in (0, 2, 198, 255)] == [None] * 4
    with pytest.raises(CorruptionError, match="not in order"):
        write_rows(str(tmp_path), "other", 0, "dead", reversed(ends))


def test_rows_in_any_order_are_found_once_they_are_put_together() -> None:
    ends = [(bytes([n]) * 16, n * 1000) for n in range(1, 100)]
    raw = [id + ended_ms.to_bytes(8, "big") for id, ended_ms in ends]
    rows = EndedRows.of([b"".join(raw[50:]), b"", b"".join(reversed(raw[:50]))])
    assert [rows.find(id) for id, _ in ends] == [ended_ms for _, ended_ms in ends]
    assert list(rows.parts(40)) == [b"".join(raw[at : at + 40]) for at in (0, 40, 80)]
    with pytest.raises(UsageError, match="24 bytes each"):
        EndedRows.of([raw[0], raw[1][:-1]])
