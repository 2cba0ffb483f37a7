"""One block of a table rots while the store is closed: it costs what is in it, nothing else."""

import contextlib
from contextlib import asynccontextmanager

import pytest
from support_behaviour import settle
from support_damage import rot
from support_ingest import publish

import lodeq
from lodeq import CorruptionError, NewTask, TaskFilter
from lodeq.coalescer.paged import paged
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.upkeep import compact

pytestmark = pytest.mark.anyio
N = 1500
COMPACTS = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")


@asynccontextmanager
async def rotten(path, clock, fill, needle, at=0.5):
    """An engine whose store was filled, closed and damaged."""
    async with lodeq.open(path, clock=clock, inbox=False) as engine:
        await fill(engine)
        store = engine._state.shards[0].store
        store.flush()
        while any(map(store.property_int, COMPACTS)):  # or it would meet the block on its own
            await settle(1)
    rot(path, needle, at)
    async with lodeq.open(path, clock=clock, inbox=False) as engine:
        yield engine


async def fill_ready(engine):
    await engine.queue("mail").enqueue_many([NewTask(n) for n in range(N)])


async def claim_all(queue, limit=64):
    found = []
    while leases := await queue.claim(limit=limit):
        found += [lease.payload for lease in leases]
    return found


@pytest.mark.parametrize("limit", [1, 64])
@pytest.mark.parametrize("at", [0.3, 0.6, 1.0])
async def test_claims_go_on_behind_a_damaged_block_of_the_ready_range(tmp_path, clock, at, limit):
    async with rotten(tmp_path / "s", clock, fill_ready, b"q/mail\0\0r", at) as engine:
        queue = engine.queue("mail")
        assert (await queue.stats()).ready == N  # before anything was met, and after
        clock.jump(1)
        await queue.enqueue("new")
        found = await claim_all(queue, limit)
        await settle()
        found += await claim_all(queue, limit)  # the reaper has looked behind the block
        assert "new" in found
        found.remove("new")
        assert found == sorted(found)
        lost = N - len(found)
        assert 0 < lost <= 400
        stats = await queue.stats()
        assert (stats.ready + stats.dead, stats.leased) == (lost, N - lost + 1)
        assert stats.ready
        (text,) = (t for t in (await engine.stats()).unreadable if "ready rows" in t)
        assert "shard 0: 1 range of ready rows cannot be read" in text
        health = await engine.health()
        assert not health.ok
        assert text in health.reasons
        for n in range(3):
            await queue.enqueue(n)
            assert [lease.payload for lease in await queue.claim(limit=9)] == [n]
        waiting = await queue.claim(limit=9)
        assert waiting == []
        assert not any("rescanned" in t for t in (await engine.stats()).anomalies)


async def test_a_known_range_is_not_probed_again(tmp_path, clock, monkeypatch):
    failed = []

    def counted(scan):
        def counting(self, lower, upper, limit):
            try:
                return scan(self, lower, upper, limit)
            except CorruptionError:
                failed.append(lower)
                raise

        return counting

    for name in ("scan", "scan_part"):
        monkeypatch.setattr(RocksStore, name, counted(getattr(RocksStore, name)))
    async with rotten(tmp_path / "s", clock, fill_ready, b"q/mail\0\0r", 0.5) as engine:
        queue, spent = engine.queue("mail"), []
        before = len(failed)
        while leases := await queue.claim(limit=8):
            spent.append(len(failed) - before)
            for lease in leases:
                await lease.complete(keep=False)
            before = len(failed)
        assert 0 < max(spent) <= 64
        assert len([n for n in spent if n > 1]) == 1  # the keeper of bodies looks once, too
        await queue.enqueue("new")
        assert await claim_all(queue) == ["new"]
        assert len(failed) == before


@pytest.mark.parametrize("at", [0.5, 1.0])
async def test_every_task_outside_a_damaged_block_of_records_is_delivered(tmp_path, clock, at):
    async with rotten(tmp_path / "s", clock, fill_ready, b"t/\x01", at) as engine:
        queue = engine.queue("mail")
        found = await claim_all(queue)
        dead = await queue.dead_letters(limit=1000)
        assert found == sorted(found)
        assert 0 < len(dead) <= 100
        assert len(found) + len(dead) == N
        assert {task.reason for task in dead} == {"record missing or damaged"}
        stats = await queue.stats()
        assert (stats.ready, stats.leased, stats.dead) == (0, len(found), len(dead))
        text = " ".join((await engine.health()).reasons)
        assert "reads of task rows failed" in text
        assert (await engine.result(dead[0].id)).status == "dead"
        assert (await engine.get(dead[0].id)).state == "dead"
        assert await queue.redrive() == 0
        assert await queue.purge("dead") == len(dead)
        assert (await queue.stats()).dead == 0


