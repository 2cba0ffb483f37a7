"""Workflows over time and over the life of a store: TTL, retention, kills, reshard, cost."""

import asyncio
import shutil

import pytest
from support_behaviour import in_memory
from support_jobs import live
from support_purge import make_plan

import lodeq
from lodeq import NewTask
from lodeq.engine.offline.audit import audit_shard
from lodeq.engine.records import workflow as records
from lodeq.engine.store.memory import MemoryStore
from lodeq.errors import RecoveryRefusedError
from lodeq.repository.api.engine import runtime_of
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.workflows import acts
from lodeq.repository.workflows import joins as joins_module

pytestmark = pytest.mark.anyio
CACHE_BYTES = 8 << 20


def shard_of(engine, task_id):
    return engine._state.shard_of(task_id)


def rows_of(engine, prefix=b"w/"):
    found = []
    for shard in engine._state.shards:
        found += shard.store.scan(prefix, prefix[:-1] + bytes((prefix[-1] + 1,)), 100_000)
    return found


async def fan_out(engine, count=3, *, callback=None, part=None, **options):
    workflow = await engine.workflow(
        callback if callback is not None else NewTask(b"join", "joins"), **options
    )
    ids = await workflow.add([part or NewTask(b"%d" % i, "parts") for i in range(count)])
    await workflow.seal()
    return workflow, ids


async def complete_all(engine, queue="parts"):
    leases = await engine.queue(queue).claim(limit=1024)
    await engine.complete_many([(lease, b"value") for lease in leases])
    return leases


async def test_the_ttl_of_a_member_ends_it_and_counts(clock):
    async with in_memory(clock) as engine:
        workflow, _ = await fan_out(engine, 2, part=NewTask(b"p", "parts", ttl=10))
        await clock.advance(30)
        assert [p.status for p in await workflow.parts_page()] == ["expired", "expired"]
        assert len(await engine.queue("joins").claim(limit=4)) == 1


async def test_the_ttl_of_a_callback_counts_while_it_waits(clock):
    async with in_memory(clock) as engine:
        callback = NewTask(b"join", "joins", ttl=10)
        workflow, _ = await fan_out(engine, 2, callback=callback)
        await clock.advance(30)
        assert (await engine.result(workflow.callback)).status == "expired"
        await complete_all(engine)
        assert await engine.queue("joins").claim() == []
        assert (await workflow.info()).state == "over"


async def test_a_waiting_task_is_never_due(clock):
    async with in_memory(clock) as engine:
        workflow = await engine.workflow(NewTask(b"join", "joins"))
        await clock.advance(10 * 366 * 86_400)
        assert await engine.queue("joins").claim() == []
        assert await engine.queue("joins").list("delayed") == []
        (task,) = await engine.queue("joins").list("waiting")
        assert (task.id, task.state, task.due_at) == (workflow.callback, "waiting", None)


async def test_results_of_members_are_kept_until_the_callback_is_over(clock):
    async with in_memory(clock) as engine:
        workflow, _ = await fan_out(engine, 2)
        (lease,) = await engine.queue("parts").claim()
        await lease.complete(b"early")
        for _ in range(10):
            await clock.advance(3 * 3600)  # thrice the retention
        await complete_all(engine)
        (join,) = await engine.queue("joins").claim()
        assert [p.value for p in await engine.parts_page(join.task_id)] == [b"early", b"value"]
        await join.complete()
        for _ in range(4):
            await clock.advance(3 * 3600)
        assert [p.value for p in await workflow.parts_page()] == [None, None]
        assert [p.status for p in await workflow.parts_page()] == ["completed", "completed"]


async def test_a_delete_leaves_what_a_workflow_may_still_read(clock):
    async with in_memory(clock) as engine:
        workflow, _ = await fan_out(engine, 2)
        await complete_all(engine)
        meant = lodeq.TaskFilter(queue="parts", state="completed")
        report = await engine.act("delete", meant)
        assert (report.done, len(report.refused)) == (0, 2)
        assert "workflow may still read" in next(iter(report.refused.values()))
        (join,) = await engine.queue("joins").claim()
        assert [p.value for p in await workflow.parts_page()] == [b"value"] * 2
        await join.complete()
        assert (await engine.act("delete", meant)).done == 2
        assert (await engine.verify()).ok


