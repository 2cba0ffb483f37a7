"""Ends and redrives across shards: late ones, and those between the copies of a checkpoint."""

import asyncio
from unittest.mock import patch

import pytest

import lodeq
from lodeq import NewTask
from lodeq.engine.records import workflow as records
from lodeq.engine.records.result import Status
from lodeq.engine.runtime.ids import slot_of
from lodeq.repository.api.engine import runtime_of
from lodeq.repository.workflows import edges, joins

pytestmark = pytest.mark.anyio
SHARDS, SOURCES = 4, 8


def on_disk(path, **options):
    return lodeq.open(path, block_cache_bytes=8 << 20, **options)


async def reaped(engine):
    """Two passes of the reaper: the second forgets what the first has sent."""
    for _ in range(2):
        await runtime_of(engine).reaper.step()
        await engine.fsync()


async def one_elsewhere(engine):
    """A task that waits for the redrive of one on another shard, which is dead and counted."""
    source = (await engine.queue("parts").enqueue(b"p", shard_key="k0")).id
    task = NewTask(b"late", "tops", shard_key="elsewhere")
    waits = await engine.enqueue_after(task, [source], on_failure="wait")
    home, receiver = engine._state.shard_of(source), engine._state.shard_of(waits)
    assert home is not receiver
    (lease,) = await engine.queue("parts").claim()
    await lease.bury("no")
    await runtime_of(engine).reaper.step()
    assert [part.status for part in await engine.parts_page(waits)] == ["dead"]
    return source, waits, home, receiver


async def test_a_redrive_takes_the_place_of_an_end_that_was_sent(tmp_path, monkeypatch):
    async with on_disk(tmp_path / "s", shards=SHARDS) as engine:
        source, waits, _, receiver = await one_elsewhere(engine)
        monkeypatch.setattr(type(receiver.coalescer), "durable_number", 0)
        assert await engine.queue("parts").redrive([source]) == 1
        await runtime_of(engine).reaper.step()  # "under way" is sent, and not yet synced there
        (lease,) = await engine.queue("parts").claim()
        await lease.complete(b"v")  # its row takes the place of what was sent
        monkeypatch.undo()
        await engine.fsync()
        await reaped(engine)
        (lease,) = await engine.queue("tops").claim()
        assert lease.task_id == waits
        await lease.complete()


async def test_an_end_from_before_a_redrive_counts_no_more(tmp_path):
    async with on_disk(tmp_path / "s", shards=SHARDS) as engine:
        source, waits, home, _ = await one_elsewhere(engine)
        assert await engine.queue("parts").redrive([source]) == 1
        await reaped(engine)
        assert [part.status for part in await engine.parts_page(waits)] == [None]
        for epoch in (0, 1):  # as a power cut of the source's shard may bring back; and one of now
            late = records.OutboxRecord(Status.COMPLETED, 0, epoch, 1)
            group = home.coalescer.begin()
            with group:
                key = records.outbox_key(source, waits)
                group.ops.append((key, records.encode_outbox(late)))
            await home.coalescer.wait(group)
            engine._state.flows._sends[home] = b"u/"
            await reaped(engine)
            assert (await engine.get(waits)).state == ("ready" if epoch else "waiting")


@pytest.mark.parametrize("sent", [None, Status.DEAD, 0, Status.COMPLETED])
async def test_a_dead_task_that_a_power_cut_took_is_redriven_no_more(tmp_path, sent):
    """Who waits for its redrive learns that it is gone; or how it ended, if that is on its way."""
    async with on_disk(tmp_path / "s", shards=SHARDS) as engine:
        source, waits, home, receiver = await one_elsewhere(engine)
        await reaped(engine)
        rows = home.store.scan(b"", b"\xff", 1 << 20)
        home.store.write([(key, None) for key, _ in rows if bytes(source) in key])
        if sent is not None:  # what was sent of it last, and is not forgotten
            late = records.OutboxRecord(sent, 0, 1 if sent != Status.DEAD else 0, 1)
            home.store.write([(records.outbox_key(source, waits), records.encode_outbox(late))])
        engine._state.flows.ask_again(receiver)
        await reaped(engine)
        engine._state.flows._sends[home] = b"u/"
        await reaped(engine)
        (part,) = await engine.parts_page(waits)
        has_ended = sent == Status.COMPLETED
        assert part.status == ("completed" if has_ended else "cancelled")
        assert (await engine.get(waits)).state == ("ready" if has_ended else "waiting")