async def test_delayed_tasks_outside_a_damaged_block_fall_due(tmp_path, clock):
    async def fill(engine):
        await engine.queue("mail").enqueue_many([NewTask(n, delay=5 + n / 100) for n in range(N)])

    async with rotten(tmp_path / "s", clock, fill, b"q/mail\0\0d", 0.5) as engine:
        queue = engine.queue("mail")
        for _ in range(30):
            await clock.advance(1, turns=20)
        found = await claim_all(queue)
        assert found == sorted(found)
        assert N - 300 < len(found) < N
        assert (await queue.stats()).delayed == N - len(found)
        assert "1 range of delayed rows" in " ".join((await engine.health()).reasons)
        assert len(await queue.list("delayed", limit=1000)) == 0
        await queue.enqueue("new", delay=1)
        await clock.advance(2)
        assert await claim_all(queue) == ["new"]


async def test_a_delayed_task_behind_the_last_block_is_found_and_falls_due(tmp_path, clock):
    async def fill(engine):
        await engine.queue("mail").enqueue_many([NewTask(n, delay=5 + n / 100) for n in range(N)])

    async with rotten(tmp_path / "s", clock, fill, b"q/mail\0\0d", 1.0) as engine:
        queue = engine.queue("mail")
        clock.jump(1)
        await queue.enqueue("before", delay=25)
        for _ in range(30):
            await clock.advance(1, turns=40)
        assert "before" in await claim_all(queue)
        await queue.enqueue("after", delay=2)
        await clock.advance(3)
        assert await claim_all(queue) == ["after"]


async def test_a_sweep_goes_on_behind_a_damaged_block(tmp_path, clock):
    async def fill(engine):
        queue = engine.queue("mail")
        for n in range(400):
            await queue.enqueue(n, ttl=10 + n)  # an expiry row each

    async with rotten(tmp_path / "s", clock, fill, b"e/\0\0\x01", 0.3) as engine:
        queue = engine.queue("mail")
        for _ in range(60):
            await clock.advance(8, turns=30)
        health = " ".join((await engine.health()).reasons)
        assert "expiry rows cannot be read" in health
        assert 0 < (await queue.stats()).ready < 300  # their hints are gone, a claim ends them
        assert await queue.claim(limit=400) == []
        assert (await queue.stats()).ready == 0
        await queue.enqueue("new", ttl=3)
        for _ in range(3):
            await clock.advance(3)
        assert (await queue.stats()).ready == 0


@pytest.mark.parametrize("at", [0.03, 0.058])  # … and the last of them
async def test_dead_letters_outside_a_damaged_block_are_listed_and_redriven(tmp_path, clock, at):
    async def fill(engine):
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(n) for n in range(600)])
        while leases := await queue.claim(limit=64):
            clock.jump(0.01)
            for lease in leases:
                await lease.bury("bad")

    async with rotten(tmp_path / "s", clock, fill, b"q/mail\0\0x", at) as engine:
        queue = engine.queue("mail")
        listed = await queue.dead_letters(limit=10_000)
        assert 300 < len(listed) < 600
        assert "1 range of dead rows" in " ".join((await engine.health()).reasons)
        assert await queue.redrive() == len(listed)
        assert sorted(await claim_all(queue)) == sorted(task.payload for task in listed)
        assert (await queue.stats()).dead == 600 - len(listed)


@pytest.mark.parametrize("state", ["ready", "delayed", "dead"])
async def test_a_damaged_block_at_the_head_of_a_list_costs_what_is_in_it(tmp_path, clock, state):
    async def fill(engine):
        await engine.queue("a").enqueue_many([NewTask(n) for n in range(600)])
        delay = 10 if state == "delayed" else 0
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(n, delay=delay) for n in range(N)])
        while state == "dead" and (leases := await queue.claim(limit=64)):
            clock.jump(0.01)
            for lease in leases:
                await lease.bury("bad")

    kind = {"ready": b"r", "delayed": b"d", "dead": b"x"}[state]
    async with rotten(tmp_path / "s", clock, fill, b"q/mail\0\0" + kind, 0.0) as engine:
        queue = engine.queue("mail")
        listed = await queue.list(state, limit=10_000)
        assert N - 300 < len(listed) < N
        if state == "dead":
            assert await queue.redrive() == len(listed)
        elif state == "ready":
            assert len(await claim_all(queue)) == len(listed)
        else:
            assert await queue.purge(state) == len(listed)
        assert getattr(await queue.stats(), state) == N - len(listed)


