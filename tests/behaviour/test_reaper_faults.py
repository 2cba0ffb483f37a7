"""The reaper among faults: a read fails, a shard is poisoned, a page holds nothing but deletes."""

import asyncio

import pytest
from support_behaviour import in_memory, settle, sound, until
from support_faults import faulty

import lodeq
import lodeq.testing
from lodeq import (
    CommitUnknownError,
    CorruptionError,
    NewTask,
    StorageError,
    StoragePoisonedError,
)
from lodeq.coalescer.overlay import Overlay
from lodeq.engine.records.keyspace import EXPIRY, RESULT
from lodeq.engine.records.rows import CounterOwner
from lodeq.repository.background import reaper as reaper_module
from lodeq.repository.state import deadlines as deadlines_module
from lodeq.repository.state.queue_state import NEVER_MS
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio

EVERY = 1 << 30


class BrokenScan:
    """The scans of a store from ``lower`` on, of which so many fail after ``skip`` that do not."""

    def __init__(self, store, times=EVERY, lower=b"", skip=0):
        self._scan, self.store = store.scan_part, store
        self.times, self.lower, self.skip = times, lower, skip
        self.failed = 0
        store.scan_part = self

    def __call__(self, lower, upper, limit):
        if lower.startswith(self.lower):
            self.skip -= 1
            if self.skip < 0 and self.failed < self.times:
                self.failed += 1
                raise StorageError("a read failed")
        return self._scan(lower, upper, limit)

    def mend(self):
        self.store.scan_part = self._scan


async def finished(queue, n=1):
    """So many tasks that leave a result."""
    await queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(n)])
    for lease in await queue.claim(limit=n):
        await lease.complete()


async def still_reaps(rig):
    """It is there and works: a lease it never saw comes back."""
    await rig.queue.enqueue(b"one more")
    before = rig.state.totals.reaped
    assert await rig.queue.claim(lease=5)
    await rig.clock.advance(6)
    assert rig.state.totals.reaped == before + 1


# -- a read fails ----------------------------------------------------------------------


async def test_a_failed_read_while_promoting_is_tried_again_and_told_once():
    async with faulty() as rig:
        rig.state.held_bytes_max = 0  # delayed rows from the store
        await rig.queue.enqueue(b"later", delay=5)
        broken = BrokenScan(rig.store)
        await rig.clock.advance(6)
        for _ in range(5):
            await rig.clock.advance(1)
        assert broken.failed >= 5
        assert (await rig.queue.stats()).delayed == 1
        reasons = [r for r in (await rig.engine.health()).reasons if "a read failed" in r]
        assert len(reasons) == 1
        broken.mend()
        await rig.clock.advance(1)
        assert (await rig.queue.stats()).ready == 1
        await still_reaps(rig)
        assert (await rig.engine.verify()).ok


@pytest.mark.usefixtures("no_history")
@pytest.mark.parametrize("skip", [0, 1])  # the sweep itself, and its look at what comes next
async def test_a_failed_read_while_sweeping_is_tried_again(skip):
    async with faulty() as rig:
        queue = rig.engine.queue("short", retention=2)
        await finished(queue, 3)
        broken = BrokenScan(rig.store, lower=EXPIRY, skip=skip, times=1)
        await rig.clock.advance(5)
        assert broken.failed == 1
        for _ in range(2):
            await rig.clock.advance(1)
        assert (await queue.stats()).results == 0
        assert rig.state.shards[0].next_expiry_ms == NEVER_MS
        await still_reaps(rig)
        assert (await rig.engine.verify()).ok


@pytest.mark.usefixtures("no_history")
async def test_a_shard_that_cannot_be_read_does_not_hold_up_the_others():
    async with faulty(shards=2) as rig:
        queue = rig.engine.queue("short", retention=2)
        await finished(queue, 20)
        await queue.enqueue_many([NewTask(i, delay=3, shard_key=str(i)) for i in range(20)])
        before = [shard.results for shard in rig.state.shards]
        assert all(before)
        broken = BrokenScan(rig.stores[0])
        await rig.clock.advance(6)
        assert [shard.results for shard in rig.state.shards] == [before[0], 0]
        delayed = [shard_queue.delayed for shard_queue in queue_shard_queues(rig, b"short")]
        assert delayed[0]
        assert not delayed[1]
        broken.mend()
        for _ in range(2):
            await rig.clock.advance(1)
        assert (await queue.stats()).ready == 20
        assert (await queue.stats()).results == 0
        assert (await rig.engine.verify()).ok


