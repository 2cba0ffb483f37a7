"""Loads that were staged outside come in whole, once, or not at all."""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from support_behaviour import until
from support_ingest import create, inbox_of, manifest_of, publish, refusal, rewrite, staged, whole
from support_loop import on_loop
from support_replication import Cluster

import lodeq
from lodeq import NewTask
from lodeq.engine.bulk import inbox, sst
from lodeq.engine.records.keyspace import GHOST, INGESTED
from lodeq.engine.records.rows import FORMAT_VERSION
from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.bulk import conflicts, ingest, load
from lodeq.repository.bulk.stage import SIDE_BY_SIDE
from lodeq.segments.journal import open_tailer
from lodeq.segments.lifecycle import EventKind, events
from lodeq.testing import ManualClock


def opened(path: Path, **how: Any) -> Any:
    return lodeq.open(path, inbox=False, **how)


async def take(engine: lodeq.Engine, queue: str = "mail") -> list[Any]:
    """Claim and complete all that is ready; payloads in order."""
    out: list[Any] = []
    while leases := await engine.queue(queue).claim(limit=300):
        out += [lease.payload for lease in leases]
        await engine.complete_many([(lease, None) for lease in leases])
    return out


# -- the round ---------------------------------------------------------------------------------


@on_loop
async def test_a_load_comes_in_beside_live_tasks_and_all_are_claimed_in_order(tmp_path: Path):
    async with opened(tmp_path / "s", shards=3) as engine:
        mail = engine.queue("mail")
        await mail.enqueue("first", priority=4)
        tasks = [NewTask(n, priority=n % 10) for n in range(1000)]
        ids = publish(tmp_path / "s", tasks)
        await mail.enqueue("last", priority=4)
        assert (await engine.stats()).ready == 2  # nothing of it yet
        report = await engine.ingest()
        assert report == lodeq.IngestReport((lodeq.IngestedJob("j", "done", 1000),))
        await whole(engine, 1002)
        task = await engine.get(ids[7])
        assert task is not None
        assert (task.payload, task.state, task.priority) == (7, "ready", 7)
        wanted = sorted(range(1000), key=lambda n: (-(n % 10), n))
        at = 1000 * 5 // 10
        wanted[at:at] = ["first"]
        wanted[at + 101 : at + 101] = ["last"]
        assert await take(engine) == wanted
        await whole(engine, 0)
    assert inbox_of(tmp_path / "s") == {"": [], "staged": [], "done": ["j.json"], "refused": []}


@on_loop
async def test_a_window_that_is_full_lets_what_comes_in_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as engine:
        mail = engine.queue("mail")
        stage = lodeq.Stage(tmp_path / "s", "j")
        stage.add([NewTask("a")], queue="mail")
        await mail.enqueue_many([NewTask(n) for n in range(1500)])  # more than the window holds
        stage.add([NewTask("b")], queue="mail")
        assert stage.publish()
        (lease,) = await mail.claim()  # is ahead of what comes in
        await engine.ingest()
        await lease.release()
        await whole(engine, 1502)
        assert await take(engine) == ["a", *range(1500), "b"]


@on_loop
async def test_options_are_those_of_an_enqueue(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path)
    stage = lodeq.Stage(path, "j")
    plain, delayed, held = stage.add(
        [
            NewTask({"a": 1}, headers={"h": "v"}, max_attempts=1, ttl=3600),
            NewTask(b"later", delay=900, priority=9),
            NewTask(b"once", dedup_key="k", dedup_window=60, tenant="acme"),
        ],
        queue="mail",
        retention=7,
    )
    stage.add([NewTask("x" * 200_000, queue="other", shard_key="s")])
    assert stage.publish()
    async with opened(path) as engine:
        assert (await engine.ingest()).tasks == 4
        await whole(engine, 3, 1)
        later = await engine.get(delayed)
        assert later is not None
        assert later.state == "delayed"
        assert later.due_at is not None
        again = await engine.queue("mail", tenant="acme").enqueue(b"", dedup_key="k")
        assert again == lodeq.Receipt(held, duplicate=True)
        (lease,) = await engine.queue("mail").claim(limit=9)
        assert (lease.task_id, lease.payload, lease.headers) == (plain, {"a": 1}, {"h": "v"})
        await lease.nack(reason="no")  # its one attempt
        assert (await engine.stats()).dead == 1
        (large,) = await engine.queue("other").claim()
        assert large.payload == "x" * 200_000
        await large.complete()
        assert (await engine.verify()).ok


