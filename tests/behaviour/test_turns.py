"""No call of a queue holds the loop for long, whatever is stored and however much: by CPU time.

Besides what the caller's own values take: to pack them, and to unpack those that a call returns.
"""

import asyncio
from contextlib import contextmanager
from functools import partial

import pytest
from support_turns import held_at_most

import lodeq
from lodeq import ALL_TENANTS, NewTask
from lodeq.repository.model.arguments import LIMIT_MAX
from lodeq.repository.model.codec import PackedBytes

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CALLBACK_MS = 20.0
N = 400
EMPTY_LISTS = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x90" * 1_000_000
REASON = "\x00" * 40_000


class Stored:
    """A codec under which hostile bytes are what they are: those who read them pay for it."""

    def encode(self, value):
        return bytes(value)

    def decode(self, data):
        return data


@contextmanager
def short():
    with held_at_most(CALLBACK_MS):
        yield


@pytest.fixture
async def engine(tmp_path):
    limits = lodeq.Limits(payload_bytes_max=1 << 20, reason_bytes_max=32 << 10)
    async with lodeq.open(tmp_path / "jobs", shards=2, limits=limits) as engine:
        yield engine


async def all_of(mail):
    leases = []
    while found := await mail.claim(limit=64, lease=3600):
        leases += found
    return leases


async def test_large_tasks(engine):
    mail = engine.queue("mail", codec=Stored(), max_attempts=9)
    headers = {"h": ["x" * 16_000]}
    await mail.enqueue(EMPTY_LISTS)  # warm
    with short():
        await mail.enqueue(EMPTY_LISTS, headers=headers, dedup_key="k")
    with short():
        await mail.enqueue(PackedBytes(EMPTY_LISTS), dedup_key="k", on_conflict="replace")
    with short():
        await mail.enqueue_many([NewTask(EMPTY_LISTS, headers=headers) for _ in range(16)])
    with short():
        leases = await all_of(mail)
    assert len(leases) == 18
    with short():
        await leases[0].complete(EMPTY_LISTS, then=[NewTask(EMPTY_LISTS, queue="audit")] * 3)
    with short():
        await engine.complete_many([(lease, EMPTY_LISTS) for lease in leases[1:4]])
    with short():
        for lease in leases[4:10]:
            await lease.bury(REASON)
    with short():
        await asyncio.gather(*(lease.nack(reason=REASON, delay=0) for lease in leases[10:14]))
    with short():
        await engine.heartbeat_many(leases[14:], 7200)
    with short():
        await leases[14].release()
    for n in (0, 4, 10, 14):
        with short():
            assert await engine.get(leases[n].task_id) is not None
    with short():
        assert (await engine.result(leases[0].task_id)).value == EMPTY_LISTS
    for state, count in {"ready": 5, "leased": 3, "dead": 6, "completed": 4}.items():
        with short():
            assert len(await mail.list(state)) == count
    with short():
        assert len(await mail.dead_letters()) == 6
    with short():
        assert len(await mail.peek(16)) == 5
    with short():
        await mail.redrive()
    with short():
        assert (await engine.verify()).ok
    with short():
        assert await mail.purge() == 11


async def test_what_is_found_is_decoded_by_who_reads_it(engine):
    mail = engine.queue("mail", max_attempts=1)
    hostile = PackedBytes(EMPTY_LISTS)
    await mail.enqueue_many([NewTask(hostile, headers={"h": [[]] * 15_000}) for _ in range(5)])
    dead, done, leased = await mail.claim(limit=3, lease=3600)
    await dead.bury("no")
    await done.complete(hostile)
    found = []
    for _ in range(2):  # the first is to warm up
        with short():
            found = [await engine.get(one.task_id) for one in (dead, leased)]
        for state in ("ready", "leased", "dead"):
            with short():
                found += await mail.list(state)
        with short():
            found += await mail.dead_letters()
        with short():
            found += await mail.peek(2)
        with short():
            result = await engine.result(done.task_id)
    assert len(found) == 9
    assert found[0].payload == result.value == [[]] * 1_000_000
    assert found[0].headers == {"h": [[]] * 15_000}