def queue_shard_queues(rig, queue):
    return rig.state.find_tenant_queue(queue, b"").shard_queues


@pytest.mark.parametrize("n", [3, 300])  # also more than a slice of them
async def test_leases_that_could_not_be_reaped_are_reaped_in_a_later_pass(monkeypatch, n):
    reap = reaper_module.reap

    def fails(*_):
        raise StorageError("a read failed")

    async with faulty() as rig:
        await rig.queue.enqueue_many([NewTask(i) for i in range(n)])
        assert len(await rig.queue.claim(limit=n, lease=5)) == n
        monkeypatch.setattr(reaper_module, "reap", fails)
        await rig.clock.advance(6)
        await rig.clock.advance(1)
        assert (await rig.queue.stats()).leased == n
        assert rig.state.totals.reaped == 0
        monkeypatch.setattr(reaper_module, "reap", reap)
        await rig.clock.advance(1, turns=200)
        assert (await rig.queue.stats()).ready == n
        assert rig.state.totals.reaped == n
        assert (await rig.engine.verify()).ok


async def test_a_clock_that_is_moved_by_hand_goes_past_a_failed_read():
    clock = ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        engine._state.held_bytes_max = 0  # delayed rows from the store
        queue = engine.queue("mail")
        await queue.enqueue(b"later", delay=5)
        overlay = engine._state.shards[0].overlay
        overlay._store = Proxy(overlay._store)
        broken = BrokenScan(overlay._store)
        clock.advance(6)
        assert broken.failed
        assert (await queue.stats()).delayed == 1
        broken.mend()
        clock.advance(1)
        assert (await queue.stats()).ready == 1


class Proxy:
    """A store whose ``scan_part`` can be replaced; those in memory have slots."""

    def __init__(self, store):
        self._store = store
        self.scan_part = store.scan_part

    def __getattr__(self, name):
        return getattr(self._store, name)


async def test_health_tells_of_a_reaper_that_has_ended():
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    async def breaks(**_):
        raise RuntimeError("a bug")

    async with faulty() as rig:
        assert (await rig.engine.health()).ok
        await settle()
        rig.engine._runtime.reaper.step = breaks
        await rig.clock.advance(2)
        reasons = (await rig.engine.health()).reasons
        assert len(reasons) == 1
        assert "the reaper has ended" in reasons[0]
        assert "a bug" in reasons[0]
    assert len(reports) == 1


# -- nothing to do, again and again ----------------------------------------------------


@pytest.mark.usefixtures("no_history")
async def test_the_reaper_rests_beside_a_poisoned_shard():
    async with faulty(shards=2) as rig:
        queue = rig.engine.queue("short", retention=2)
        await finished(queue, 20)
        await queue.enqueue_many([NewTask(i, delay=3, shard_key=str(i)) for i in range(20)])
        rig.state.shards[0].coalescer.fail(OSError("EIO"))
        await rig.clock.advance(6, turns=200)
        reaper = rig.engine._runtime.reaper
        before = reaper._passes
        await settle(200)
        assert reaper._passes - before <= 1
        assert rig.state.shards[1].results == 0
        assert queue_shard_queues(rig, b"short")[1].delayed == 0
        _, next_wall_ms = rig.state.deadlines.plan()
        assert next_wall_ms > rig.clock.wall_us() // 1000


async def test_the_reaper_rests_while_reads_fail():
    async with faulty() as rig:
        queue = rig.engine.queue("short", retention=2)
        await finished(queue)
        await queue.enqueue(b"later", delay=3)
        BrokenScan(rig.store)
        await rig.clock.advance(6, turns=200)
        reaper = rig.engine._runtime.reaper
        before = reaper._passes
        await settle(200)
        assert reaper._passes - before <= 1
        for _ in range(100):
            await rig.clock.advance(0.1)
        assert 5 <= reaper._passes - before <= 25


# -- delayed tasks ---------------------------------------------------------------------


async def test_what_is_due_is_kept_in_memory_once_a_queue(monkeypatch):
    monkeypatch.setattr(deadlines_module, "STALE_MAX", 16)
    clock = ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        queues = [engine.queue(f"q{i}") for i in range(3)]
        for queue in queues:
            await queue.enqueue(b"tomorrow", delay=86_400)
        for _ in range(100):
            for queue in queues:
                await queue.enqueue(b"soon", delay=0.5)
            clock.advance(0.5)
            for queue in queues:
                lease = await queue.claim_one()
                await lease.complete(keep=False)
            assert len(engine._state.deadlines._due) <= 17
        clock.advance(86_400)
        for queue in queues:
            assert (await queue.claim_one()).payload == b"tomorrow"