@on_loop
async def test_what_falls_due_and_what_expires_does(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path)
    publish(path, [NewTask("due", delay=0.001), NewTask("gone", ttl=0.001)])
    async with opened(path) as engine:
        await engine.ingest()
        (lease,) = await engine.queue("mail").claim(limit=1, wait=20)
        assert lease.payload == "due"
        await lease.complete()
        assert await engine.queue("mail").claim() == []
        await whole(engine, 0)


@on_loop
async def test_a_waiting_claim_gets_what_comes_in(tmp_path: Path) -> None:
    async with opened(tmp_path / "s") as engine:
        claim = asyncio.ensure_future(engine.queue("mail").claim(limit=5, wait=20))
        await asyncio.sleep(0)
        publish(tmp_path / "s", [NewTask(1), NewTask(2)])
        await engine.ingest()
        assert [lease.payload for lease in await claim] == [1, 2]


@on_loop
async def test_the_background_takes_what_is_published(tmp_path: Path) -> None:
    async with lodeq.open(tmp_path / "s") as engine:
        publish(tmp_path / "s", [NewTask(1)])
        engine._runtime._watch_disk()  # what a timer does once a second
        (lease,) = await engine.queue("mail").claim(wait=30)
        assert lease.payload == 1
        await until(lambda: inbox_of(tmp_path / "s")["done"])


@on_loop
async def test_unkeyed_tasks_are_spread(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path, 4)
    publish(path, [NewTask(n) for n in range(8 * SIDE_BY_SIDE)])
    rows = [one.ready_rows for one in manifest_of(path).shard_queues]
    assert rows == [2 * SIDE_BY_SIDE] * 4


@on_loop
async def test_tasks_without_options_have_the_rows_of_any_others(tmp_path: Path) -> None:
    """They are staged by a loop of their own: byte for byte what the general way makes."""
    payloads = [b"", b"x" * 300, "text", None, {"a": [1]}] * 200
    made = []
    for name in ("plain", "any"):
        await create(tmp_path / name, 3)
        load = lodeq.Stage(
            tmp_path / name, "j", run_bytes=100_000, clock=ManualClock(), rng=SeededRng(5)
        )
        with load as stage:
            if name == "plain":
                ids = stage.add([NewTask(p) for p in payloads[:7]], queue="mail", tenant="t")
                ids += stage.add([NewTask(p) for p in payloads[7:]], queue="mail", tenant="t")
            else:
                ids = stage.add([NewTask(p, "mail", "t") for p in payloads])
            assert (stage.tasks, len(set(ids))) == (1000, 1000)
            stage.publish()
        manifest = manifest_of(tmp_path / name)
        assert len(manifest.files) > 6  # several runs
        async with opened(tmp_path / name, clock=ManualClock()) as engine:
            await engine.ingest()
            await whole(engine, 1000)
            stores = [shard.store for shard in engine._state.shards]
            rows = [store.scan(b"q", b"u", 10_000) for store in stores]
        made.append((ids, rows, manifest.shard_queues, manifest.seq_max))
    assert made[0] == made[1]


@on_loop
async def test_the_loop_has_its_turn_between_slices(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(3000)])
        turns: list[str] = []
        looked: list[int] = []
        inner = conflicts.Conflicts._check

        def look(self: Any, tasks: Any) -> None:
            looked.append(len(tasks))
            turns.append("look")
            inner(self, tasks)

        monkeypatch.setattr(conflicts.Conflicts, "_check", look)
        loop, is_over = asyncio.get_running_loop(), False

        def tick() -> None:
            turns.append("turn")
            if not is_over:
                loop.call_soon(tick)

        tick()
        await engine.ingest()
        is_over = True
        assert sum(looked) == 3000
        assert max(looked) <= conflicts.SLICE
        at = [i for i, what in enumerate(turns) if what == "look"]
        assert all("turn" in turns[a:b] for a, b in itertools.pairwise(at))
        await whole(engine, 3000)


# -- dedup keys --------------------------------------------------------------------------------


@on_loop
async def test_a_key_that_is_held_refuses_the_load(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        held = await engine.queue("mail").enqueue("live", dedup_key="k5")
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(20)])
        (job,) = (await engine.ingest()).jobs
        assert job.state == "refused"
        assert "on_conflict='skip'" in job.reason
        assert refusal(path)["error"] == "DuplicateTaskError"
        await whole(engine, 1)
        assert (await engine.get(held.id)) is not None
        assert (await engine.ingest("j")).jobs == (job,)
        assert await take(engine) == ["live"]
        assert inbox_of(path)["staged"] == ["j"]  # for whoever looks into it
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(20)])  # nobody holds it now
        assert (await engine.ingest("j")).jobs == (lodeq.IngestedJob("j", "done", 20),)
        assert (await engine.ingest("j")).jobs == (lodeq.IngestedJob("j", "known", 20),)