def test_a_purge_plan_leaves_what_a_workflow_may_still_read(tmp_path):
    """Results and dead letters of members stay until the callback is over."""
    store = tmp_path / "store"

    async def end(engine):
        workflow = await engine.workflow(NewTask(b"join", "joins"), key="k", on_failure="wait")
        ids = await workflow.add([NewTask(b"p", "parts") for _ in range(4)])
        await workflow.seal()
        for n, lease in enumerate(await engine.queue("parts").claim(limit=4)):
            await (lease.bury("no") if n == 0 else lease.complete(b"v"))
        ends = [(bytes(one), _ended_ms(await engine.result(one))) for one in ids]
        dead = {bytes(task.id) for task in await engine.queue("parts").dead_letters()}
        return sorted(ends), [one for one in sorted(ends) if one[0] in dead]

    results, dead = live(store, end)
    plan = make_plan(store, tmp_path / "plan", results, dead)

    async def purge(engine):
        assert await engine.purge_archived(plan) == lodeq.PurgeReport(0, 0, 5)
        assert (await engine.verify()).ok
        workflow = await engine.workflow(key="k")
        assert await workflow.redrive() == 1
        (lease,) = await engine.queue("parts").claim()
        await lease.complete(b"v")
        (join,) = await engine.queue("joins").claim()
        assert [p.value for p in await engine.parts_page(join.task_id)] == [b"v"] * 4
        await join.complete()
        assert (await engine.purge_archived(plan)).results == 3  # the fourth has ended again
        assert (await engine.verify()).ok

    live(store, purge)


def _ended_ms(result):
    return round(result.finished_at.timestamp() * 1_000_000) // 1000


async def test_a_workflow_is_forgotten_a_week_after_it_is_over(clock):
    async with in_memory(clock) as engine:
        workflow, _ = await fan_out(engine, 300, key="k")
        while await complete_all(engine):
            pass
        await complete_all(engine, "joins")
        await clock.advance(6 * 86_400)
        assert (await workflow.info()).state == "over"
        for _ in range(20):
            await clock.advance(86_400)
        assert rows_of(engine) == []
        with pytest.raises(lodeq.TaskNotFoundError):
            await workflow.info()
        assert (await engine.workflow(key="k")).is_new


async def test_a_reaped_member_that_dies_counts(clock):
    async with in_memory(clock) as engine:
        workflow = await engine.workflow(NewTask(b"join", "joins"))
        await workflow.add([NewTask(b"p", "parts", max_attempts=1)])
        await workflow.seal()
        await engine.queue("parts", lease=10).claim()
        await clock.advance(60)
        (part,) = await workflow.parts_page()
        assert part.status == "dead"
        assert len(await engine.queue("joins").claim()) == 1


async def test_a_retried_member_counts_at_its_last_end_only(clock):
    async with in_memory(clock) as engine:
        workflow, _ = await fan_out(engine, 1)
        for _ in range(3):
            (lease,) = await engine.queue("parts").claim()
            await lease.nack(delay=1)
            assert (await workflow.info()).ended == 0
            await clock.advance(5)
        (lease,) = await engine.queue("parts").claim()
        await lease.release()
        await complete_all(engine)
        assert (await workflow.info()).ended == 1


async def test_a_member_whose_join_a_power_cut_took_leaves_no_edges(clock):
    async with in_memory(clock, shards=1) as engine:
        parts = engine.queue("parts")
        workflow = await engine.workflow()
        await workflow.add([NewTask(b"x", "parts")])
        (shard,) = runtime_of(engine).state.shards
        group = shard.coalescer.begin()
        with group:
            group.ops.append((records.JOIN + bytes(workflow.id), None))
            group.ops.append((records.part_key(bytes(workflow.id), 0), None))
        await shard.coalescer.wait(group)
        (lease,) = await parts.claim()
        assert shard.overlay.has(records.edges_key(lease.task_id))
        await lease.complete()
        assert not shard.overlay.has(records.edges_key(lease.task_id))