async def test_many_small_tasks(engine):
    mail = engine.queue("mail", max_attempts=3)
    tasks = [NewTask({"n": n}, dedup_key=f"k{n}", priority=n % 10) for n in range(8 * N)]
    await mail.enqueue_many(tasks[:100])  # warm
    with short():
        await mail.enqueue_many(tasks)
    with short():
        assert all(receipt.duplicate for receipt in await mail.enqueue_many(tasks))
    with short():
        await engine.enqueue_many([NewTask(n, queue="mail", shard_key="a") for n in range(8 * N)])
    with short():
        await mail.enqueue_many([NewTask(n, delay=3600) for n in range(8 * N)])
    with short():
        await asyncio.gather(*(mail.enqueue(n) for n in range(2 * N)))
    leases = []
    for _ in range(6):
        with short():
            leases += await mail.claim(limit=N, lease=3600)
    assert len(leases) == 6 * N
    with short():
        assert await engine.heartbeat_many(leases, 7200) == [None] * len(leases)
    with short():
        await engine.complete_many([(lease, None) for lease in leases[: 2 * N]])
    with short():
        await engine.complete_many([(lease, None) for lease in leases[: 2 * N]])
    with short():
        await asyncio.gather(*(lease.bury("no") for lease in leases[2 * N : 4 * N]))
    with short():
        await asyncio.gather(*(lease.nack(delay=0) for lease in leases[4 * N : 5 * N]))
    for state in ("ready", "delayed", "leased", "dead", "completed"):
        with short():
            await mail.list(state, limit=10_000)
    with short():
        dead = [task.id for task in await mail.dead_letters(limit=2 * N)]
    with short():
        assert await mail.redrive(dead[:N]) == N
    with short():
        assert await mail.redrive() == N
    with short():
        assert (await engine.verify()).ok
    for state in ("dead", "delayed", "ready"):
        with short():
            await mail.purge(state)
    with short():
        assert await mail.claim(limit=64) == []


async def test_as_many_leases_as_there_are_in_one_call(engine):
    mail, count = engine.queue("mail"), 24_000
    await mail.enqueue_many([NewTask(n) for n in range(count)])
    leases = []
    while len(leases) < count:
        leases += await mail.claim(limit=4096, lease=3600)
    for seconds in (7200, 600):
        with short():
            assert await engine.heartbeat_many(leases, seconds) == [None] * count
    with short():
        assert await engine.complete_many([(lease, None) for lease in leases]) == [None] * count
    with short():
        await engine.complete_many([(lease, None) for lease in leases])  # of before: no error


async def test_a_claim_of_as_many_as_there_may_be(engine):
    mail = engine.queue("mail", boost_after=60)
    for names in ("warm", "plain"), ("mail",):
        for name in names:
            await engine.queue(name).enqueue_many([NewTask(n) for n in range(2 * LIMIT_MAX)])
    assert len(await engine.queue("warm").claim(limit=LIMIT_MAX, lease=3600)) == LIMIT_MAX
    for claim in (engine.queue("plain").claim, mail.claim, partial(engine.claim, ["plain"])):
        with short():
            leases = await claim(limit=LIMIT_MAX, lease=3600)
        assert len({lease.task_id for lease in leases}) == LIMIT_MAX
        assert [lease.payload for lease in leases] == sorted(lease.payload for lease in leases)
    with short():
        waiting = asyncio.ensure_future(engine.queue("new").claim(limit=LIMIT_MAX, wait=60))
        await asyncio.sleep(0)
        await engine.queue("new").enqueue_many([NewTask(n) for n in range(LIMIT_MAX)])
        assert await waiting


async def test_many_tenants(engine):
    every = engine.queue("mail", tenant=ALL_TENANTS)
    await engine.queue("mail", tenant="warm").enqueue(b"")
    names = [f"t{n}" for n in range(5 * N)]
    with short():
        await engine.enqueue_many([NewTask(b"", queue="mail", tenant=name) for name in names])
    calls = (
        every.stats,
        engine.stats,
        engine.queues,
        engine.health,
        every.pause,
        every.resume,
        lambda: every.claim(limit=N),
        lambda: every.list("ready", limit=N),
        lambda: every.list("dead"),
        lambda: every.list("leased", limit=N),
        every.redrive,
        lambda: every.purge("dead"),
        engine.verify,
    )
    for call in calls:
        await call()  # warm
        with short():
            await call()
    with short():
        assert await every.purge() == len(names) + 1 - 2 * N