@on_loop
async def test_skip_leaves_out_the_task_and_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        mail = engine.queue("mail")
        for n in (3, 4):
            await mail.enqueue("live", dedup_key=f"k{n}")
        with_window = await mail.enqueue("over", dedup_key="k5", dedup_window=600, priority=9)
        (lease,) = await mail.claim()
        await lease.complete()
        tasks = [NewTask(n, dedup_key=f"k{n}", delay=60 if n == 4 else None) for n in range(10)]
        ids = publish(path, tasks, on_conflict="skip")
        report = await engine.ingest()
        assert report.jobs[0] == lodeq.IngestedJob("j", "done", 7, skipped=3)
        await whole(engine, 9)
        assert [await engine.get(ids[n]) for n in (3, 4, 5)] == [None] * 3
        assert (await mail.enqueue("", dedup_key="k5")).id == with_window.id
        assert (await mail.enqueue("", dedup_key="k6")).id == ids[6]
        assert await take(engine) == ["live", "live", 0, 1, 2, 6, 7, 8, 9]
        await whole(engine, 0)


@on_loop
async def test_replace_ends_the_holder_unless_it_is_leased(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        mail = engine.queue("mail")
        leased = await mail.enqueue("leased", dedup_key="k0", priority=9)
        (lease,) = await mail.claim()
        ready = await mail.enqueue("ready", dedup_key="k1")
        delayed = await mail.enqueue("delayed", dedup_key="k2", dedup_window=600, delay=600)
        tasks = [NewTask(n, dedup_key=f"k{n}") for n in range(4)]
        ids = publish(path, tasks, on_conflict="replace")
        (job,) = (await engine.ingest()).jobs
        assert job == lodeq.IngestedJob("j", "done", 3, skipped=1, replaced=2)
        for receipt, n in ((ready, 1), (delayed, 2)):
            result = await engine.result(receipt.id)
            assert result is not None
            assert result.error == f"replaced by {ids[n]}"
        await lease.complete()
        assert (await mail.enqueue("", dedup_key="k0")).id != leased.id  # it went with its task
        await whole(engine, 4)
        assert await take(engine) == [1, 2, 3, ""]
        await whole(engine, 0)


@on_loop
async def test_a_key_that_is_taken_while_it_is_looked_up_is_seen(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        mail = engine.queue("mail")
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(5)])
        inner = conflicts.Conflicts.check_keys

        async def look(self: Any) -> None:
            await inner(self)
            await mail.enqueue("late", dedup_key="k3")

        monkeypatch.setattr(conflicts.Conflicts, "check_keys", look)
        assert (await engine.ingest()).jobs[0].state == "refused"
        await whole(engine, 1)


@on_loop
async def test_who_takes_a_key_after_the_decision_keeps_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        mail = engine.queue("mail")
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(5)])
        late: list[Any] = []
        inner = engine._runtime._flush

        async def flush(shard: Any) -> None:
            await inner(shard)
            if not late:
                late.append(await mail.enqueue("late", dedup_key="k3"))

        monkeypatch.setattr(engine._runtime.ingester, "_flush", flush)
        (job,) = (await engine.ingest()).jobs
        assert job == lodeq.IngestedJob("j", "done", 4, skipped=1)
        await whole(engine, 5)
        assert (await mail.enqueue("", dedup_key="k3")).id == late[0].id
        assert all(shard.coalescer.watch is None for shard in engine._state.shards)


