"""Settings of a queue and its limits, on every loop, over every store, on one shard and on four."""

import anyio
import pytest
from anyio.lowlevel import checkpoint
from conformance import test_engine as engines

import lodeq

pytestmark = pytest.mark.anyio
engine, opening = engines.engine, engines.opening
shards, store, form = engines.shards, engines.store, engines.form


# --- settings -----------------------------------------------------------------------------------


async def test_settings_are_there_until_they_are_taken_back(engine):
    assert await engine.settings("mail") == lodeq.QueueSettings("mail")
    found = await engine.configure("mail", rate="10/s", concurrency=8, faces=False)
    assert (found.rate, found.concurrency, found.faces) == ("10/s", 8, False)
    assert found.by == dict.fromkeys(("rate", "concurrency", "faces"), "operator")
    await engine.configure("mail", history=3600, history_rows=5, history_bytes=1 << 40, by="ann")
    found = await engine.settings("mail")
    assert (found.history, found.history_rows, found.history_bytes) == (3600.0, 5, 1 << 40)
    assert (found.by["history"], found.by["rate"]) == ("ann", "operator")
    await engine.configure("mail", rate=None, concurrency=None, faces=None, history=None)
    found = await engine.configure("mail", dead_max=0, dead_bytes=1 << 40)
    assert (found.dead_max, found.dead_bytes) == (0, 1 << 40)
    await engine.configure("mail", history_rows=None, history_bytes=None)
    await engine.configure("mail", dead_max=None, dead_bytes=None)
    assert await engine.settings("mail") == lodeq.QueueSettings("mail")
    assert ("mail", "") not in await engine.queues()  # a setting makes no queue


@pytest.mark.parametrize("form", [("rocks", 1), ("rocks", 4)], indirect=True)
async def test_settings_outlive_the_engine(anyio_backend, opening, form):
    async with opening() as engine:
        await engine.configure("mail", rate="3/10s", concurrency=2)
        await engine.configure("idle", faces=True, by="function send")
    async with opening() as engine:
        found = await engine.settings("mail")
        assert (found.rate, found.concurrency) == ("3/10s", 2)
        assert (await engine.settings("idle")).by == {"faces": "function send"}
        assert (await engine.verify()).ok


async def test_two_settings_for_one_queue_are_refused_with_both_names(engine):
    await engine.configure("mail", rate="10/s", by="function send")
    with pytest.raises(lodeq.UsageError, match=r"function send has set 10/s, function post wants"):
        await engine.configure("mail", rate="20/s", by="function post", replace=False)
    assert (await engine.settings("mail")).rate == "10/s"
    # The same value is no other setting, and who has set one may change it.
    same = await engine.configure("mail", rate="10/s", by="function post", replace=False)
    assert same.by == {"rate": "function send"}
    own = await engine.configure("mail", rate="20/s", by="function send", replace=False)
    assert own.rate == "20/s"


WRONG = [
    {},
    {"rate": "fast"},
    {"rate": "0/s"},
    {"dead_max": -1},
    {"dead_bytes": True},
    {"rate": 10},
    {"concurrency": 0},
    {"concurrency": True},
    {"concurrency": 1_000_001},
    {"history": -1},
    {"history_rows": 1.5},
    {"faces": 1},
    {"rate": "1/s", "by": ""},
    {"rate": "1/s", "by": "x" * 513},
]


async def test_a_wrong_setting_is_refused_and_nothing_is_set(engine, subtests):
    for wrong in WRONG:
        with subtests.test(str(wrong)):
            with pytest.raises(lodeq.UsageError):
                await engine.configure("mail", **wrong)
            assert await engine.settings("mail") == lodeq.QueueSettings("mail")


async def test_a_wrong_name_of_a_queue_is_refused(engine):
    with pytest.raises(lodeq.InvalidNameError):
        await engine.configure("Mail", rate="1/s")
    with pytest.raises(lodeq.InvalidNameError):
        await engine.settings("Mail")


# --- limits -------------------------------------------------------------------------------------


async def fill(engine, n=6, **options):
    await engine.queue("mail", **options).enqueue_many([lodeq.NewTask(b"x")] * n)


async def test_no_more_are_leased_at_once_than_the_concurrency(engine):
    await engine.configure("mail", concurrency=3)
    await fill(engine)
    await fill(engine, tenant="acme")
    mail = engine.queue("mail")
    leases = [*await mail.claim(), *await mail.claim(limit=2)]
    every = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    assert await mail.claim(limit=8) == await every.claim() == []
    assert await engine.claim(["mail", "other"], limit=8) == []
    await leases.pop().complete()
    await leases.pop().nack(delay=3600)
    assert len(await every.claim(limit=8)) == 2
    assert await every.claim(limit=8) == []
    await engine.configure("mail", concurrency=None)
    assert len(await every.claim(limit=99)) == 7  # one is completed, one waits after its nack


async def test_a_lease_that_ends_serves_who_waits(engine):
    await engine.configure("mail", concurrency=1)
    await fill(engine)
    mail = engine.queue("mail")
    (lease,) = await mail.claim()
    async with anyio.create_task_group() as group:
        calls = [engines.Call(group, mail.claim, wait=30) for _ in range(3)]
        await engines.settle()
        for _ in calls:
            assert not any(call.over.is_set() for call in calls)
            await lease.complete()
            with anyio.fail_after(10):
                while not (done := [call for call in calls if call.over.is_set()]):
                    await checkpoint()
            (call,) = done
            (lease,) = call.value
            calls = [one for one in calls if one is not call]
            await engines.settle()


async def test_no_more_start_in_a_window_than_the_rate(engine):
    await engine.configure("mail", rate="5/d")
    await fill(engine, n=12)
    mail = engine.queue("mail")
    for _ in range(4):
        for lease in await mail.claim(limit=2):
            await lease.release()  # a start that is released is not given back
    assert await mail.claim(limit=8) == []
    assert await engine.claim(["mail", "other"]) == []
    await engine.configure("mail", rate="7/d")
    assert len(await mail.claim(limit=8)) == 2
    await engine.configure("mail", rate=None)
    assert len(await mail.claim(limit=4)) == 4


async def test_waiting_claims_are_served_when_a_limit_is_raised(engine):
    await engine.configure("mail", rate="1/d", concurrency=9)
    await fill(engine)
    mail = engine.queue("mail")
    assert len(await mail.claim(limit=8)) == 1
    async with anyio.create_task_group() as group:
        calls = [engines.Call(group, mail.claim, wait=30) for _ in range(3)]
        await engines.settle()
        assert not any(call.over.is_set() for call in calls)
        await engine.configure("mail", rate="3/d")
        await engine.configure("mail", rate=None)
        with anyio.fail_after(10):
            assert [len(await call.result()) for call in calls] == [1, 1, 1]
