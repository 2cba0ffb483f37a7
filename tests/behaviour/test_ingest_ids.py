"""Loads whose ids come from outside: one that the store has already never overwrites a task."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from support_ingest import (
    create,
    inbox_of,
    manifest_of,
    publish,
    publish_as,
    refusal,
    rewrite,
    whole,
)
from support_loop import on_loop

import lodeq
from lodeq import NewTask
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.bulk import id_check, ingest, load

IDS = IdSource(SeededRng(27))
NOW_MS = 1_700_000_000_000


def opened(path: Path, **how: Any) -> Any:
    return lodeq.open(path, inbox=False, **how)


def drawn(count: int, slot: int = 7) -> list[bytes]:
    return [IDS.new(NOW_MS + n, slot) for n in range(count)]


async def payloads(engine: lodeq.Engine) -> list[Any]:
    """Claim and complete all that is ready."""
    out: list[Any] = []
    while leases := await engine.queue("mail").claim(limit=300):
        out += [lease.payload for lease in leases]
        assert len({lease.task_id for lease in leases}) == len(leases)
        await engine.complete_many([(lease, None) for lease in leases])
    return out


@on_loop
async def test_an_id_that_a_load_before_has_brought_refuses_the_load(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ids = drawn(3)
    async with opened(path, shards=2) as engine:
        publish_as(path, [(ids[0], NewTask("first")), (ids[1], NewTask("other"))], "a")
        assert (await engine.ingest()).ok
        publish_as(path, [(ids[0], NewTask("second", priority=7)), (ids[2], NewTask(3))], "b")
        (job,) = (await engine.ingest()).jobs
        assert job.state == "refused"
        assert "1 of its ids" in job.reason
        assert str(lodeq.TaskId(ids[0])) in job.reason
        assert refusal(path, "b")["error"] == "DuplicateTaskError"
        assert "b" in inbox_of(path)["staged"]  # set aside, for whoever looks into it
        await whole(engine, 2)
        assert await payloads(engine) == ["first", "other"]
        await whole(engine, 0)


async def each_state(engine: lodeq.Engine) -> dict[str, bytes]:
    """The id of a task in each state that keeps one."""
    mail, found = engine.queue("mail"), {}
    for state in ("leased", "dead", "completed", "cancelled"):
        found[state] = (await mail.enqueue(state, priority=9)).id
        if state == "cancelled":
            await engine.cancel(found[state])
            continue
        (lease,) = await mail.claim()
        if state == "dead":
            await lease.bury("no")
        elif state == "completed":
            await lease.complete("a result")
    found["delayed"] = (await mail.enqueue("delayed", delay=600)).id
    found["ready"] = (await mail.enqueue("ready", ttl=900)).id
    found["nacked"] = (await mail.enqueue("nacked", priority=9)).id
    (lease,) = await mail.claim()
    await lease.nack(delay=600)
    return found


@pytest.mark.parametrize(
    "state", ["ready", "delayed", "nacked", "leased", "dead", "completed", "cancelled"]
)
@on_loop
async def test_whatever_the_state_of_the_task_its_id_is_held(tmp_path: Path, state: str) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        held = (await each_state(engine))[state]
        task, result = await engine.get(held), await engine.result(held)
        publish_as(path, [(held, NewTask("again")), (drawn(1)[0], NewTask("new"))])
        assert [job.state for job in (await engine.ingest()).jobs] == ["refused"]
        assert (await engine.get(held), await engine.result(held)) == (task, result)
        await whole(engine, 1, 2)


@pytest.mark.parametrize("policy", ["skip", "replace"])
@on_loop
async def test_tasks_whose_id_is_held_stay_out_and_the_others_come_in(
    tmp_path: Path, policy: Any
) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=2) as engine:
        states = await each_state(engine)
        before = {state: await engine.get(task_id) for state, task_id in states.items()}
        (free, late) = drawn(2)
        again = [
            (task_id, NewTask("again", priority=n)) for n, task_id in enumerate(states.values())
        ]
        publish_as(
            path,
            [*again, (free, NewTask("new")), (late, NewTask("late", delay=60))],
            on_conflict=policy,
        )
        (job,) = (await engine.ingest()).jobs
        assert job == lodeq.IngestedJob("j", "done", 2, skipped=len(states))
        assert {state: await engine.get(task_id) for state, task_id in states.items()} == before
        await whole(engine, 2, 3)
        assert await payloads(engine) == ["ready", "new"]
        assert (await engine.verify()).ok
    async with opened(path, recovery="salvage") as engine:
        assert (await engine.verify()).ok
        assert (await engine.get(states["completed"])).state == "completed"


@on_loop
async def test_a_task_loaded_back_with_its_dedup_key_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path) as engine:
        mail = engine.queue("mail")
        held = await mail.enqueue("old", dedup_key="k", dedup_window=600)
        publish_as(path, [(held.id, NewTask("new", dedup_key="k"))], on_conflict="replace")
        (job,) = (await engine.ingest()).jobs
        assert job == lodeq.IngestedJob("j", "done", 0, skipped=1)
        assert (await mail.enqueue("", dedup_key="k")) == lodeq.Receipt(held.id, duplicate=True)
        assert await payloads(engine) == ["old"]
        await whole(engine, 0)


@on_loop
async def test_a_key_whose_task_stays_out_for_its_id_is_free(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=1) as engine:
        mail = engine.queue("mail")
        held = await mail.enqueue("old")
        publish_as(path, [(held.id, NewTask("new", dedup_key="k"))], on_conflict="skip")
        assert (await engine.ingest()).jobs[0].skipped == 1
        assert not (await mail.enqueue("fresh", dedup_key="k")).duplicate
        await whole(engine, 2)


@on_loop
async def test_the_files_of_a_load_under_another_name_bring_nothing_twice(tmp_path: Path) -> None:
    """The rows are the same to the byte, those of the index too."""
    path, other = tmp_path / "s", tmp_path / "copy"
    async with opened(path, shards=1) as engine:
        publish(path, [NewTask(n) for n in range(5)])
        manifest = manifest_of(path)
        (path / "inbox" / "staged" / "j").rename(other)
        (path / "inbox" / "staged" / "j").mkdir()
        for file in other.iterdir():
            (path / "inbox" / "staged" / "j" / file.name).write_bytes(file.read_bytes())
        assert (await engine.ingest()).tasks == 5
        publish(path, [NewTask("x")], "again", on_conflict="skip")
        for file in other.iterdir():
            (path / "inbox" / "staged" / "again" / file.name).write_bytes(file.read_bytes())
        rewrite(path, "again", files=manifest.files, shard_queues=manifest.shard_queues)
        (job,) = (await engine.ingest()).jobs
        assert (job.state, job.tasks, job.skipped) == ("done", 0, 5)
        await whole(engine, 5)
        assert await payloads(engine) == list(range(5))


@on_loop
async def test_an_id_twice_in_one_load_is_refused_with_every_policy(tmp_path: Path) -> None:
    path = tmp_path / "s"
    ids = drawn(40)
    await create(path, 2)
    with pytest.raises(lodeq.DuplicateTaskError, match="two tasks of the load have the id"):
        publish_as(path, [(ids[0], NewTask(1)), (ids[0], NewTask(2))], "one-run")
    twice = [(task_id, NewTask("x" * 500)) for task_id in [*ids, ids[3]]]
    publish_as(path, twice, "runs", run_bytes=4000, on_conflict="skip")
    assert sum(mark.family == "ids" for mark in manifest_of(path, "runs").files) > 3
    async with opened(path) as engine:
        (job,) = (await engine.ingest()).jobs
        assert (job.state, refusal(path, "runs")["error"]) == ("refused", "DuplicateTaskError")
        assert str(lodeq.TaskId(ids[3])) in job.reason
        await whole(engine, 0)


@pytest.mark.parametrize("at", [6, 8])
@on_loop
async def test_an_id_that_is_none_of_ours_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "s"
    await create(path, 2)
    good, bad = drawn(1)[0], bytearray(drawn(1)[0])
    bad[at] = bad[at] & 0x0F | 0x40
    publish_as(path, [(good, NewTask(1)), (bytes(bad), NewTask(2))])
    async with opened(path) as engine:
        (job,) = (await engine.ingest()).jobs
        assert job.state == "refused"
        assert f"{lodeq.TaskId(bytes(bad))} is no id of a task" in job.reason
        await whole(engine, 0)


@on_loop
async def test_a_task_that_ends_meanwhile_stays_ended(tmp_path: Path, monkeypatch: Any) -> None:
    """Its row was still there when the patch was written that puts it back."""
    path = tmp_path / "s"
    async with opened(path, shards=1) as engine:
        mail = engine.queue("mail")
        held = await mail.enqueue("old")
        (lease,) = await mail.claim()
        publish_as(path, [(held.id, NewTask("again"))], on_conflict="skip")
        inner = engine._runtime._flush

        async def flush(shard: Any) -> None:
            await inner(shard)
            if lease.is_live:
                await lease.complete()

        monkeypatch.setattr(engine._runtime.ingester, "_flush", flush)
        assert (await engine.ingest()).jobs[0].skipped == 1
        assert not lease.is_live
        task = await engine.get(held.id)
        assert task is not None
        assert task.state == "completed"
        await whole(engine, 0)
        assert all(shard.coalescer.watch is None for shard in engine._state.shards)


class StopError(Exception):
    """The process ends here."""


STEPS = {
    "look": (ingest, "find_held", 1),
    "patch": (load.Load, "patcher", 0),
    "patch, second shard": (load.Load, "patcher", 1),
    "memory": (load.Load, "update_state", 0),
    "memory, second shard": (load.Load, "update_state", 1),
    "recount": (ingest, "recount_load", 0),
}


@pytest.mark.parametrize("step", STEPS)
@on_loop
async def test_stopped_before_a_step_a_load_does_not_meet_itself(
    tmp_path: Path, monkeypatch: Any, step: str
) -> None:
    path = tmp_path / "s"
    owner, name, after = STEPS[step]
    inner, calls = getattr(owner, name), itertools.count()

    def stop(*args: Any, **how: Any) -> Any:
        if next(calls) == after:
            raise StopError
        return inner(*args, **how)

    async with opened(path, shards=2) as engine:
        held = [(await engine.queue("mail").enqueue("live")).id for _ in range(6)]
    ids = drawn(10, 1) + drawn(10, 4000)
    tasks = [(task_id, NewTask("new", ttl=900)) for task_id in ids]
    publish_as(path, [*tasks, *((one, NewTask("again")) for one in held)], on_conflict="skip")
    monkeypatch.setattr(owner, name, stop)
    engine = await opened(path)
    with pytest.raises(StopError):
        await engine.ingest()
    await engine.close()
    monkeypatch.setattr(owner, name, inner)
    async with opened(path) as engine:
        assert (await engine.verify()).ok
        (job,) = (await engine.ingest()).jobs
        assert (job.tasks, job.skipped) == (20, 6)
        await whole(engine, 26)
        assert sorted(await payloads(engine)) == ["live"] * 6 + ["new"] * 20


@on_loop
async def test_ids_that_cannot_be_read_let_their_load_wait_and_say_why(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    multi_get = RocksStore.multi_get

    def damaged(self: Any, keys: Any) -> list[bytes | None]:
        if keys[0].startswith(b"t/"):
            raise lodeq.CorruptionError("block checksum mismatch")
        return multi_get(self, keys)

    async with opened(path, shards=1) as engine:
        held = await engine.queue("mail").enqueue("live")
        publish_as(path, [(held.id, NewTask("again"))])
        monkeypatch.setattr(RocksStore, "multi_get", damaged)
        with pytest.raises(lodeq.CorruptionError, match=r"shard 0 has ids of load 'j'.*waits"):
            await engine.ingest()
        assert inbox_of(path)[""] == ["j.json"]
        monkeypatch.undo()
        assert (await engine.ingest()).jobs[0].state == "refused"
        await whole(engine, 1)


@on_loop
async def test_ids_are_looked_up_in_slices_and_only_where_the_store_has_rows(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "s"
    reads: list[int] = []
    multi_get = RocksStore.multi_get

    def read(self: Any, keys: Any) -> list[bytes | None]:
        reads.append(len(keys))
        return multi_get(self, keys)

    monkeypatch.setattr(RocksStore, "multi_get", read)
    async with opened(path, shards=1) as engine:
        publish_as(path, [(task_id, NewTask(b"")) for task_id in drawn(3000)], "apart")
        await engine.queue("mail").enqueue(b"")  # of another time
        assert (await engine.ingest()).tasks == 3000
        assert reads == []
        publish_as(path, [(task_id, NewTask(b"")) for task_id in drawn(3000)], "among")
        assert (await engine.ingest()).tasks == 3000
        assert max(reads) == id_check.SLICE
        await whole(engine, 6001)


def without_ids(path: Path, job: str = "j") -> None:
    """Make it a load of a release before, which listed no ids."""
    rewrite(path, job, files=tuple(f for f in manifest_of(path, job).files if f.family != "ids"))


@on_loop
async def test_a_load_that_lists_no_ids_comes_in_where_none_can_be_held(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=1) as engine:
        old, new, later = drawn(10), drawn(10), [IDS.new(NOW_MS + 99, 7)]
        publish_as(path, [(task_id, NewTask(1)) for task_id in old], "old")
        without_ids(path, "old")
        assert (await engine.ingest()).tasks == 10
        publish_as(path, [(task_id, NewTask(2)) for task_id in new], "new")
        without_ids(path, "new")
        assert (await engine.ingest()).jobs[0].state == "refused"
        assert refusal(path, "new")["error"] == "FormatTooOldError"
        publish_as(path, [(task_id, NewTask(3)) for task_id in later], "later")
        without_ids(path, "later")
        assert (await engine.ingest()).tasks == 1
        await whole(engine, 11)


@on_loop
async def test_ids_files_that_do_not_list_all_tasks_refuse_the_load(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(path, shards=1) as engine:
        publish(path, [NewTask(n) for n in range(5)])
        marks = manifest_of(path).files
        rewrite(path, files=tuple(m._replace(rows=m.rows - (m.family == "ids")) for m in marks))
        (job,) = (await engine.ingest()).jobs
        assert (job.state, "ids files" in job.reason) == ("refused", True)
        await whole(engine, 0)