@on_loop
async def test_a_holder_that_ends_meanwhile_does_not_take_the_new_key_along(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        mail = engine.queue("mail")
        await mail.enqueue("old", dedup_key="k1")
        (lease,) = await mail.claim()
        (new,) = publish(path, [NewTask("new", dedup_key="k1")], on_conflict="skip")
        inner = engine._runtime._flush

        async def flush(shard: Any) -> None:
            await inner(shard)
            if lease.is_live:
                await lease.complete()

        monkeypatch.setattr(engine._runtime.ingester, "_flush", flush)
        assert (await engine.ingest()).jobs[0] == lodeq.IngestedJob("j", "done", 1)
        await whole(engine, 1)
        assert (await mail.enqueue("", dedup_key="k1")).id == new


# -- what is refused ---------------------------------------------------------------------------


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def damage_sst(path: Path) -> None:
    flip(sorted(staged(path).glob("*-t*.sst"))[0])


def cut_sst(path: Path) -> None:
    file = sorted(staged(path).glob("*-q*.sst"))[0]
    os.truncate(file, file.stat().st_size - 1)


def lose_sst(path: Path) -> None:
    sorted(staged(path).glob("*-g*.sst"))[0].unlink()


def damage_keys(path: Path) -> None:
    flip(sorted(staged(path).glob("*-keys"))[0])


def cut_manifest(path: Path) -> None:
    file = path / "inbox" / "j.json"
    os.truncate(file, file.stat().st_size - 9)


def newer_manifest(path: Path) -> None:
    rewrite(path, store_format=FORMAT_VERSION + 1)


def other_shards(path: Path) -> None:
    rewrite(path, shards=3)


def other_store(path: Path) -> None:
    rewrite(path, store_id=bytes(16))


def untold_keys(path: Path) -> None:
    rewrite(path, files=tuple(f for f in manifest_of(path).files if f.family != "keys"))


def from_the_future(path: Path) -> None:
    rewrite(path, seq_max=1 << 60)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (damage_sst, "CorruptionError"),
        (cut_sst, "CorruptionError"),
        (lose_sst, "CorruptionError"),
        (damage_keys, "CorruptionError"),
        (cut_manifest, "CorruptionError"),
        (newer_manifest, "FormatTooNewError"),
        (other_shards, "ShardCountError"),
        (other_store, "UsageError"),
        (untold_keys, "UsageError"),
        (from_the_future, "UsageError"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@on_loop
async def test_what_is_wrong_is_refused_whole(tmp_path: Path, spoil: Any, error: str) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        await engine.queue("mail").enqueue("live")
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(40)])
        spoil(path)
        (job,) = (await engine.ingest()).jobs
        assert job.state == "refused"
        assert job.reason
        assert refusal(path)["error"] == error
        assert inbox_of(path)[""] == []
        assert "j.json.manifest" in inbox_of(path)["refused"]
        await whole(engine, 1)
        assert (await engine.ingest()).jobs == ()


@on_loop
async def test_who_takes_no_loads_says_so(tmp_path: Path) -> None:
    from lodeq.testing import open as open_testing

    async with open_testing() as engine:
        with pytest.raises(lodeq.UsageError, match="in memory"):
            await engine.ingest()
    async with opened(tmp_path / "s") as engine:
        with pytest.raises(lodeq.UsageError, match="publish it first"):
            await engine.ingest("nothing")
        with pytest.raises(lodeq.UsageError, match="job"):
            await engine.ingest("../lock")
        engine._state.is_disk_low = True
        with pytest.raises(lodeq.StorageFullError):
            await engine.ingest()


@on_loop
async def test_a_replica_takes_no_loads(tmp_path: Path) -> None:
    cluster = Cluster()
    async with lodeq.open(tmp_path / "s", replicator=cluster.node("a")) as engine:
        with pytest.raises(lodeq.UsageError, match="replica"):
            await engine.ingest()
        assert not engine._runtime.ingester.is_due


@on_loop
async def test_a_disk_that_is_full_refuses_no_load(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        publish(path, [NewTask(n) for n in range(5)])

        def full(*args: Any, **how: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(sst.os, "fsync", full)  # of the patch
        with pytest.raises(lodeq.StorageFullError):
            await engine.ingest()
        monkeypatch.undo()
        assert inbox_of(path)[""] == ["j.json"]
        await whole(engine, 0)
        assert (await engine.ingest()).tasks == 5
        await whole(engine, 5)


@on_loop
async def test_a_repair_counts_what_was_not_counted(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    engine = await opened(path, shards=1)
    publish(path, [NewTask(n) for n in range(5)])

    def stop(*args: Any) -> None:
        raise StopError

    monkeypatch.setattr(load.Load, "update_state", stop)
    with pytest.raises(StopError):
        await engine.ingest()
    assert (await engine.verify()).ok  # the row says what the counters do not
    await engine.close()
    monkeypatch.undo()
    async with opened(path, recovery="salvage") as engine:
        await engine.ingest()
        await whole(engine, 5)


# -- once --------------------------------------------------------------------------------------


@on_loop
async def test_a_job_comes_in_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n) for n in range(10)])
        copy = (path / "inbox" / "j.json").read_bytes()
        with lodeq.Stage(path, "j") as again:  # a run of the same commit, before it is taken
            again.add([NewTask("again")], queue="mail")
            assert again.is_published
            assert not again.publish()
        assert (await engine.ingest()).tasks == 10
        (path / "inbox" / "j.json").write_bytes(copy)  # the manifest once more
        assert (await engine.ingest()).jobs == (lodeq.IngestedJob("j", "known", 10),)
        with lodeq.Stage(path, "j") as again:
            again.add([NewTask("again")], queue="mail")
            assert not again.publish()
        (path / "inbox" / "done" / "j.json").unlink()  # all that an operator may tidy up
        publish(path, [NewTask("again")])
        assert (await engine.ingest("j")).jobs == (lodeq.IngestedJob("j", "known", 10),)
        await whole(engine, 10)
        assert await take(engine) == list(range(10))