async def test_pending_max_counts_waiting_tasks(clock):
    async with in_memory(clock, limits=lodeq.Limits(pending_max=1)) as engine:
        await engine.workflow(NewTask(b"join", "joins"))
        with pytest.raises(lodeq.QueueFullError):
            await engine.queue("joins").enqueue(b"more")
        with pytest.raises(lodeq.QueueFullError):
            await engine.workflow(NewTask(b"join", "joins"))


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_an_end_costs_the_same_however_many_members_there_are(clock, count, monkeypatch):
    async with in_memory(clock) as engine:
        workflow = await engine.workflow(NewTask(b"join", "joins"))
        await workflow.add([NewTask(b"", "parts")] * count)
        await workflow.seal()
        stats = (await engine.stats()).shards[0]
        reads = []
        real = MemoryStore.get
        monkeypatch.setattr(MemoryStore, "get", lambda s, key: reads.append(key) or real(s, key))
        leases = await engine.queue("parts").claim(limit=3)
        first = (await engine.stats()).shards[0]
        reads.clear()
        await leases[0].complete(b"v")
        last = (await engine.stats()).shards[0]
        # Lease, task, result; part and join; counter, expiry and ring row.
        assert last.operations - first.operations == 8
        assert len(reads) == 3  # its edges, its part, the join
        assert last.bytes - first.bytes < 1200
        assert stats.operations > count


# -- over the life of a store ----------------------------------------------------------------


def on_disk(path, **options):
    return lodeq.open(path, block_cache_bytes=CACHE_BYTES, **options)


async def test_a_workflow_outlives_its_process(tmp_path):
    async with on_disk(tmp_path / "s", shards=2) as engine:
        workflow, ids = await fan_out(engine, 3)
        (lease,) = await engine.queue("parts").claim()
        await lease.complete(b"before")
    async with on_disk(tmp_path / "s") as engine:
        assert (await engine.workflow_info(workflow.id)).ended == 1
        await complete_all(engine)
        (join,) = await engine.queue("joins").claim()
        parts = await engine.parts_page(join.task_id)
        assert [p.task_id for p in parts] == ids
        assert [p.value for p in parts] == [b"before", b"value", b"value"]
        assert (await engine.verify()).ok


async def reaped(engine):
    """What the reaper does at its first pass, a second after an open."""
    await runtime_of(engine).reaper.step()


async def _left_halfway(engine, workflow, flags):
    """Write the mark of a cancel or a redrive, and nothing of what follows it."""
    shard = shard_of(engine, workflow.id)
    record = joins_module.join_of(shard, workflow.id)
    group = shard.coalescer.begin()
    with group:
        joins_module.put_join(group, workflow.id, record._replace(flags=record.flags | flags))
    await shard.coalescer.wait(group)


@pytest.mark.parametrize("ended", [0, 1, 3])
async def test_a_cancel_that_was_killed_goes_on_at_the_next_open(tmp_path, ended):
    async with on_disk(tmp_path / "s") as engine:
        workflow, _ = await fan_out(engine, 4)
        for lease in await engine.queue("parts").claim(limit=ended) if ended else ():
            await lease.complete()
        await _left_halfway(engine, workflow, records.CANCELLED_FLAG)
    async with on_disk(tmp_path / "s") as engine:
        await reaped(engine)
        parts = await engine.parts_page(workflow.id)
        assert [p.status for p in parts].count("cancelled") == 4 - ended
        assert (await engine.result(workflow.callback)).status == "cancelled"
        assert (await engine.verify()).ok


async def test_a_cancel_of_a_callback_alone_is_one_batch(tmp_path, monkeypatch):
    """Nothing would go on with it: its join has fired."""
    async with on_disk(tmp_path / "s") as engine:
        workflow, _ = await fan_out(engine, 2)
        await complete_all(engine)
        assert (await engine.get(workflow.callback)).state == "ready"
        monkeypatch.setattr(acts, "_cancel_slices", lambda *_: iter(()))  # killed after the mark
        await engine.cancel_workflow(workflow.id)
        monkeypatch.undo()
    async with on_disk(tmp_path / "s") as engine:
        await reaped(engine)
        assert await engine.queue("joins").claim() == []
        assert (await engine.result(workflow.callback)).status == "cancelled"
        assert (await engine.verify()).ok


