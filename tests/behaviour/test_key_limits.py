"""Limits of keys: so many leases at once for each value of a label, whatever way a claim goes."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter

import pytest
from support_live import copy_live

import lodeq
import lodeq.testing
from lodeq import ALL_TENANTS
from lodeq.engine.records.face import unpack_face
from lodeq.repository.tasks import claim, key_waits
from lodeq.repository.tasks.key_waits import KeyWaits
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
KEEPS = 3600.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return ManualClock()


async def checked(engine):
    """Nothing is wrong, and what is counted is what is leased."""
    assert (await engine.verify()).ok
    assert (await engine.stats()).anomalies == ()
    for queue, limit in engine._state.key_limits.by_queue.items():
        leased = [
            lease.task_id
            for lease in engine._state.leases.values()
            if lease.shard_queue.tenant_queue.queue == queue and limit.key_of(lease.face)
        ]
        assert sorted(limit.by_task) == sorted(leased)
        assert sum(limit.live.values()) == len(leased)


@pytest.fixture(params=[1, 4])
async def engine(request, clock, anyio_backend):
    async with lodeq.testing.open(clock=clock, shards=request.param) as engine:
        yield engine
        await checked(engine)


async def turns(n=10):
    for _ in range(n):
        await asyncio.sleep(0)


def task(payload, customer, **options):
    return lodeq.NewTask(payload, labels={"customer": customer}, **options)


async def put(queue, text):
    """``aab``: two tasks of a, then one of b; payloads are a0, a1, b2."""
    return await queue.enqueue_many([task(f"{c}{n}", c) for n, c in enumerate(text)])


def payloads(leases):
    return [lease.payload for lease in leases]


# --- claims -------------------------------------------------------------------------------------


def ways(engine):
    mail = engine.queue("mail", lease=KEEPS)
    every = engine.queue("mail", tenant=ALL_TENANTS, lease=KEEPS)
    boosted = engine.queue("mail", boost_after=0.001, lease=KEEPS)
    return {
        "one": lambda: mail.claim(),
        "many": lambda: mail.claim(limit=8),
        "more than a turn": lambda: mail.claim(limit=2000),
        "all tenants": lambda: every.claim(limit=8),
        "boosted": lambda: boosted.claim(limit=8),
        "several queues": lambda: engine.claim([mail, engine.queue("other")], limit=8),
        "one of several": lambda: engine.claim([mail, engine.queue("other")]),
    }


WAYS = [
    "one",
    "many",
    "more than a turn",
    "all tenants",
    "boosted",
    "several queues",
    "one of several",
]


@pytest.mark.parametrize("way", WAYS)
async def test_no_way_leads_past_the_limit(engine, way):
    await engine.configure("mail", key_concurrency="2/customer")
    mail = engine.queue("mail")
    await put(mail, "aaaabbbcaabc")
    await mail.enqueue("free")  # no label, no limit
    claim, held = ways(engine)[way], []
    while found := await claim():
        held += found
    assert sorted(payload[0] for payload in payloads(held)) == list("aabbccf")
    stats = await mail.stats()
    assert (stats.leased, stats.ready, stats.waiting) == (7, 0, 6)
    done = []
    while held:  # one end lets one go
        lease = held.pop(0)
        await lease.complete()
        done.append(lease.payload)
        while found := await claim():
            held += found
        live = [lease.payload[0] for lease in held]
        assert max((live.count(c) for c in "abc"), default=0) <= 2
    assert len(done) == 13
    assert (await mail.stats()).pending == 0


async def test_of_one_key_the_order_is_kept(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aaa")
    await mail.enqueue_many([task("late and high", "a", priority=9), task("low", "a", priority=0)])
    got = []
    first = (await mail.claim())[0]
    assert await mail.claim() == []  # all others are set aside
    assert (await mail.stats()).waiting == 4
    while first is not None:
        got.append(first.payload)
        await first.complete()
        first = next(iter(await mail.claim()), None)
    assert got == ["late and high", "a0", "a1", "a2", "low"]


async def test_of_one_key_the_order_follows_a_new_priority(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    receipts = await put(mail, "aaaa")
    (lease,) = await mail.claim(limit=4)
    last = lodeq.TaskFilter(queue="mail", state="waiting")
    found = (await engine.find(last)).tasks
    assert {one.id for one in found} == {receipt.id for receipt in receipts[1:]}
    report = await engine.act("reprioritise", last, priority=2, limit=1)
    assert report.done == 1
    await lease.complete()
    await turns()
    assert payloads(await mail.claim()) == ["a2"]


async def test_what_was_let_go_and_gets_another_priority_lets_nobody_else_go(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aaaa")
    (lease,) = await mail.claim(limit=4)
    await lease.complete()
    await turns()
    done, cursor, every = 0, "", lodeq.TaskFilter(queue="mail")
    while cursor is not None:  # whoever becomes ready meanwhile is behind it
        report = await engine.act("reprioritise", every, priority=2, limit=1, cursor=cursor or None)
        done, cursor = done + report.done, report.cursor
        await turns()
    assert done == 3
    stats = await mail.stats()
    assert (stats.ready, stats.waiting) == (1, 2)
    (first,) = await mail.list("ready")
    assert await engine.cancel(first.id)  # it still has the room
    await turns()
    assert payloads(await mail.claim(limit=4)) == ["a2"]


async def test_a_task_that_a_claim_could_not_grant_keeps_its_room(engine, monkeypatch):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aaa")
    (lease,) = await mail.claim(limit=3)
    await lease.complete()
    await turns()
    real = claim.grant

    def grant(*args):
        monkeypatch.setattr(claim, "grant", real)
        raise lodeq.StorageError("once")

    monkeypatch.setattr(claim, "grant", grant)
    with pytest.raises(lodeq.StorageError, match="once"):
        await mail.claim(limit=2)
    (first,) = await mail.list("ready")
    assert await engine.cancel(first.id)
    await turns()
    assert payloads(await mail.claim()) == ["a2"]


async def test_who_waits_for_a_key_is_served_when_it_has_room(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aa")
    (lease,) = await mail.claim(limit=2)
    waiting = asyncio.get_running_loop().create_task(mail.claim(wait=60))
    await turns()
    assert not waiting.done()
    await lease.complete()
    assert payloads(await waiting) == ["a1"]


@pytest.mark.parametrize("end", ["complete", "nack", "release", "bury", "expire"])
async def test_any_end_of_a_lease_makes_room(engine, clock, end):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=10, max_attempts=9)
    await put(mail, "aa")
    (lease,) = await mail.claim(limit=2)
    if end == "complete":
        await lease.complete()
    elif end == "nack":
        await lease.nack(delay=1000)
    elif end == "release":
        await lease.release()
    elif end == "bury":
        await lease.bury()
    else:
        clock.advance(11)
    await turns()
    (then,) = await mail.claim(limit=2)
    assert then.payload == ("a0" if end == "release" else "a1")


async def test_a_retry_waits_for_its_key_too(engine, clock):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aa")
    (lease,) = await mail.claim(limit=2)
    await lease.nack(reason="no", delay=5)
    await turns()
    (other,) = await mail.claim()
    clock.advance(6)
    assert await mail.claim() == []
    found = await engine.get(lease.task_id)
    assert (found.state, found.reason, found.attempts) == ("waiting", "no", 1)
    await other.complete()
    await turns()
    (again,) = await mail.claim()
    assert (again.payload, again.attempt) == ("a0", 2)


async def test_tenants_do_not_share_a_key(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    for tenant in ("t1", "t2"):
        await put(engine.queue("mail", tenant=tenant), "aa")
    every = engine.queue("mail", tenant=ALL_TENANTS, lease=KEEPS)
    assert [lease.tenant for lease in await every.claim(limit=8)] == ["t1", "t2"]


async def test_a_long_line_of_one_key_does_not_hold_up_the_others(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await mail.enqueue_many([task("x", "big")] * 700)
    await put(mail, "z")
    assert payloads(await mail.claim()) == ["x"]
    assert payloads(await mail.claim()) == ["z0"]
    assert (await mail.stats()).waiting == 699


# --- what was let go, and does not run ----------------------------------------------------------


async def went_by_cancel(engine, mail, task_id, clock):
    assert await engine.cancel(task_id)


async def went_by_purge(engine, mail, task_id, clock):
    assert await mail.purge("ready") == 1


async def went_by_its_ttl(engine, mail, task_id, clock):
    clock.advance(101)


@pytest.mark.parametrize("went", [went_by_cancel, went_by_purge, went_by_its_ttl])
async def test_a_task_that_was_let_go_and_is_no_more_makes_room(engine, clock, went):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "a")
    second = (await mail.enqueue_many([task("short", "a", ttl=100)]))[0]
    await put(mail, "a")
    (lease,) = await mail.claim(limit=3)
    await lease.complete()
    await turns()
    assert (await engine.get(second.id)).state == "ready"
    await went(engine, mail, second.id, clock)
    await turns()
    assert payloads(await mail.claim()) == ["a0"]


@pytest.mark.parametrize("act", ["cancel", "purge", "ttl", "found"])
async def test_a_task_that_waits_for_its_key_can_be_ended(engine, clock, act):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "a")
    receipt = (await mail.enqueue_many([task("short", "a", ttl=100)]))[0]
    (lease,) = await mail.claim(limit=2)
    assert (await engine.get(receipt.id)).state == "waiting"
    assert [one.id for one in await mail.list("waiting")] == [receipt.id]
    if act == "cancel":
        assert await engine.cancel(receipt.id)
    elif act == "purge":
        assert await mail.purge("waiting") == 1
    elif act == "ttl":
        clock.advance(101)
    else:
        report = await engine.act("cancel", lodeq.TaskFilter(queue="mail", state="waiting"))
        assert report.done == 1
    await turns()
    assert (await mail.stats()).waiting == 0
    await lease.complete()
    assert await mail.claim() == []


# --- settings -----------------------------------------------------------------------------------


async def test_another_limit_holds_at_once(engine, clock):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aaaaa")
    held = await mail.claim(limit=5)
    await engine.configure("mail", key_concurrency="3/customer")
    clock.advance(0.01)
    held += await mail.claim(limit=5)
    assert payloads(held) == ["a0", "a1", "a2"]
    await engine.configure("mail", key_concurrency="1/customer")
    await held.pop().complete()
    await turns()
    assert await mail.claim() == []  # two are leased: more than the limit allows, and none is lost
    await engine.configure("mail", key_concurrency=None)
    clock.advance(0.01)
    assert payloads(await mail.claim(limit=5)) == ["a3", "a4"]


async def test_a_limit_that_changes_while_another_is_put_into_force_holds(
    engine, clock, monkeypatch
):
    monkeypatch.setattr(key_waits, "SLICE", 1)
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "abc" * 4)
    held = await mail.claim(limit=12)
    await engine.configure("mail", key_concurrency="2/customer")
    slices = engine._state.key_limits.slices()
    next(slices)
    await engine.configure("mail", key_concurrency="4/customer")
    for _ in slices:
        pass
    clock.advance(0.01)
    assert len(held + await mail.claim(limit=12)) == 12


async def test_an_act_on_what_is_ready_holds_no_queue_up_for_good(engine, clock, monkeypatch):
    monkeypatch.setattr(key_waits, "SLICE", 1)
    for name in ("mail", "sms"):
        await engine.configure(name, key_concurrency="1/customer")
        await put(engine.queue(name), "aaaa")
        assert len(await engine.queue(name, lease=KEEPS).claim(limit=4)) == 1
    limits = engine._state.key_limits
    for name in ("mail", "sms"):
        await engine.configure(name, key_concurrency="4/customer")
    limits.unswept_queues.update({b"mail": None, b"sms": None})
    slices = limits.slices()
    next(slices)
    with limits.held():  # as a purge of what is ready
        for _ in slices:
            pass
    clock.advance(0.01)
    for name in ("mail", "sms"):
        assert len(await engine.queue(name, lease=KEEPS).claim(limit=4)) == 3


async def test_another_label_lets_go_what_waits_for_the_first(engine, clock):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await mail.enqueue_many(
        [
            lodeq.NewTask(n, labels={"customer": "a", "region": region})
            for n, region in enumerate(["north", "south", "south"])
        ]
    )
    (lease,) = await mail.claim(limit=3)
    await engine.configure("mail", key_concurrency="1/region")
    clock.advance(0.01)
    assert payloads(await mail.claim(limit=3)) == [1]
    await lease.complete()
    await turns()
    assert await mail.claim() == []


@pytest.mark.parametrize(
    "wrong", ["", "2", "2/", "0/customer", "/customer", "2/a=b", "1000001/x", "2/" + "x" * 64, 2]
)
async def test_a_wrong_setting_is_refused(engine, wrong):
    with pytest.raises(lodeq.UsageError, match="2/customer"):
        await engine.configure("mail", key_concurrency=wrong)
    assert await engine.settings("mail") == lodeq.QueueSettings("mail")


async def test_a_label_is_needed(engine):
    await engine.configure("mail", key_concurrency="1/customer", rate=None)
    with pytest.raises(lodeq.UsageError, match="stores none"):
        await engine.configure("mail", faces=False)
    assert (await engine.settings("mail")).key_concurrency == "1/customer"


async def test_it_stands_beside_the_other_limits(engine, clock):
    await engine.configure("mail", key_concurrency="1/customer", concurrency=2, rate="3/s")
    clock.advance(1)
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aabbcc")
    held = await mail.claim(limit=6) + await mail.claim(limit=6)
    assert payloads(held) == ["a0", "b2"]  # what was set aside in between is not counted
    await held[0].complete()
    await turns()
    assert payloads(await mail.claim(limit=6)) == ["a1"]
    await held[1].complete()
    await turns()
    assert await mail.claim(limit=6) == []  # the rate
    clock.advance(1)
    assert payloads(await mail.claim(limit=6)) == ["b3"]


async def test_what_cannot_be_looked_through_holds_no_other_queue_up(engine, clock, monkeypatch):
    held = []
    for name in ("mail", "sms"):
        await engine.configure(name, key_concurrency="1/customer")
        queue = engine.queue(name, lease=KEEPS)
        await put(queue, "aa")
        held += await queue.claim(limit=2)
    real = KeyWaits._room

    def room(self, shard_queue, *rest):
        if shard_queue.tenant_queue.queue == b"mail":
            raise lodeq.StorageError("read")
        return real(self, shard_queue, *rest)

    monkeypatch.setattr(KeyWaits, "_room", room)
    for name in ("mail", "sms"):
        await engine.configure(name, key_concurrency="2/customer")
    clock.advance(0.01)
    assert payloads(await engine.queue("sms").claim()) == ["a1"]
    assert not engine._state.key_limits.has_unswept  # it is not tried again and again
    assert engine._state.anomalies == ["mail: what waits for keys: read"]
    engine._state.anomalies.clear()
    await held[0].complete()  # an end lets it go all the same
    await turns()
    assert payloads(await engine.queue("mail").claim()) == ["a1"]


async def test_nothing_is_kept_of_what_a_limit_let_go_that_holds_no_more(engine):
    await engine.configure("mail", key_concurrency="1/customer")
    mail = engine.queue("mail", lease=KEEPS)
    await put(mail, "aa")
    (lease,) = await mail.claim(limit=2)
    await lease.complete()
    await turns()
    assert engine._state.key_limits.woken
    await engine.configure("mail", key_concurrency=None)
    assert not engine._state.key_limits.woken


# --- crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "killed"])
async def test_nothing_waits_for_ever_after_a_restart(tmp_path, clock, how, anyio_backend):
    path = tmp_path / "store"
    async with lodeq.open(path, shards=2, clock=clock) as engine:
        await engine.configure("mail", key_concurrency="2/customer")
        mail = engine.queue("mail", lease=KEEPS)
        await put(mail, "aaaabbbb")
        assert len(await mail.claim(limit=8)) == 4
        assert (await mail.stats()).waiting == 4
        if how == "killed":
            copy_live(path, tmp_path / "killed")
            path = tmp_path / "killed"
    async with lodeq.open(path, clock=clock) as engine:
        mail = engine.queue("mail", lease=KEEPS)
        got = []
        for _ in itertools.count():
            clock.advance(1)
            held = await mail.claim(limit=8)
            if not held:
                break
            live = [payload[0] for payload in payloads(held)]
            assert max(live.count("a"), live.count("b")) <= 2
            got += payloads(held)
            for lease in held:
                await lease.complete()
            await turns()
        assert sorted(got) == ["a0", "a1", "a2", "a3", "b4", "b5", "b6", "b7"]
        await checked(engine)


async def test_without_its_setting_what_waits_goes_at_the_next_open(tmp_path, clock, anyio_backend):
    path = tmp_path / "store"
    async with lodeq.open(path, clock=clock) as engine:
        await engine.configure("mail", key_concurrency="1/customer")
        mail = engine.queue("mail", lease=KEEPS)
        await put(mail, "aaa")
        (lease,) = await mail.claim(limit=3)
        await lease.complete()
        await engine.configure("mail", key_concurrency=None)
    async with lodeq.open(path, clock=clock) as engine:
        clock.advance(1)
        assert payloads(await engine.queue("mail").claim(limit=3)) == ["a1", "a2"]
        await checked(engine)


# --- any order of it ----------------------------------------------------------------------------


class Life:
    """Steps drawn by a seed, on a store that may be reopened, and what must hold after each."""

    def __init__(self, seed, path, clock):
        self.random, self.path, self.clock = random.Random(seed), path, clock
        self.limit, self.held, self.live = 2, [], set()

    async def run(self, steps):
        for _ in range(3):
            async with lodeq.open(self.path, shards=2, clock=self.clock) as self.engine:
                self.mail = self.engine.queue("mail", lease=50, max_attempts=3)
                self.every = self.engine.queue("mail", tenant=ALL_TENANTS, lease=50)
                await self.configure(self.limit)
                for _ in range(steps):
                    await self.random.choice(self.moves)(self)
                    await turns(self.random.randrange(3))
                    self.look()
                await checked(self.engine)
                if self.random.random() < 0.3:  # else by whoever opens it next
                    await self.drain()
            self.held.clear()
        async with lodeq.open(self.path, clock=self.clock) as self.engine:
            self.mail = self.engine.queue("mail", lease=50, max_attempts=3)
            await self.drain()
            await checked(self.engine)

    def look(self):
        counts = Counter(
            (lease.shard_queue.tenant_queue.tenant, lease_label(lease))
            for lease in self.engine._state.leases.values()
        )
        assert max(counts.values(), default=0) <= self.most, counts

    async def configure(self, limit):
        self.limit = limit
        text = None if limit is None else f"{limit}/customer"
        await self.engine.configure("mail", key_concurrency=text)
        leased = Counter(
            (lease.shard_queue.tenant_queue.tenant, lease_label(lease))
            for lease in self.engine._state.leases.values()
        )
        self.most = max(limit or 1 << 30, max(leased.values(), default=0))

    async def put(self):
        queue = self.engine.queue("mail", tenant=self.random.choice(["", "t"]), max_attempts=3)
        tasks = [
            task(n, self.random.choice("ab"), priority=self.random.randrange(3, 6))
            for n in range(self.random.randrange(1, 6))
        ]
        if self.random.random() < 0.3:
            tasks = [one._replace(ttl=self.random.randrange(1, 200)) for one in tasks]
        await queue.enqueue_many(tasks)

    async def claim(self):
        queue = self.random.choice([self.mail, self.every])
        self.held += await queue.claim(limit=self.random.choice([1, 1, 2, 8]))

    async def end(self):
        if not self.held:
            return
        lease = self.held.pop(self.random.randrange(len(self.held)))
        ends = [lease.complete, lease.release, lease.bury, lambda: lease.nack(delay=0)]
        with contextlib.suppress(lodeq.LeaseLostError):
            await self.random.choice([*ends, lambda: lease.nack(delay=5)])()

    async def cancel(self):
        found = await self.every.list(self.random.choice(["ready", "waiting", "leased"]), limit=9)
        if found:
            await self.engine.cancel(self.random.choice(found).id)

    async def purge(self):
        if self.random.random() < 0.3:
            await self.every.purge(self.random.choice(["ready", "waiting"]))

    async def reprioritise(self):
        state = self.random.choice(["ready", "waiting"])
        tasks = lodeq.TaskFilter(queue="mail", state=state)
        await self.engine.act("reprioritise", tasks, priority=self.random.randrange(3, 6), limit=2)

    async def redrive(self):
        await self.mail.redrive()

    async def change(self):
        if self.random.random() < 0.3:
            await self.configure(self.random.choice([1, 2, 3, None]))

    async def wait(self):
        self.clock.advance(self.random.choice([0.01, 1, 6, 60]))

    moves = (put, claim, claim, end, end, cancel, purge, reprioritise, redrive, change, wait)

    async def drain(self):
        """Whoever claims and completes, and waits now and then, gets everything."""
        for _ in range(1000):
            self.clock.advance(60)
            await turns()
            for tenant in ("", "t"):
                for lease in await self.engine.queue("mail", tenant=tenant).claim(limit=8):
                    await lease.complete()
            await turns()
            stats = await self.engine.queues()
            if sum(one.pending + one.leased for one in stats.values()) == 0:
                return
        raise AssertionError(f"what waits stays: {stats}")


def lease_label(lease):
    return next((one for one in unpack_face(lease.face).labels if one.startswith("cust")), None)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_no_key_is_above_its_limit_and_none_is_stuck(
    tmp_path, clock, seed, anyio_backend
):
    await Life(seed, tmp_path / "store", clock).run(60)