@on_loop
async def test_a_stage_that_is_left_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await create(path)
    with lodeq.Stage(path, "j", run_bytes=2000) as stage:
        stage.add([NewTask(n) for n in range(100)], queue="mail")
        assert list(staged(path).iterdir())
    assert not staged(path).exists()
    with pytest.raises(lodeq.ClosedError):
        stage.publish()


# -- killed ------------------------------------------------------------------------------------


class StopError(Exception):
    """The process ends here."""


STEPS = {
    "read": (ingest, "read_pending", 0),
    "verify": (ingest, "verify_files", 0),
    "keys": (load.Load, "read_keys", 0),
    "look": (conflicts.Conflicts, "check_keys", 0),
    "look, second shard": (conflicts.Conflicts, "check_keys", 1),
    "decide": (load.Load, "decide", 0),
    "patch": (load.Load, "patcher", 0),
    "patch, second shard": (load.Load, "patcher", 1),
    "move": (ingest.Ingester, "_move", 0),
    "move, second shard": (ingest.Ingester, "_move", 1),
    "memory": (load.Load, "update_state", 0),
    "memory, second shard": (load.Load, "update_state", 1),
    "recount": (ingest, "recount_load", 0),
    "say what became of it": (inbox, "replace_file", 0),
    "remove the files": (inbox, "_drop_files", 0),
}


@pytest.mark.parametrize("step", STEPS)
@on_loop
async def test_stopped_before_a_step_it_goes_on(
    tmp_path: Path, monkeypatch: Any, step: str
) -> None:
    path = tmp_path / "s"
    await create(path, 2)
    tasks = [NewTask(n, dedup_key=f"k{n}", ttl=900, delay=None if n % 9 else 60) for n in range(90)]
    publish(path, tasks, run_bytes=20_000)
    owner, name, after = STEPS[step]
    inner, calls = getattr(owner, name), []

    def stop(*args: Any, **how: Any) -> Any:
        calls.append(name)
        if len(calls) == 1 + after:
            raise StopError
        return inner(*args, **how)

    monkeypatch.setattr(owner, name, stop)
    engine = await opened(path)
    with pytest.raises(StopError):
        await engine.ingest()
    await engine.close()
    monkeypatch.setattr(owner, name, inner)
    async with opened(path) as engine:
        assert (await engine.stats()).ready in (0, *range(20, 81))  # a shard has it, or not
        assert (await engine.verify()).ok
        await engine.ingest()
        await whole(engine, 80, 10)
        assert sorted(await take(engine)) == [n for n in range(90) if n % 9]
        assert (await engine.verify()).ok
    assert inbox_of(path)[""] == []
    assert inbox_of(path)["done"] == ["j.json"]


@on_loop
async def test_a_half_that_cannot_be_finished_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(40)])
        inner = load.Load.update_state

        def came_in(self: Any, shard: Any) -> None:
            inner(self, shard)
            raise StopError

        monkeypatch.setattr(load.Load, "update_state", came_in)
        with pytest.raises(StopError):
            await engine.ingest()
        monkeypatch.undo()
        for file in staged(path).glob("*.sst"):
            flip(file)
        with pytest.raises(lodeq.CorruptionError, match="stage the load again"):
            await engine.ingest()
        assert inbox_of(path)[""] == ["j.json"]
        assert (await engine.verify()).ok
        await engine._runtime.ingester.run()
        assert "waits in the inbox" in (await engine.health()).reasons[0]
        assert not engine._runtime.ingester.is_due  # not again at once