async def test_an_unreadable_dedup_key_costs_only_itself(tmp_path, clock):
    async def fill(engine):
        await engine.queue("mail").enqueue_many(
            [NewTask(n, dedup_key=str(n), dedup_window=3600) for n in range(N)]
        )

    async with rotten(tmp_path / "s", clock, fill, b"g/", 0.5) as engine:
        queue, refused = engine.queue("mail"), []
        for n in range(N):
            try:
                assert (await queue.enqueue(n, dedup_key=str(n))).duplicate
            except CorruptionError:
                refused.append(n)
        assert 0 < len(refused) <= 300
        bad, good = refused[0], next(n for n in range(N) if n not in refused)
        tasks = [NewTask(0, dedup_key=str(n)) for n in (bad, good)] + [NewTask("plain")]
        with pytest.raises(CorruptionError, match="damaged block") as failed:
            await queue.enqueue_many(tasks)
        assert [r is not None for r in failed.value.receipts] == [False, True, True]
        assert "reads of ghost rows failed" in " ".join((await engine.health()).reasons)


@pytest.mark.usefixtures("no_history")
async def test_an_unreadable_result_costs_only_itself(tmp_path, clock):
    ids = []

    async def fill(engine):
        queue = engine.queue("mail", retention=100)
        ids.extend(r.id for r in await queue.enqueue_many([NewTask(n) for n in range(N)]))
        while leases := await queue.claim(limit=512):
            await engine.complete_many([(lease, b"x" * 40) for lease in leases])

    async with rotten(tmp_path / "s", clock, fill, b"r/\x01", 0.5) as engine:
        refused = 0
        for task_id in ids:
            try:
                assert (await engine.result(task_id)).status == "completed"
                assert (await engine.get(task_id)).state == "completed"
            except CorruptionError:
                refused += 1
        assert 0 < refused <= 100
        queue = engine.queue("mail")
        assert len(await queue.list("completed", limit=10_000)) == N - refused
        for _ in range(4):
            await clock.advance(60, turns=100)
        assert (await queue.stats()).results == 0  # a completed task's goes unread