async def test_a_redrive_that_was_killed_goes_on_at_the_next_open(tmp_path):
    async with on_disk(tmp_path / "s") as engine:
        workflow, _ = await fan_out(engine, 3, on_failure="wait")
        for lease in await engine.queue("parts").claim(limit=3):
            await lease.bury("torn")
        await _left_halfway(engine, workflow, records.REDRIVING)
    async with on_disk(tmp_path / "s") as engine:
        await reaped(engine)
        assert len(await complete_all(engine)) == 3
        assert len(await engine.queue("joins").claim()) == 1


async def test_an_end_that_was_not_counted_is_asked_for_at_the_next_open(tmp_path, monkeypatch):
    async with on_disk(tmp_path / "s") as engine:
        workflow, _ = await fan_out(engine, 2)
        monkeypatch.setattr(joins_module.Joins, "ended", lambda *args: None)
        await complete_all(engine)
        monkeypatch.undo()
        assert (await engine.workflow_info(workflow.id)).ended == 0
    async with on_disk(tmp_path / "s") as engine:
        await reaped(engine)
        assert len(await engine.queue("joins").claim()) == 1
        assert [p.status for p in await engine.parts_page(workflow.id)] == ["completed"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3, 16])
async def test_a_reshard_keeps_a_workflow_that_is_under_way(tmp_path, shards):
    flows = []
    async with on_disk(tmp_path / "s", shards=4) as engine:
        for n in range(6):
            workflow, _ = await fan_out(engine, 5, key=f"k{n}")
            flows.append(workflow)
        for lease in await engine.queue("parts").claim(limit=11):
            await lease.complete(b"before")
    await asyncio.to_thread(reshard, tmp_path / "s", shards)
    async with on_disk(tmp_path / "s") as engine:
        assert engine.shards == shards
        assert (await engine.verify()).ok
        for n, workflow in enumerate(flows):
            assert (await engine.workflow(key=f"k{n}")).id == workflow.id
        while await complete_all(engine):
            pass
        joins = await engine.queue("joins").claim(limit=32)
        assert {lease.task_id for lease in joins} == {workflow.callback for workflow in flows}
        for lease in joins:
            values = [p.value for p in await engine.parts_page(lease.task_id)]
            assert len(values) == 5
            assert None not in values
        assert (await engine.verify()).ok


async def test_a_checkpoint_has_the_whole_workflow(tmp_path):
    async with on_disk(tmp_path / "s", shards=2) as engine:
        workflow, _ = await fan_out(engine, 3)
        await engine.checkpoint(tmp_path / "c")
        await complete_all(engine)
    await asyncio.to_thread(lodeq.restore, tmp_path / "c", tmp_path / "r")
    async with on_disk(tmp_path / "r") as engine:
        assert (await engine.workflow_info(workflow.id)).ended == 0
        assert len(await complete_all(engine)) == 3
        assert len(await engine.queue("joins").claim()) == 1
        assert (await engine.verify()).ok


# -- what verify says ------------------------------------------------------------------------


async def test_a_dead_letter_of_any_name_is_not_taken_for_a_task_that_waits():
    """At the place of its kind, counted from the end, a long name has a letter of its own."""
    async with in_memory() as engine:
        for queue, tenant in (("pdf", "acme"), ("d" * 40, ""), ("mail", "d" * 40)):
            named = engine.queue(queue, tenant=tenant, max_attempts=1)
            await named.enqueue(b"x")
            (lease,) = await named.claim()
            await lease.bury("no")
        report = await engine.verify()
        assert report.ok, report.findings


async def test_verify_finds_what_does_not_add_up(clock):
    async with in_memory(clock) as engine:
        workflow, (one, *_) = await fan_out(engine, 3)
        assert (await engine.verify()).ok
        shard = shard_of(engine, workflow.id)
        record = joins_module.join_of(shard, workflow.id)
        wrong = {
            "its join says": (records.JOIN + workflow.id, record._replace(ended=1)),
            "has not fired": (records.JOIN + workflow.id, record._replace(parts=3)),
            "its target waits": (records.JOIN + workflow.id, record._replace(state=records.FIRED)),
        }
        for text, (key, value) in wrong.items():
            before = shard.store.get(key)
            parts = []
            if text == "has not fired":
                value = value._replace(ended=3)
                for number in range(3):
                    at = records.part_key(workflow.id, number)
                    part = records.decode_part(shard.store.get(at))._replace(status=1)
                    parts.append((at, shard.store.get(at)))
                    shard.store.write([(at, records.encode_part(part))])
            shard.store.write([(key, records.encode_join(value))])
            found = (await engine.verify()).findings
            assert [f.kind for f in found] == ["workflow"]
            assert text in found[0].detail
            shard.store.write([(key, before), *parts])
        shard.store.write([(records.edges_key(one), None)])
        (found,) = (await engine.verify()).findings
        assert "has no edge" in found.detail


