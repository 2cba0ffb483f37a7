"""A store full of rows that were just deleted: every call gets through them, and lets others in."""

import asyncio
import contextlib
from bisect import bisect_left

import pytest
from support_replication import Cluster

from lodeq import NewTask
from lodeq.engine.records import keyspace as ks
from lodeq.engine.store.memory import MemoryView
from lodeq.repository.background.expiry_sweep import next_expiry_ms
from lodeq.repository.background.state_rebuild import deadline_slices
from lodeq.repository.state import turns as turns_module
from lodeq.repository.state.queue_state import ShardQueue
from lodeq.testing import ManualClock
from lodeq.testing import open as open_in_memory

pytestmark = pytest.mark.anyio

STEP = 4  # deleted rows that a part passes over
PREFIX = ks.shard_queue_prefix(b"mail", b"")
IDS = [bytes([n >> 8, n & 0xFF]) + bytes(14) for n in range(300)]  # older than any task
GONE = sorted(
    key
    for n, task_id in enumerate(IDS)
    for key in (
        *(family + task_id for family in (ks.TASK, ks.LEASE, ks.MOVED, ks.RESULT, ks.BODY)),
        ks.GHOST + task_id,
        *(ks.ready_key(PREFIX, priority, n, task_id) for priority in (9, 5, 0)),
        ks.delayed_key(PREFIX, n, n, task_id),
        ks.dead_key(PREFIX, n, task_id),
        ks.expiry_key(n, n),
        ks.events_key(n),
        ks.body_at_key(n, 0, task_id),
        ks.counters_key(b"a%d" % n, b""),
        ks.pause_key(b"a%d" % n, b""),
    )
)


class Turns:
    """Counts the parts of scans that found deleted rows only, by turns of the loop."""

    def __init__(self):
        self.empty = self.most = self.total = 0

    async def watch(self):
        while True:
            self.most, self.empty = max(self.most, self.empty), 0
            await asyncio.sleep(0)


@pytest.fixture
def turns(monkeypatch):
    """What was deleted costs, as it does on a disk."""
    found = Turns()

    def scan_part(self, lower, upper, limit):
        rows = self.scan(lower, upper, limit)
        last = rows[0][0] if rows else upper
        at = bisect_left(GONE, lower)
        if at + STEP < len(GONE) and GONE[at + STEP] < last:
            found.empty += 1
            found.total += 1
            return [], GONE[at + STEP - 1] + b"\0"
        return rows, rows[-1][0] + b"\0" if len(rows) == limit else None

    monkeypatch.setattr(MemoryView, "scan_part", scan_part)
    return found


@contextlib.asynccontextmanager
async def filled(turns):
    """A queue with ten tasks of each state, and the watch over the turns."""
    clock = ManualClock()
    async with open_in_memory(clock=clock) as engine:
        mail = engine.queue("mail")
        for state in ("dead", "completed", "leased", "ready"):
            await mail.enqueue_many([NewTask(n, dedup_key=f"{state}{n}") for n in range(10)])
            if state == "ready":
                break
            for lease in await mail.claim(limit=10, lease=3600):
                if state != "leased":
                    await (lease.bury("no") if state == "dead" else lease.complete(b"ok"))
        await mail.enqueue_many([NewTask(n, delay=60) for n in range(10)])
        turns.empty = turns.most = turns.total = 0
        watch = asyncio.create_task(turns.watch())
        yield engine, mail, clock
        watch.cancel()


STATES = ("ready", "delayed", "dead", "leased", "completed")


@pytest.mark.parametrize("state", STATES)
async def test_lists_are_whole(turns, state):
    async with filled(turns) as (_, mail, _):
        pages, last = [], None
        while page := await mail.list(state, limit=4, after=last):
            pages, last = pages + page, page[-1]
        assert len({task.id for task in pages}) == len(pages) == 10
        assert turns.most <= 1


async def test_verify_finds_nothing_and_lets_others_in(turns, monkeypatch):
    monkeypatch.setattr(
        "lodeq.repository.state.turns.STEPS_MAX", 8
    )  # under a clock that stands still
    async with filled(turns) as (engine, _, _):
        assert (await engine.verify()).findings == ()
        assert turns.most <= 16
        assert turns.total < 2.5 * len(GONE) / STEP  # once in the store, once in its snapshot


@pytest.mark.parametrize("state", ["ready", "delayed", "dead"])
async def test_a_purge_takes_all(turns, state):
    async with filled(turns) as (engine, mail, _):
        assert await mail.purge(state) == 10
        assert turns.total == 0
        stats = await mail.stats()
        assert (stats.ready, stats.delayed, stats.dead) == tuple(
            10 * (state != one) for one in ("ready", "delayed", "dead")
        )
        assert (await engine.verify()).ok