async def test_a_join_whose_targets_end_a_power_cut_took_waits_again(tmp_path):
    """A later batch has left the join's row as it was; the task itself waits, as it did before."""
    async with on_disk(tmp_path / "s") as engine:
        source = (await engine.queue("parts").enqueue(b"p")).id
        waits = await engine.enqueue_after(NewTask(b"late", "tops"), [source], on_failure="wait")
        (shard,) = engine._state.shards
        over = edges.join_of(shard, waits)._replace(state=records.OVER, fired_us=1)
        shard.store.write([(records.JOIN + waits, records.encode_join(over))])
        assert not (await engine.verify()).ok
        engine._state.flows.ask_again(shard)
        await reaped(engine)
        assert (await engine.verify()).ok
        (lease,) = await engine.queue("parts").claim()
        await lease.complete()
        assert (await engine.get(waits)).state == "ready"


async def test_a_member_whose_end_a_power_cut_took_is_counted_when_all_is_over(tmp_path):
    async with on_disk(tmp_path / "s") as engine:
        flow = await engine.workflow(NewTask(b"done", "tops"))
        await flow.add([NewTask(b"a", "parts"), NewTask(b"b", "parts")])
        await flow.seal()
        for _ in range(3):
            for lease in await engine.claim(["parts", "tops"]):
                await lease.complete(b"v")
        assert (await flow.info()).state == "over"
        (shard,) = engine._state.shards
        first, second = [part async for part in flow.parts()]
        record = edges.join_of(shard, flow.id)
        for part in (first, second):  # of the first nothing is left, of the second its end
            key = records.part_key(flow.id, part.number)
            lost = records.PartRecord(0, 0, 0, part.task_id)
            shard.store.write([(key, records.encode_part(lost))])
        shard.store.write([(b"r/" + first.task_id, None)])
        shard.store.write([(records.JOIN + flow.id, records.encode_join(record._replace(ended=0)))])
        engine._state.flows.ask_again(shard)
        await reaped(engine)
        info = await flow.info()
        assert (info.state, info.ended, info.failed) == ("over", 2, 1)
        assert [part.status async for part in flow.parts()] == ["cancelled", "completed"]


async def test_joins_that_are_over_are_passed_in_slices(tmp_path):
    async with on_disk(tmp_path / "s") as engine:
        source = (await engine.queue("parts").enqueue(b"p")).id
        for _ in range(3):
            waits = await engine.enqueue_after(NewTask(b"late", "tops"), [source])
            assert await engine.cancel(waits)
        (shard,) = engine._state.shards
        over = shard.store.scan(records.JOIN, records.JOIN_END, 10)
        assert [records.decode_join(raw).state for _, raw in over] == [records.OVER] * 3
        flows = engine._state.flows
        with patch.object(joins, "SLICE", 1):
            flows.ask_again(shard)
            assert len([*flows.slices()]) >= 3


@pytest.mark.parametrize("is_paused", [False, True])
async def test_an_end_counts_elsewhere_once_it_is_committed(tmp_path, is_paused):
    """Else a kill between the two writes undoes the end, and not what it has let go."""
    async with on_disk(tmp_path / "s", shards=SHARDS) as engine:
        source = (await engine.queue("parts").enqueue(b"p", shard_key="k0")).id
        task = NewTask(b"late", "tops", shard_key="elsewhere")
        waits = await engine.enqueue_after(task, [source])
        home, receiver = engine._state.shard_of(source), engine._state.shard_of(waits)
        (lease,) = await engine.queue("parts").claim()
        group = home.coalescer.begin()
        with group:
            end = records.encode_outbox(records.OutboxRecord(Status.COMPLETED, 0, 0, 1))
            group.ops.append((records.outbox_key(source, waits), end))
        flows = engine._state.flows
        flows._sends[home] = b"u/"
        pause = home.coalescer.pause_writes() if is_paused else None
        for _ in flows.slices():  # without a wait between its steps, as a clock moved by hand does
            pass
        is_written = home.store.get(records.outbox_key(source, waits)) is not None
        assert is_written is not is_paused
        assert edges.join_of(receiver, waits).ended == is_written
        if pause is not None:
            written = home.coalescer.wait(group)
            home.coalescer.resume_writes(pause)
            await written
        for _ in flows.slices():
            pass
        assert edges.join_of(receiver, waits).ended == 1
        await lease.complete()