# -- across shards ---------------------------------------------------------------------------


async def _waits_elsewhere(engine, count=6):
    """Tasks of several slots, and one on another shard that waits for them."""
    ids = [(await engine.queue("parts").enqueue(b"p", shard_key=f"k{n}")).id for n in range(count)]
    waits = await engine.enqueue_after(NewTask(b"late", "tops", shard_key="elsewhere"), ids)
    assert {shard_of(engine, one) for one in ids} - {shard_of(engine, waits)}
    return ids, waits


async def _runs_once(engine, waits):
    await reaped(engine)
    await engine.fsync()
    (lease,) = await engine.queue("tops").claim(limit=4)
    assert (lease.task_id, lease.attempt) == (waits, 1)
    assert [p.status for p in await engine.parts_page(waits)] == ["completed"] * 6
    await lease.complete()
    await reaped(engine)
    await engine.fsync()
    await reaped(engine)
    assert rows_of(engine, b"u/") == []
    assert (await engine.verify()).ok


async def test_an_outbox_row_stays_until_its_end_is_synced_where_it_counts(tmp_path, monkeypatch):
    async with on_disk(tmp_path / "s", shards=4) as engine:
        _, waits = await _waits_elsewhere(engine)
        receiver = shard_of(engine, waits)
        monkeypatch.setattr(type(receiver.coalescer), "durable_number", 0)
        await complete_all(engine)
        sent = rows_of(engine, b"u/")
        assert sent
        await reaped(engine)
        await reaped(engine)
        assert (await engine.get(waits)).state == "ready"
        assert rows_of(engine, b"u/") == sent
        monkeypatch.undo()
        await _runs_once(engine, waits)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3, 16])
async def test_a_reshard_keeps_outbox_rows_that_are_under_way(tmp_path, shards):
    async with on_disk(tmp_path / "s", shards=4, reaper=False) as engine:
        _, waits = await _waits_elsewhere(engine)
        await complete_all(engine)
        assert rows_of(engine, b"u/")
    await asyncio.to_thread(reshard, tmp_path / "s", shards)
    async with on_disk(tmp_path / "s") as engine:
        await _runs_once(engine, waits)


@pytest.mark.parametrize("older", ["the waiting task's", "the others'"])
async def test_shards_of_different_times_agree_at_last(tmp_path, older):
    """As in a restore of a checkpoint whose shards were copied one after the other."""
    path, before = tmp_path / "s", tmp_path / "before"
    async with on_disk(path, shards=4, reaper=False) as engine:
        _, waits = await _waits_elsewhere(engine)
        receiver = shard_of(engine, waits).index
    await asyncio.to_thread(shutil.copytree, path, before)
    async with on_disk(path) as engine:
        await complete_all(engine)
        await reaped(engine)
        await engine.fsync()
        await reaped(engine)
        assert rows_of(engine, b"u/") == []
        assert (await engine.get(waits)).state == "ready"
    for shard in range(4):
        if (shard == receiver) is (older == "the waiting task's"):
            for name in (f"shard{shard}", f"watermark{shard}"):
                _replace(before / name, path / name)
    with pytest.raises(RecoveryRefusedError, match="it is an older copy"):
        await on_disk(path).__aenter__()
    async with on_disk(path, recovery="salvage") as engine:
        await reaped(engine)
        await complete_all(engine)  # what the older shards have not seen end
        await _runs_once(engine, waits)


def _replace(source, target):
    if source.is_dir():
        shutil.rmtree(target)
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy(source, target)


async def counted(engine):
    found = (await engine.queues())["waits", ""]
    return found.delayed, found.waiting