@pytest.mark.parametrize("at", [0.3, 0.5, 0.9])
async def test_ended_tasks_are_read_on_over_a_damaged_block(tmp_path, clock, at):
    async def fill(engine):
        queue = engine.queue("mail")
        for n in range(N // 10):
            await queue.enqueue_many([NewTask(n) for _ in range(10)])
            clock.jump(0.01 if n % 50 else 60)
        while leases := await queue.claim(limit=500):
            await engine.complete_many([(lease, None) for lease in leases])

    async with rotten(tmp_path / "s", clock, fill, b"r/\x01", at) as engine:
        ended = TaskFilter(queue="mail", state="completed")
        rising = [task.id async for task in engine.find_all(ended, oldest_first=True)]
        assert rising == sorted(set(rising))
        assert N - 300 < len(rising) < N
        middle = rising[500]
        rest = [task.id async for task in engine.find_all(ended, oldest_first=True, after=middle)]
        assert rest == rising[501:]


async def test_a_damaged_store_is_not_compacted_so_that_writes_go_on(tmp_path, clock):
    async with rotten(tmp_path / "s", clock, fill_ready, b"q/mail\0\0r", 0.5) as engine:
        queue, store = engine.queue("mail"), engine._state.shards[0].store
        found = await claim_all(queue)
        for n in range(12):  # four tables on level 0 would be compacted, with the damaged one
            await queue.enqueue(n)
            store.flush()
        for _ in range(200):
            store.property_int("rocksdb.compaction-pending")
            await settle(1)
        store.flush()
        assert await claim_all(queue) == list(range(12))
        assert engine._state.shards[0].coalescer.takes_writes
        assert found


@pytest.mark.slow
async def test_a_compaction_that_meets_the_block_first_says_what_to_do(tmp_path, clock):
    """RocksDB takes no writes then, whatever is read; so neither the engine nor an open goes on."""
    path = tmp_path / "s"
    async with rotten(path, clock, fill_ready, b"t/\x01") as engine:
        await engine.queue("mail").enqueue(N)  # another table: one alone would only be moved
        with contextlib.suppress(lodeq.StorageError):  # rocksdict does not always say
            compact(engine._state.shards[0].store)
        with pytest.raises(lodeq.CommitUnknownError):
            await engine.queue("mail").enqueue(b"x")
        (reason,) = (r for r in (await engine.health()).reasons if "is poisoned" in r)
        assert 'recovery="salvage"' in reason
    async with lodeq.open(path, clock=clock, recovery="salvage", inbox=False) as engine:
        compact(engine._state.shards[0].store)
        assert (await engine.verify()).ok
        assert len(await claim_all(engine.queue("mail"))) > N - 100


async def test_an_open_that_meets_it_is_refused_with_what_to_do(tmp_path, clock, monkeypatch):
    path = tmp_path / "s"
    async with lodeq.open(path, clock=clock):
        pass

    def refused(store, ops):
        raise lodeq.CommitUnknownError("Corruption: block checksum mismatch in 000007.sst")

    with monkeypatch.context() as patched:
        patched.setattr("lodeq.engine.recovery.incarnation.write_patiently", refused)
        with pytest.raises(lodeq.RecoveryRefusedError, match=r'000007\.sst.*recovery="salvage"'):
            await lodeq.open(path, clock=clock)
    async with lodeq.open(path, clock=clock) as engine:
        assert (await engine.health()).ok


@pytest.mark.parametrize("name", ["scan_part", "scan_last"])
async def test_whatever_scan_meets_damage_ends_compaction(tmp_path, clock, name):
    async with rotten(tmp_path / "s", clock, fill_ready, b"q/mail\0\0r", 1.0) as engine:
        store = engine._state.shards[0].store
        assert store._is_compacting
        scan = {
            "scan_part": lambda: list(paged(store.scan_part, b"q/", b"q0", 512)),
            "scan_last": lambda: store.scan_last(b"q/", b"q0"),
        }[name]
        with pytest.raises(CorruptionError):
            scan()
        assert not store._is_compacting


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 5])
async def test_a_load_beside_a_damaged_block_waits_and_poisons_nothing(tmp_path, clock, delay):
    async def fill(engine):
        await engine.queue("mail").enqueue_many([NewTask(n, delay=delay) for n in range(N)])

    kind = b"d" if delay else b"r"
    async with rotten(tmp_path / "s", clock, fill, b"q/mail\0\0" + kind, 1.0) as engine:
        queue = engine.queue("mail")
        assert len(await queue.list("delayed" if delay else "ready", limit=10_000)) < N
        clock.jump(30)  # so that it begins behind the last row, in its block
        publish(tmp_path / "s", [NewTask(n, delay=delay) for n in range(300)], clock=clock)
        with pytest.raises(CorruptionError, match="the load waits"):
            await engine.ingest()
        assert engine._state.shards[0].coalescer.takes_writes
        await queue.enqueue("new")
    async with lodeq.open(tmp_path / "s", clock=clock, inbox=False, recovery="salvage") as engine:
        (job,) = (await engine.ingest()).jobs
        assert (job.state, job.tasks) == ("done", 300)


@pytest.mark.parametrize("at", [0.3, 0.7])
async def test_a_load_that_comes_in_behind_a_damaged_block_ends(tmp_path, clock, at):
    """Its counters cannot be held against rows of which some cannot be read: that is said."""
    async with rotten(tmp_path / "s", clock, fill_ready, b"q/mail\0\0r", at) as engine:
        queue = engine.queue("mail")
        assert len(await queue.list("ready", limit=10_000)) < N  # met: no compaction meets it first
        clock.jump(30)
        publish(tmp_path / "s", [NewTask(f"loaded {n}") for n in range(300)], clock=clock)
        (job,) = (await engine.ingest()).jobs
        assert (job.state, job.tasks) == ("done", 300)
        assert (await queue.stats()).ready == N + 300
        (text,) = (t for t in (await engine.stats()).anomalies if "'j'" in t)
        assert "counters of 'mail'" in text
        assert "salvage" in text
        assert engine._state.shards[0].coalescer.takes_writes
        found = await claim_all(queue)
        assert {f"loaded {n}" for n in range(300)} <= set(found)
        assert (await engine.ingest("j")).jobs[0].state == "known"


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 5])
async def test_a_load_whose_rows_lie_in_a_known_range_is_found(tmp_path, clock, delay):
    """It comes past the commit loop, which would have mirrored them."""

    async def fill(engine):
        await engine.queue("mail").enqueue_many([NewTask(n, delay=delay) for n in range(N)])

    kind = b"d" if delay else b"r"
    async with rotten(tmp_path / "s", clock, fill, b"q/mail\0\0" + kind, 1.0) as engine:
        queue, a = engine.queue("mail"), engine.queue("a")
        assert len(await queue.list("delayed" if delay else "ready", limit=10_000)) < N
        await settle(100)  # the reaper has looked what is there
        clock.jump(1)
        with lodeq.Stage(tmp_path / "s", "j", clock=clock) as stage:
            stage.add([NewTask("first", delay=delay)], queue="a")  # where it begins can be read
            stage.add([NewTask(f"loaded {n}", delay=delay) for n in range(300)], queue="mail")
            assert stage.publish()
        assert (await engine.ingest()).jobs[0].state == "done"
        for _ in range(10):
            await clock.advance(1, turns=40)
        assert await claim_all(a) == ["first"]
        found = await claim_all(queue)
        assert [one for one in found if one in {f"loaded {n}" for n in range(300)}] == [
            f"loaded {n}" for n in range(300)
        ]