async def test_a_redrive_takes_all(turns):
    async with filled(turns) as (engine, mail, _):
        assert (await mail.redrive()) == 10
        assert turns.most <= 1
        assert len(await mail.claim(limit=64)) == 20
        assert (await engine.verify()).ok


async def test_a_claim_never_meets_them(turns):
    async with filled(turns) as (_, mail, _):
        assert len(await mail.claim(limit=64)) == 10
        assert turns.most == turns.empty == 0


async def test_what_falls_due_and_what_expires(turns):
    async with filled(turns) as (engine, mail, clock):
        clock.advance(61)
        stats = await mail.stats()
        assert (stats.ready, stats.delayed) == (20, 0)
        clock.advance(90 * 86_400)
        assert (await mail.stats()).results == 0
        assert (await engine.verify()).ok
        while not engine._state.shards[0].dedup_filter.is_complete:  # its scan passes them once
            clock.advance(1)
        empty = turns.empty = 0
        clock.advance(10)
        assert turns.empty == empty  # the sweep begins where rows are


async def test_the_next_expiry_is_looked_for_in_parts(turns, monkeypatch):
    async with filled(turns) as (engine, _, clock):
        state, shard = engine._state, engine._state.shards[0]
        clock.advance(1)
        shard.expiry_head = ks.EXPIRY
        soonest = next_expiry_ms(state, shard)
        assert soonest > clock.wall_us() // 1000
        shard.expiry_head = ks.EXPIRY
        monkeypatch.setattr(
            turns_module.Turns, "is_over", True
        )  # as if each part took a turn's time
        looks = [next_expiry_ms(state, shard)]
        while looks[-1] != soonest:
            assert looks[-1] <= clock.wall_us() // 1000  # due, so that the reaper goes on
            turns.empty = 0
            looks.append(next_expiry_ms(state, shard))
            assert turns.empty <= 1
        assert len(looks) > 60
        assert next_expiry_ms(state, shard) == soonest  # and not from the start


async def test_a_replica_that_loses_leadership_lets_others_in(turns, monkeypatch):
    monkeypatch.setattr(turns_module, "STEPS_MAX", 1)  # as if each step took a turn's time
    monkeypatch.setattr("lodeq.repository.state.pages.SLICE", 4)
    clock, cluster = ManualClock(), Cluster()
    async with cluster.open("a", clock=clock) as a, cluster.open("b", clock=clock):
        await cluster.elect("a")
        mail = a.queue("mail")
        await mail.pause()
        for n in range(40):
            await a.queue("jobs", tenant=f"t{n}").enqueue(n)
        turns.empty = turns.most = turns.total = 0
        watch = asyncio.create_task(turns.watch())
        cluster.nodes["a"].replica.follow(0)
        counted = []
        while not counted or counted[-1] < 40:
            tenant_queues = a._state.queue_states[b"jobs"].tenant_queues.values()
            counted.append(sum(tenant_queue.ready for tenant_queue in tenant_queues))
            assert a._state.find_tenant_queue(b"mail", b"").is_paused
            await asyncio.sleep(0)
        assert len(set(counted)) >= 10  # not all of them in one go
        watch.cancel()


async def test_a_replica_that_gains_leadership_lets_others_in(turns, monkeypatch):
    monkeypatch.setattr(turns_module, "STEPS_MAX", 1)  # as if each step took a turn's time
    clock, cluster = ManualClock(), Cluster()
    async with cluster.open("a", clock=clock) as a, cluster.open("b", clock=clock) as b:
        await cluster.elect("a")
        mail = a.queue("mail")
        await mail.enqueue_many([NewTask(n, delay=60 * (n % 2)) for n in range(10)])
        await mail.pause()
        cluster.nodes["a"].replica.follow(0)
        # Of the other node, in this loop.
        await asyncio.gather(*(t for t in asyncio.all_tasks() if t.get_name() == "lodeq-counts"))
        turns.empty = turns.most = turns.total = 0
        watch = asyncio.create_task(turns.watch())
        shard = b._state.shards[0]
        elected = asyncio.create_task(cluster.elect("b"))
        while not elected.done():
            await asyncio.sleep(0)
            if not shard.coalescer.takes_writes:  # other shards may be served meanwhile
                assert b._state.find_tenant_queue(b"mail", b"").is_paused
        await elected
        assert turns.total > 250  # counters, pauses, leases, delayed, ready and expiry rows
        assert turns.most <= 1
        await b.queue("mail").resume()
        clock.advance(61)
        assert len(await b.queue("mail").claim(limit=20)) == 10
        watch.cancel()