async def test_compacting_keeps_the_due_times_of_many_queues(monkeypatch, clock):
    monkeypatch.setattr(deadlines_module, "STALE_MAX", 4)
    async with in_memory(clock) as engine:
        for i in range(40):
            for delay in (30, 20, 10):
                await engine.queue(f"q{i}").enqueue(b"x", delay=delay)
        assert len(engine._state.deadlines._due) <= 81
        await clock.advance(11, turns=400)
        assert (await engine.stats()).ready == 40
        await clock.advance(20, turns=400)
        assert (await engine.stats()).ready == 120
        await sound(engine)


@pytest.mark.parametrize("n", [128, 200, 300])
async def test_pages_of_deletes_not_yet_applied_do_not_hold_up_the_clock(n):
    clock = ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail")
        receipts = await queue.enqueue_many([NewTask(i, delay=10) for i in range(n)])
        await queue.enqueue(b"due, too", delay=10)
        await queue.enqueue(b"later", delay=1000)
        overlay = engine._state.shards[0].overlay
        proxy = overlay._store = Proxy(overlay._store)
        scans = 0

        def scan(*args):
            nonlocal scans
            scans += 1
            assert scans < 100, "the same page again and again"
            return overlay._store._store.scan_part(*args)

        proxy.scan_part = scan
        calls = [asyncio.ensure_future(engine.cancel(r.id)) for r in receipts]
        await asyncio.sleep(0)
        assert (await queue.stats()).delayed == 2
        clock.advance(10)
        await asyncio.gather(*calls)
        stats = await queue.stats()
        assert (stats.ready, stats.delayed) == (1, 1)
        clock.advance(990)
        assert (await queue.stats()).ready == 2
        await sound(engine)


# -- waits -----------------------------------------------------------------------------


async def test_a_wait_for_a_result_ends_when_its_shard_is_poisoned():
    async with faulty(shards=2) as rig:
        receipts = await rig.queue.enqueue_many([NewTask(i, shard_key=str(i)) for i in range(20)])
        leases = await rig.queue.claim(limit=20)
        waits = {
            r.id: [asyncio.ensure_future(rig.engine.result(r.id, wait=60)) for _ in range(2)]
            for r in receipts
        }
        await settle()
        rig.state.shards[0].coalescer.fail(OSError("EIO"))
        poisoned = [r.id for r in receipts if rig.state.shard_of(r.id).index == 0]
        assert poisoned
        calls = [wait for task_id in poisoned for wait in waits.pop(task_id)]
        await until(lambda: all(call.done() for call in calls), turns=100)
        errors = [call.exception() for call in calls]
        assert {type(error) for error in errors} == {StoragePoisonedError}
        assert len({id(error) for error in errors}) == len(errors)
        assert "shard 0" in str(errors[0])
        # The other shard's go on, and are told.
        assert not any(call.done() for pair in waits.values() for call in pair)
        for lease in leases:
            if lease.task_id in waits:
                await lease.complete(b"done")
        for call in [call for pair in waits.values() for call in pair]:
            assert (await call).status == "completed"
        assert not rig.state.result_waiters


async def test_a_wait_for_a_result_on_a_poisoned_shard_is_refused_at_once():
    async with faulty() as rig:
        receipt = await rig.queue.enqueue(1)
        rig.store.refusals.append(CommitUnknownError("EIO"))
        with pytest.raises(CommitUnknownError):
            await rig.queue.enqueue(2)
        with pytest.raises(StoragePoisonedError):
            await rig.engine.result(receipt.id, wait=3600)
        assert await rig.engine.result(receipt.id) is None


# -- one row that cannot be read -------------------------------------------------------


class BrokenGet:
    """The point reads of a store, of which those of some keys fail, as on a damaged block."""

    def __init__(self, store, keys):
        self._get, self.store, self.keys = store.get, store, set(keys)
        self.failed = 0
        store.get = self

    def __call__(self, key):
        if key in self.keys:
            self.failed += 1
            raise CorruptionError("block checksum mismatch")
        return self._get(key)

    def mend(self):
        self.store.get = self._get