@pytest.mark.usefixtures("no_history")
async def test_what_waits_in_a_damaged_block_of_expiry_rows_is_as_health_says(tmp_path, clock):
    """Whatever another table has there: nobody knows its key, so it waits for a salvage."""

    async def fill(engine):
        queue = engine.queue("mail")
        for n in range(400):
            await queue.enqueue(n, ttl=100 + n)  # an expiry row each

    path = tmp_path / "s"
    async with rotten(path, clock, fill, b"e/\0\0\x01", 0.5) as engine:
        queue = engine.queue("new", retention=300)
        for _ in range(2):  # their rows lie among those of the block, and are not looked at yet
            await queue.enqueue("kept")
        await (await queue.claim_one()).complete()
        await (await queue.claim_one()).bury("bad")
        await queue.enqueue("late", ttl=300)
        assert not (await queue.enqueue("once", dedup_key="k", dedup_window=300)).duplicate
        await (await queue.claim(limit=2))[1].complete(keep=False)
        assert await queue.claim_one(lease=3) is None
        await engine.queue("later").enqueue("later", delay=300)
        await engine.queue("later").enqueue("held")
        assert await engine.queue("later").claim_one(lease=300)
        for _ in range(60):
            await clock.advance(8, turns=30)
        (text,) = (t for t in (await engine.health()).reasons if "expiry rows cannot" in t)
        for said in ("a TTL ends a task when it is claimed", "kept beyond their time", "salvage"):
            assert said in text
        stats = await queue.stats()
        assert stats.ready == 1  # its TTL is over
        assert stats.results
        assert await queue.claim_one() is None
        assert (await queue.stats()).ready == 0
        assert not (await queue.enqueue("twice", dedup_key="k")).duplicate
        assert {lease.payload for lease in await engine.queue("later").claim(limit=9)} == {
            "later",
            "held",
        }
    async with lodeq.open(path, clock=clock, inbox=False, recovery="salvage") as engine:
        for _ in range(3):
            await clock.advance(300, turns=60)
        assert (await engine.queue("new").stats()).results == 0
        assert (await engine.verify()).ok


async def test_more_hidden_rows_than_the_mirror_holds_come_as_it_has_room(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr("lodeq.coalescer.unreadable.MIRROR_ROWS_MAX", 100)
    async with rotten(tmp_path / "s", clock, fill_ready, b"q/mail\0\0r", 1.0) as engine:
        queue = engine.queue("mail")
        clock.jump(1)  # behind the last row, in its block: nobody knows of that yet
        wanted = [f"new {n}" for n in range(500)]
        await queue.enqueue_many([NewTask(one) for one in wanted])
        found = []
        for _ in range(20):
            found += await claim_all(queue)
            assert len(engine._state.shards[0].overlay.unreadable._keys) <= 100
            await clock.advance(1, turns=40)
        await queue.enqueue_many([NewTask(one) for one in ("a", "b")])
        found += await claim_all(queue)
        assert [one for one in found if isinstance(one, str)] == [*wanted, "a", "b"]
        assert not any("wait there too" in text for text in (await engine.health()).reasons)


async def test_rows_between_two_damaged_blocks_are_claimed_where_these_are_taken_for_one(
    tmp_path, clock
):
    path = tmp_path / "s"
    async with lodeq.open(path, clock=clock, inbox=False) as engine:
        await engine.queue("a").enqueue_many([NewTask(n) for n in range(600)])
        await fill_ready(engine)
        engine._state.shards[0].store.flush()
    rot(path, b"q/mail\0\0r", 0.0)  # the head: nothing before it tells how far apart rows are
    rot(path, b"q/mail\0\0r", 1.0)  # and the last, nothing behind it
    async with lodeq.open(path, clock=clock, inbox=False) as engine:
        queue = engine.queue("mail")
        found = await claim_all(queue)
        for _ in range(5):
            await clock.advance(1, turns=40)
            found += await claim_all(queue)
        assert 0 < N - len(found) <= 450
        assert len(set(found)) == len(found)
        dead = (await queue.stats()).dead  # the last block has the first records, too
        assert (await queue.stats()).ready + dead == N - len(found)