async def test_many_tenant_queues_are_loaded_in_turns(monkeypatch):
    clock = ManualClock()
    async with open_in_memory(clock=clock) as engine:
        state = engine._state
        for n in range(100):
            await engine.queue(f"q{n}").enqueue(b"", delay=n % 2)
        scans, inner = [], MemoryView.scan_part
        monkeypatch.setattr(MemoryView, "scan_part", lambda *how: scans.append(how) or inner(*how))
        for n, _ in enumerate(deadline_slices(state, state.shards[0])):
            assert len(scans) <= 2 * (n + 1)
        assert len(scans) == 103  # one a tenant queue; joins, their outbox, and the expiry rows


async def test_queues_and_stats(turns):
    async with filled(turns) as (engine, mail, _):
        assert list(await engine.queues()) == [("mail", "")]
        assert (await mail.stats()).dead == 10
        assert (await engine.health()).ok
        assert (await mail.enqueue(b"", dedup_key="ready1")).duplicate
        assert turns.most == 0


@pytest.mark.parametrize(
    ("state", "met"), [("dead", range(1)), ("delayed", range(1)), ("completed", range(60, 2000))]
)
async def test_deleted_rows_are_passed_over_once(turns, state, met):
    """Or not at all, where it is known how many rows there are."""
    async with filled(turns) as (_, mail, _):
        first = await mail.list(state)
        assert turns.total in met
        turns.total = 0
        assert await mail.list(state) == first
        assert turns.total <= 1


async def test_ready_rows_behind_deleted_ones_are_found_from_the_end_until_a_claim(
    turns, monkeypatch
):
    """After a purge no row is where the ready rows began: nothing but a claim remembers that."""
    async with filled(turns) as (_, mail, _):
        wanted = [task.id for task in await mail.list("ready")]
        front, floor = ks.ready_key(PREFIX, 9, 1, IDS[1]), ShardQueue.floor

        def before(shard_queue, kind):
            return front if kind == ks.READY else floor(shard_queue, kind)

        monkeypatch.setattr(ShardQueue, "floor", before)
        turns.total = 0
        for _ in range(3):
            assert [task.id for task in await mail.list("ready")] == wanted
        assert turns.total == 0


async def test_where_nothing_is_there_is_nothing_to_pass_over(turns):
    async with filled(turns) as (engine, _, _):
        other = engine.queue("other")
        await other.enqueue(b"")
        assert len(await other.list("ready")) == 1
        turns.total = 0
        assert [len(await other.list(one)) for one in STATES] == [1, 0, 0, 0, 0]
        assert turns.total == 0


@pytest.mark.parametrize("state", STATES)
async def test_who_only_reads_finds_the_rows_from_the_end(turns, state):
    """It remembers nothing of what others write: the counter rows say how many there are."""
    clock, cluster = ManualClock(), Cluster()
    async with cluster.open("a", clock=clock) as a, cluster.open("b", clock=clock) as b:
        await cluster.elect("a")
        mail = a.queue("mail")
        for end in ("bury", "complete", "hold", None):
            await mail.enqueue_many([NewTask(n) for n in range(10)])
            for lease in await mail.claim(limit=10 if end else 1, lease=3600):
                if end is None:
                    await lease.release()
                elif end != "hold":
                    await (lease.bury("no") if end == "bury" else lease.complete())
        await mail.enqueue_many([NewTask(n, delay=60) for n in range(10)])
        wanted = await mail.list(state)
        turns.empty = turns.most = turns.total = 0
        assert [one.id for one in await b.queue("mail").list(state)] == [one.id for one in wanted]
        assert len(wanted) == 10
        assert turns.total <= 1
        assert (await b.queue("mail").stats()).oldest_ready_age is not None
        assert turns.total <= 2


async def test_rows_that_come_in_below_what_was_passed_over_are_found(turns):
    async with filled(turns) as (engine, mail, clock):
        assert len(await mail.list("dead")) == len(await mail.list("delayed")) == 10
        clock.step_wall(-3600)
        (lease,) = await mail.claim(limit=1)
        await lease.bury("earlier")
        await mail.enqueue(b"", delay=1)
        assert (await mail.list("dead"))[0].reason == "earlier"
        assert len(await mail.list("delayed")) == 11
        assert await mail.redrive() == 11
        assert await mail.purge("delayed") == 11
        assert (await engine.verify()).ok