@pytest.mark.slow
async def test_waiting_tasks_are_counted_over_the_life_of_a_store(tmp_path, anyio_backend_name):
    path = tmp_path / "store"
    async with lodeq.open(path, shards=2, block_cache_bytes=CACHE_BYTES) as engine:
        queue = engine.queue("waits")
        ids = [(await engine.queue("parts").enqueue(b"p", shard_key=f"{n}")).id for n in range(6)]
        for one in ids:
            await engine.enqueue_after(NewTask(b"w", "waits"), [one])
        await queue.enqueue(b"late", delay=3600)
        assert await counted(engine) == (1, 6)
    async with lodeq.open(path, block_cache_bytes=CACHE_BYTES) as engine:
        assert await counted(engine) == (1, 6)
        assert (await engine.verify()).ok
        (lease,) = await engine.queue("parts").claim()
        await lease.complete()
        assert await counted(engine) == (1, 5)
        assert await engine.cancel((await queue_of(engine).list("waiting"))[0].id)
        assert await counted(engine) == (1, 4)
    for shard in range(2):
        assert audit_shard(str(path), shard).kinds == {}
    reshard(path, shards=3)
    async with lodeq.open(path, block_cache_bytes=CACHE_BYTES) as engine:
        assert await counted(engine) == (1, 4)
        assert (await engine.verify()).ok
        assert await queue_of(engine).purge() == 6  # one is ready since
        assert ("waits", "") not in await engine.queues() or await counted(engine) == (0, 0)


def queue_of(engine):
    return engine.queue("waits")


async def test_waiting_tasks_count_towards_pending_max(clock):
    async with in_memory(clock, limits=lodeq.Limits(pending_max=2)) as engine:
        one = (await engine.queue("parts").enqueue(b"p")).id
        for _ in range(2):
            await engine.enqueue_after(NewTask(b"w", "waits", ttl=10), [one])
        with pytest.raises(lodeq.QueueFullError):
            await engine.enqueue_after(NewTask(b"w", "waits"), [one])
        await clock.advance(30)  # their TTL counts from the enqueue
        stats = await engine.queue("waits").stats()
        assert (stats.waiting, stats.pending) == (0, 0)


async def test_a_store_without_waiting_tasks_has_the_counter_rows_of_before(clock):
    async with in_memory(clock) as engine:
        await engine.queue("mail").enqueue(b"late", delay=3600)
        await engine.queue("mail").enqueue(b"now")
        (row,) = [value for _, value in rows_of(engine, b"m/c/")]
        assert len(row) == 4 + 5 * 8 + 8
        one = (await engine.queue("mail").enqueue(b"p")).id
        await engine.enqueue_after(NewTask(b"w", "mail"), [one])
        (row,) = [value for _, value in rows_of(engine, b"m/c/")]
        assert len(row) == 4 + 6 * 8 + 8
        await engine.queue("mail").purge("waiting")
        (row,) = [value for _, value in rows_of(engine, b"m/c/")]
        assert len(row) == 4 + 5 * 8 + 8


@pytest.mark.parametrize("act", ["purge", "cancel_all"])
async def test_what_a_purge_lets_go_is_purged_as_well(clock, act):
    """It waited at the call; its new place is one of after the call, in a tenant already passed."""
    async with in_memory(clock) as engine:
        first, last = engine.queue("mail"), engine.queue("mail", tenant="z")
        one = (await last.enqueue(b"1")).id
        for queue in (last, first):
            workflow = await engine.workflow(NewTask(b"join", "mail", queue.tenant))
            ids = await workflow.add(
                [NewTask(b"%d" % n, "mail", queue.tenant) for n in range(5)], chain=True
            )
            await workflow.seal()
            await engine.enqueue_after(NewTask(b"w", "mail", queue.tenant), [one, ids[-1]])
        await engine.enqueue_after(NewTask(b"other", "other"), [one])
        every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
        assert await getattr(every, act)() == 15
        stats = await every.stats()
        assert (stats.ready, stats.delayed, stats.waiting) == (0, 0, 0)
        assert [t.payload for t in await engine.queue("other").list("ready")] == [b"other"]
        assert (await engine.verify()).ok


async def test_what_comes_while_a_purge_runs_stays_though_it_waits(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        one = (await queue.enqueue(b"1")).id

        async def add():
            return await engine.enqueue_after(NewTask(b"later", "mail"), [one])

        purged, late = await asyncio.gather(queue.purge("ready"), add())
        assert purged == 1
        assert await engine.get(late) is not None