async def test_a_dependency_whose_end_is_queued_is_waited_for(tmp_path, monkeypatch):
    """Its shard takes no writes for a while. What waits for it is not written before."""
    async with on_disk(tmp_path / "s", shards=SHARDS) as engine:
        source = (await engine.queue("parts").enqueue(b"p", shard_key="k0")).id
        (lease,) = await engine.queue("parts").claim()
        home, is_stalled, written = engine._state.shard_of(source), True, []
        write = type(home.store).write

        def written_or_not(store, ops):
            if store is home.store and is_stalled:
                raise lodeq.StoreStalledError("for a while")
            written.append(store)
            write(store, ops)

        monkeypatch.setattr(type(home.store), "write", written_or_not)
        completing = asyncio.ensure_future(lease.complete())
        task = NewTask(b"late", "tops", shard_key="elsewhere")
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(engine.enqueue_after(task, [source]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not written
        is_stalled = False
        await completing
        waits = await waiting
        assert engine._state.shard_of(waits) is not home
        assert (await engine.get(waits)).state == "ready"


async def enqueued(engine, on_failure):
    """Tasks of all shards, and on each shard one that waits for all of them."""
    queue = engine.queue("parts")
    ids = [(await queue.enqueue(b"p", shard_key=f"k{n}")).id for n in range(SOURCES)]
    waits = {}
    for n in range(32):
        task = NewTask(b"late", "tops", shard_key=f"t{n}")
        index = engine._state.shard_of_slot(slot_of(b"t%d" % n)).index
        if index not in waits:
            waits[index] = await engine.enqueue_after(task, ids, on_failure=on_failure)
    assert {engine._state.shard_of(one).index for one in ids} == set(range(SHARDS))
    return set(waits.values())


async def end_some(engine, step, on_failure):
    """What happens between two copies: ends, and where a redrive is waited for, redrives."""
    for n, lease in enumerate(await engine.queue("parts").claim(limit=3)):
        await (lease.bury("no") if n == 0 and on_failure == "wait" else lease.complete(b"v"))
    if step % 2:
        await engine.queue("parts").redrive()
    await reaped(engine)


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["run", "wait"])
@pytest.mark.parametrize("backwards", [False, True])
async def test_ends_between_the_copies_of_two_shards_count_once(
    tmp_path, monkeypatch, on_failure, backwards
):
    async with on_disk(tmp_path / "s", shards=SHARDS) as engine:
        waits = await enqueued(engine, on_failure)
        runtime = runtime_of(engine)
        copy, order, step = runtime._copy_shard, list(engine._state.shards), iter(range(SHARDS))
        marks = {}

        async def copied(work, shard):
            if not marks:  # all are copied now, in the order that is tried
                for one in reversed(order) if backwards else order:
                    marks[one] = await copy(work, one)
                    await end_some(engine, next(step), on_failure)
            return marks[shard]

        monkeypatch.setattr(runtime, "_copy_shard", copied)
        await engine.checkpoint(tmp_path / "c")
    await asyncio.to_thread(lodeq.restore, tmp_path / "c", tmp_path / "r")
    async with on_disk(tmp_path / "r") as engine:
        ran = []
        for _ in range(12):
            await reaped(engine)
            for lease in await engine.queue("parts").claim(limit=64):
                await lease.complete(b"v")
            await engine.queue("parts").redrive()
            for lease in await engine.queue("tops").claim(limit=64):
                assert lease.attempt == 1
                statuses = {part.status for part in await engine.parts_page(lease.task_id)}
                assert None not in statuses
                assert on_failure == "run" or statuses == {"completed"}
                ran.append(lease.task_id)
                await lease.complete()
        assert sorted(ran) == sorted(waits & set(ran)), "one ran twice, or was never enqueued"
        assert set(ran) == waits
        assert not [s for s in engine._state.shards if s.store.scan(b"u/", b"u0", 1)]
        report = await engine.verify()
        assert report.ok, report.findings
        assert (await engine.stats()).anomalies == ()