@pytest.mark.usefixtures("no_history")
@pytest.mark.parametrize("n", [1, 200])  # also more than a slice of them
async def test_a_row_that_cannot_be_read_does_not_hold_up_those_behind_it(n):
    async with faulty() as rig:
        queue = rig.engine.queue("short", retention=2)
        receipts = await queue.enqueue_many([NewTask(i) for i in range(n + 3)])
        calls = [rig.engine.cancel(r.id) for r in receipts[: n + 1]]
        await asyncio.gather(*calls)
        await rig.clock.advance(1.5)  # … and one in a later expiry row
        await asyncio.gather(*(rig.engine.cancel(r.id) for r in receipts[n + 1 :]))
        broken = BrokenGet(rig.store, [RESULT + r.id for r in receipts[:n]])
        for _ in range(6):
            await rig.clock.advance(1, turns=200)
        assert broken.failed
        assert (await queue.stats()).results == n
        assert len((await rig.engine.stats()).anomalies) == 1
        reaper = rig.engine._runtime.reaper
        before = reaper._passes
        await settle(200)
        assert reaper._passes - before <= 1  # and it rests
        broken.mend()
        for _ in range(3):
            await rig.clock.advance(1, turns=200)
        assert (await queue.stats()).results == 0
        assert rig.state.shards[0].next_expiry_ms == NEVER_MS
        await still_reaps(rig)
        assert (await rig.engine.verify()).ok


@pytest.mark.usefixtures("no_history")
async def test_a_failed_read_beside_final_results_does_not_count_them_twice():
    async with faulty() as rig:
        known, lost = (rig.engine.queue(n, retention=2) for n in ("known", "lost"))
        leases = []
        for queue in (known, lost):
            await queue.enqueue(b"x")
            leases.append(await queue.claim_one())
        await rig.engine.complete_many([(lease, None) for lease in leases])
        tenant_queue = rig.state.find_tenant_queue(b"lost", b"")
        shard_queue = tenant_queue.shard_queue(rig.state.shards[0])
        del rig.state.shards[0].shard_queues_by_hash[
            shard_queue.hash
        ]  # so its results are looked at one by one
        broken = BrokenGet(rig.store, [RESULT + leases[1].task_id])
        for _ in range(6):
            await rig.clock.advance(1)
        assert broken.failed
        assert (await known.stats()).results == 0
        assert rig.state.shards[0].results == 1
        broken.mend()
        for _ in range(2):
            await rig.clock.advance(1)
        assert rig.state.shards[0].results == 0
        assert (await rig.engine.verify()).ok


@pytest.mark.usefixtures("no_history")
async def test_a_group_that_cannot_be_sealed_does_not_end_the_reaper():
    uncountable = CounterOwner(b"key", bytes(16))
    uncountable.ready = -1  # no row can hold it
    async with faulty(shards=2, commit_batch_max=1) as rig:
        queue = rig.engine.queue("short", retention=2)
        await finished(queue, 20)
        rig.clock.jump(4)
        rig.state.shards[0].coalescer.begin().dirty[uncountable] = None  # its sweep will seal this
        await rig.engine._runtime.reaper.step()
        assert not rig.state.shards[0].coalescer.takes_writes
        assert rig.state.shards[1].results == 0


@pytest.mark.interpreted
@pytest.mark.parametrize("call", ["promote", "list"])
async def test_a_scan_that_comes_one_byte_further_is_not_begun_anew(monkeypatch, call):
    """So it is before a damaged block: there are no rows, and it says where to go on."""
    scans = {name: getattr(Overlay, name) for name in ("scan", "scan_readable")}
    seen: list[bytes] = []
    clock = ManualClock()

    def one_byte(name):
        def scan(self, lower, upper, limit, **how):
            if b"\0d" not in lower or lower.endswith(b"\0"):
                return scans[name](self, lower, upper, limit, **how)
            seen.append(lower)
            if len(seen) > 20:
                pytest.fail("it looks at the same place for ever")
            return [], lower + b"\0"

        return scan

    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail")
        engine._state.held_bytes_max = 0  # delayed rows from the store
        await queue.enqueue(b"x", delay=60)
        for name in scans:
            monkeypatch.setattr(Overlay, name, one_byte(name))
        if call == "promote":
            clock.advance(61)
        else:
            await queue.list("delayed")
        assert 0 < len(seen) <= 4