@on_loop
async def test_a_manifest_that_counts_wrong_is_set_right(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=1) as engine:
        publish(path, [NewTask(n, delay=60 * (n == 3)) for n in range(10)])
        (one,) = manifest_of(path).shard_queues
        rewrite(path, shard_queues=(one._replace(ready=((5, 7, one.ready[0][2]),)),))
        assert (await engine.ingest()).jobs[0].state == "done"
        assert "+2 ready" in (await engine.stats()).anomalies[0]
        assert (await engine.verify()).ok
        assert await take(engine) == [0, 1, 2, *range(4, 10)]


@on_loop
async def test_a_mark_that_cannot_be_read_lets_the_load_wait_and_says_what_to_do(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    get = RocksStore.get

    def damaged(self: Any, key: bytes) -> bytes | None:
        if key.startswith(INGESTED):
            raise lodeq.CorruptionError("block checksum mismatch")
        return get(self, key)

    async with opened(path, shards=1) as engine:
        publish(path, [NewTask(n) for n in range(10)])
        monkeypatch.setattr(RocksStore, "get", damaged)
        with pytest.raises(lodeq.CorruptionError, match=r"shard 0 .*'j'.*salvage.*the load waits"):
            await engine.ingest()
        await engine.checkpoint(tmp_path / "copy")  # nobody knows: it does not wait for that
        monkeypatch.undo()
        assert (await engine.ingest()).jobs[0].state == "done"
        await whole(engine, 10)


@on_loop
@pytest.mark.parametrize("has_old", [False, True])
async def test_dedup_keys_that_cannot_be_read_let_their_load_wait_and_say_why(
    tmp_path: Path, monkeypatch: Any, has_old: bool
) -> None:
    """A load that went on might bring a task a second time; one without keys need not wait."""
    path = tmp_path / "s"
    multi_get, looks = RocksStore.multi_get, itertools.count()

    def damaged(self: Any, keys: Any) -> list[bytes | None]:
        if all(key.startswith(GHOST) for key in keys) and next(looks) >= has_old:
            raise lodeq.CorruptionError("block checksum mismatch")
        return multi_get(self, keys)

    async with opened(path, shards=1) as engine:
        await engine.queue("mail").enqueue("held", dedup_key="k3", dedup_window=3600)
        publish(path, [NewTask(n, dedup_key=f"k{n}") for n in range(10)], on_conflict="skip")
        publish(path, [NewTask("free")], job="k")
        engine._state.shards[0].old_ghosts = int(has_old)
        monkeypatch.setattr(RocksStore, "multi_get", damaged)
        with pytest.raises(
            lodeq.CorruptionError,
            match=r"dedup keys of load 'j' .*shard 0.*salvage.*the load waits",
        ):
            await engine.ingest()
        assert inbox_of(path)["done"] == ["k.json"]
        await engine._runtime.ingester.run()
        (reason,) = (await engine.health()).reasons
        assert "waits in the inbox: " in reason
        assert "dedup keys of load 'j'" in reason
        monkeypatch.undo()
        engine._state.shards[0].old_ghosts = 0
        job = (await engine.ingest()).jobs[0]
        assert (job.state, job.tasks, job.skipped) == ("done", 9, 1)
        assert (await engine.health()).ok
        await whole(engine, 11)


@on_loop
async def test_a_damaged_mark_lets_the_load_wait_and_says_what_to_do(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    get = RocksStore.get
    async with opened(path, shards=1) as engine:
        publish(path, [NewTask(n) for n in range(10)])
        monkeypatch.setattr(
            RocksStore,
            "get",
            lambda self, key: b"x" if key.startswith(INGESTED) else get(self, key),
        )
        with pytest.raises(
            lodeq.CorruptionError, match=r"shard 0 has load 'j'.*another job.*waits"
        ):
            await engine.ingest()
        monkeypatch.undo()
        assert (await engine.ingest()).jobs[0].state == "done"


# -- the lifecycle journal ---------------------------------------------------------------------


@on_loop
async def test_a_load_is_one_event_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=1, journal="tasks") as engine:
        publish(path, [NewTask(n, delay=60 * (n == 3)) for n in range(10)])
        await engine.ingest()
        assert (await engine.verify()).ok
        tailer = open_tailer(path / "journals" / "tasks", clock=SystemClock())
        await until(lambda: not engine._runtime.event_publisher.is_behind)
        told = [event for record in await tailer.read(wait=5) for event in events(record)]
        tailer.close()
    loads = [event for event in told if getattr(event, "kind", None) == EventKind.INGESTED]
    assert [event.reason for event in loads] == ['{"job": "j", "ready": 9, "delayed": 1}']
