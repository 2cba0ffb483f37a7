"""The client's own part: batches in pieces, codecs, waits in polls, answers that are lost."""

import subprocess
import sys
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from support_http import BASE, ServedOpening, serving, socket_path

import lodeq
import lodeq.testing
from lodeq.client import lease_facts
from lodeq.client import leases as streaming
from lodeq.client.calls import Session, engine_call
from lodeq.client.engine import RemoteEngine
from lodeq.client.transport.transport import Target, Transport
from lodeq.repository.model.codec import CodecBytes
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
_mono = lease_facts._mono


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Upper:
    """A codec."""

    def encode(self, value):
        return value.upper().encode()

    def decode(self, data):
        return data.decode().lower()


@pytest.fixture
async def pair():
    """A served engine, and its client."""
    async with ServedOpening(lodeq.testing.open()) as client:
        yield client.inner, client


class Faulty(httpx.AsyncBaseTransport):
    """Passes requests on, or raises what the test has put in line."""

    def __init__(self, app):
        self.real = httpx.ASGITransport(app)
        self.faults = []
        self.after = []  # raised once the server has done it
        self.sent = []

    async def handle_async_request(self, request):
        self.sent.append(request.url.path.removeprefix("/v1"))
        if self.faults:
            raise self.faults.pop(0)
        response = await self.real.handle_async_request(request)
        if self.after:
            await response.aread()
            raise self.after.pop(0)
        return response


@pytest.fixture
async def faulty():
    async with lodeq.testing.open() as engine:
        transport = Faulty(make_app(engine, Settings(wait_s_max=0.001, batch_max=3)))
        link = Transport(Target(BASE, None, 30.0), transport)
        client = RemoteEngine(link, Session(await link.send(engine_call("/engine"))))
        client.transport = transport
        transport.sent.clear()
        yield client
        await client.close()


# --- values -------------------------------------------------------------------------------------

PAYLOADS = [
    b"", b"\0\xff", None, True, "text", 2**64 - 1, -1.5, [], {"a": [b"x", {"b": None}]},
    {1: "int key"}, datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
]  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS, ids=repr)
async def test_a_value_is_the_same_on_both_sides(pair, payload):
    engine, client = pair
    here, there = engine.queue("mail"), client.queue("mail")
    for sender in (here, there):
        receipt = await sender.enqueue(payload, headers={"value": payload})
        for one in (await engine.get(receipt.id), await client.get(receipt.id)):
            assert (one.payload, one.headers) == (payload, {"value": payload})
        lease = await there.claim_one()
        assert (lease.payload, lease.headers) == (payload, {"value": payload})
        await lease.complete(payload)
        assert (await engine.result(receipt.id)).value == payload
        assert await client.result(receipt.id) == await engine.result(receipt.id)


@pytest.mark.parametrize("verb", ["nack", "bury"])
@pytest.mark.parametrize("text", ["y", "\N{EURO SIGN}", "\udcff"], ids=["ascii", "euro", "half"])
async def test_a_reason_of_any_length_is_cut_as_in_the_process(pair, verb, text):
    reasons = []
    for one in pair:
        await one.queue("mail").enqueue(b"x", max_attempts=1)
        lease = await one.queue("mail").claim_one()
        await getattr(lease, verb)(reason=text * (9 << 20))
        task = await one.get(lease.task_id)
        reasons.append((task.state, task.reason))
    assert reasons[0] == reasons[1]
    assert reasons[0][0] == "dead"


async def test_an_error_that_cannot_be_shown_ends_the_lease_of_its_block(pair):
    class MuteError(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    for one in pair:
        await one.queue("mail").enqueue(b"x", max_attempts=1)
        lease = await one.queue("mail").claim_one()
        with pytest.raises(MuteError):
            async with lease:
                raise MuteError
        task = await one.get(lease.task_id)
        assert (task.state, task.reason) == ("dead", "MuteError")


async def test_tasks_and_statistics_are_equal_on_both_sides(pair):
    engine, client = pair
    here, there = engine.queue("mail", tenant="acme"), client.queue("mail", tenant="acme")
    when = datetime(2124, 1, 1, tzinfo=UTC)
    await there.enqueue(b"1", run_at=when, ttl=5, max_attempts=2, priority=9, headers={"a": 1})
    await there.enqueue(b"2", dedup_key=b"\xff", dedup_window=60)
    await there.enqueue(b"3", shard_key="s")
    await (await there.claim_one(worker="w")).bury("bad")
    for state in ("ready", "delayed", "leased", "dead"):
        assert await here.list(state) == await there.list(state)
    everybody = lodeq.ALL_TENANTS
    assert await engine.queue("mail", tenant=everybody).list("ready") == await client.queue(
        "mail", tenant=everybody
    ).list("ready")
    seen, told = await here.stats(), await there.stats()
    assert (seen.ready, seen.delayed, seen.dead) == (told.ready, told.delayed, told.dead)
    assert (await engine.stats()).shards == (await client.stats()).shards


async def test_a_codec_stays_in_the_client(pair):
    engine, client = pair
    shout = client.queue("shout", codec=Upper())
    receipt = await shout.enqueue("hello")
    assert (await engine.get(receipt.id)).payload == CodecBytes(b"HELLO")
    assert (await client.get(receipt.id)).payload == "hello"
    assert [task.payload for task in await shout.peek()] == ["hello"]
    lease = await shout.claim_one()
    assert lease.payload == "hello"
    await lease.complete("done")
    assert (await client.result(receipt.id)).value == "done"


async def test_a_codec_in_the_servers_process_reads_what_a_client_wrote(pair):
    engine, client = pair
    here, there = engine.queue("shout", codec=Upper()), client.queue("shout", codec=Upper())
    await there.enqueue("from there")
    assert (await here.claim_one()).payload == "from there"
    receipt = await here.enqueue("from here")
    assert (await client.get(receipt.id)).payload == "from here"
    assert (await there.claim_one()).payload == "from here"


async def test_a_policy_travels_with_the_enqueue(pair):
    engine, client = pair
    queue = client.queue(
        "mail",
        max_attempts=2,
        retention=60,
        dead_retention=120,
        backoff=lodeq.Backoff("fixed", base=3),
        lease=7,
    )
    await queue.enqueue(b"x")
    there = await queue.claim_one()
    assert there.lease_s == 7
    await there.release()
    here = await engine.queue("mail").claim_one()
    assert here.policy == there.policy
    assert (here.policy.max_attempts, here.policy.retention_ms) == (2, 60_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"delay": -1},
        {"run_at": datetime(2024, 1, 1)},  # noqa: DTZ001
        {"run_at": "tomorrow"},
        {"dedup_key": 5},
        {"headers": {1: 2}},
        {"on_conflict": "hope"},
        {"durable": 1},
        {"dedup_window": 5},
        {"ttl": float("nan")},
        {"max_attempts": 0},
    ],
    ids=repr,
)
async def test_a_wrong_call_is_a_usage_error_as_it_is_embedded(pair, wrong):
    for engine in pair:
        with pytest.raises(lodeq.UsageError):
            await engine.queue("mail").enqueue(b"x", **wrong)
        assert (await engine.queue("mail").stats()).ready == 0


async def test_limits_are_the_engines():
    limits = lodeq.Limits(payload_bytes_max=4, result_bytes_max=3)
    async with ServedOpening(lodeq.testing.open(limits=limits)) as client:
        with pytest.raises(lodeq.PayloadTooLargeError) as caught:
            await client.queue("mail").enqueue(b"12345")
        assert caught.value.limit_bytes == 4
        await client.queue("mail").enqueue(b"1234")
        with pytest.raises(lodeq.PayloadTooLargeError):
            await (await client.queue("mail").claim_one()).complete(b"1234")


# --- batches ------------------------------------------------------------------------------------


async def test_a_large_batch_goes_in_pieces(faulty):
    queue = faulty.queue("mail")
    receipts = await queue.enqueue_many([lodeq.NewTask(n) for n in range(8)])
    assert faulty.transport.sent == ["/tasks"] * 3
    assert [(await faulty.get(one.id)).payload for one in receipts] == list(range(8))
    leases = [lease for _ in range(3) for lease in await queue.claim(limit=4096)]
    assert len(leases) == 8
    assert await faulty.heartbeat_many(leases) == [None] * 8
    await leases[5].release()
    outcomes = await faulty.complete_many([(lease, None) for lease in leases])
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [5]
    assert outcomes[5].task_id == leases[5].task_id


async def test_what_an_atomic_call_cannot_hold_is_refused(faulty):
    with pytest.raises(lodeq.LimitError):
        await faulty.queue("mail").enqueue_many([lodeq.NewTask(n) for n in range(4)], atomic=True)
    assert faulty.transport.sent == []


async def test_a_batch_that_fails_half_way_tells_what_was_enqueued():
    opening = lodeq.testing.open(limits=lodeq.Limits(pending_max=4))
    async with ServedOpening(opening, Settings(batch_max=3)) as client:
        with pytest.raises(lodeq.QueueFullError) as caught:
            await client.queue("mail").enqueue_many([lodeq.NewTask(n) for n in range(8)])
        done = [receipt is not None for receipt in caught.value.receipts]
        assert done == [True] * sum(done) + [False] * (8 - sum(done))
        assert (await client.queue("mail").stats()).ready == sum(done) >= 3


async def test_a_list_of_large_tasks_comes_in_pages(faulty):
    queue = faulty.queue("mail")
    for n in range(20):
        await queue.enqueue_many([lodeq.NewTask(bytes([n]) * 900_000)])
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
    faulty.transport.sent.clear()
    found = await queue.list("ready", limit=21)
    assert [task.payload for task in found[:20]] == [bytes([n]) * 900_000 for n in range(20)]
    assert found[20].payload == 0
    assert len(faulty.transport.sent) == 5  # 4 MiB each


# --- waiting ------------------------------------------------------------------------------------


async def test_a_long_wait_is_many_polls(faulty):
    queue = faulty.queue("mail")
    found = []

    async def claim():
        found.extend(await queue.claim(wait=60))

    async with anyio.create_task_group() as group:
        group.start_soon(claim)
        while len(faulty.transport.sent) < 3:
            await anyio.lowlevel.checkpoint()
        receipt = await queue.enqueue(b"x")
    assert [lease.task_id for lease in found] == [receipt.id]

    async def result():
        found.append(await faulty.result(receipt.id, wait=60))

    faulty.transport.sent.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(result)
        while len(faulty.transport.sent) < 3:
            await anyio.lowlevel.checkpoint()
        await found[0].complete(5)
    assert found[1].value == 5


async def test_a_stream_keeps_alive_what_it_holds(pair, monkeypatch):
    _, client = pair
    beats = anyio.Event()
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) > 1:
            beats.set()
            await anyio.sleep_forever()

    monkeypatch.setattr(streaming, "sleep", sleep)
    await client.queue("mail").enqueue_many([lodeq.NewTask(n) for n in range(3)])
    async with client.queue("mail").leases(lease=60) as stream:
        lease = await anext(stream)
        before = lease.deadline
        await beats.wait()
        assert lease.deadline > before
        await lease.complete()
    assert slept == [20, 20]
    assert (await client.queue("mail").stats()).ready == 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("keepalive", [True, False])
def test_a_cancelled_stream_gives_back_what_it_holds(backend, keepalive):
    async def main():
        async with ServedOpening(lodeq.testing.open()) as client:
            queue = client.queue("mail")
            await queue.enqueue_many([lodeq.NewTask(n) for n in range(20)])
            with anyio.CancelScope() as scope:
                stream = queue.leases(limit=20, keepalive=keepalive)
                async with stream, await anext(stream):
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
            assert scope.cancelled_caught
            assert [(task.payload, task.attempts) for task in await queue.list("ready")] == [
                (n, 0) for n in range(20)
            ]

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stream_in_a_generator_may_be_left_by_another_task(backend):
    async def main():
        async with (
            ServedOpening(lodeq.testing.open()) as client,
            anyio.create_task_group() as group,
        ):
            queue = client.queue("mail")
            await queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])

            async def jobs():
                async with queue.leases(limit=3) as stream:
                    async for lease in stream:
                        yield lease

            left = jobs()
            lease = await anext(left)
            is_closed = anyio.Event()

            async def close():  # as a loop does with a generator that nobody refers to any more
                await left.aclose()
                is_closed.set()

            group.start_soon(close)
            await is_closed.wait()
            await anyio.lowlevel.checkpoint()
            await lease.complete()
            assert [task.payload for task in await queue.list("ready")] == [1, 2]

    anyio.run(main, backend=backend)


async def test_a_stream_sends_no_beats_once_its_client_is_closed(pair, monkeypatch):
    _, client = pair
    beats = []
    is_over = anyio.Event()

    async def heartbeat_many(leases):
        beats.append(leases)
        await client.close()
        is_over.set()
        raise lodeq.ClosedError("the client is closed")

    async def sleep(_):
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(streaming, "sleep", sleep)
    await client.queue("mail").enqueue(b"x")
    stream = client.queue("mail").leases()
    monkeypatch.setattr(stream._engine, "heartbeat_many", heartbeat_many)
    async with stream:
        await anext(stream)
        await is_over.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
    assert len(beats) == 1


async def test_a_stream_survives_a_beat_that_fails(faulty, monkeypatch):
    beats = []

    async def sleep(seconds):
        beats.append(seconds)
        if len(beats) == 1:
            faulty.transport.faults.append(httpx.ConnectError("refused"))
        elif len(beats) == 3:
            over.set()
            await anyio.sleep_forever()

    over = anyio.Event()
    monkeypatch.setattr(streaming, "sleep", sleep)
    await faulty.queue("mail").enqueue(b"x")
    async with faulty.queue("mail").leases() as stream:
        lease = await anext(stream)
        before = lease.deadline
        await over.wait()
        assert lease.deadline > before
        await lease.complete()


async def test_a_stream_is_iterated_inside_its_block(pair):
    _, client = pair
    with pytest.raises(lodeq.UsageError, match="async with"):
        await anext(client.queue("mail").leases())


# --- what can go wrong on the way ---------------------------------------------------------------

LOST = [httpx.ReadError("cut"), httpx.RemoteProtocolError("cut"), httpx.ReadTimeout("slow")]


@pytest.mark.parametrize("fault", LOST, ids=repr)
async def test_a_lost_answer_to_an_enqueue_leaves_its_outcome_open(faulty, fault):
    queue = faulty.queue("mail")
    faulty.transport.after.append(fault)
    with pytest.raises(lodeq.CommitUnknownError):
        await queue.enqueue(b"x", dedup_key="k")
    assert (await queue.enqueue(b"x", dedup_key="k")).duplicate


@pytest.mark.parametrize("fault", LOST, ids=repr)
async def test_a_lost_answer_to_a_complete_is_asked_for_again(faulty, fault):
    receipt = await faulty.queue("mail").enqueue(b"x")
    lease = await faulty.queue("mail").claim_one()
    faulty.transport.after.append(fault)
    await lease.complete(5)
    assert (await faulty.result(receipt.id)).value == 5


async def test_a_complete_that_keeps_no_result_is_not_repeated(faulty):
    await faulty.queue("mail").enqueue(b"x")
    lease = await faulty.queue("mail").claim_one()
    faulty.transport.after.append(LOST[0])
    with pytest.raises(lodeq.CommitUnknownError):
        await lease.complete(5, keep=False)


async def test_a_server_that_is_not_there(faulty):
    for call in (faulty.stats, faulty.queue("mail").claim, faulty.fsync):
        faulty.transport.faults += [httpx.ConnectError("refused")]
        with pytest.raises(lodeq.UnreachableError):
            await call()
    faulty.transport.faults += [httpx.ConnectError("refused")]
    with pytest.raises(lodeq.UnreachableError):  # nothing was sent, so nothing has happened
        await faulty.queue("mail").enqueue(b"x")
    assert (await faulty.queue("mail").stats()).ready == 0


async def test_a_server_that_closes_its_store_is_no_closed_client(pair):
    """A deploy: a client that asks in that moment asks again soon, at the server that follows."""
    engine, client = pair
    await engine.close()
    for call in (client.stats, client.queue("mail").claim, client.fsync):
        with pytest.raises(lodeq.UnreachableError, match="is stopping"):
            await call()


# httpcore leaves a socket that could not connect to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_nobody_listens(tmp_path):
    with pytest.raises(lodeq.UnreachableError):
        await lodeq.connect(f"unix://{tmp_path}/none")
    with pytest.raises(lodeq.UnreachableError):
        lodeq.sync.connect(f"unix://{tmp_path}/none")


@pytest.mark.parametrize("url", ["", "mail", "unix://", "ftp://x", "http://"])
async def test_an_address_that_is_none(url):
    with pytest.raises(lodeq.UsageError):
        await lodeq.connect(url)
    with pytest.raises(lodeq.UsageError):
        lodeq.sync.connect(url)


async def test_an_answer_of_another_server():
    def answer(request):
        return httpx.Response(200, text="<html>", headers={"content-type": "text/html"})

    link = Transport(Target(BASE, None, 1.0), httpx.MockTransport(answer))
    with pytest.raises(lodeq.UsageError, match="no lodeq server"):
        await link.send(engine_call("/engine"))
    await link.aclose()


async def test_closing_ends_every_call(pair):
    _, client = pair
    errors = []

    async def claim():
        with pytest.raises(lodeq.ClosedError) as caught:
            await client.queue("mail").claim(wait=60)
        errors.append(caught.value)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(claim)
        while len(client._transport._pending) < 3:
            await anyio.lowlevel.checkpoint()
        await client.close()
    assert len(errors) == 3
    with pytest.raises(lodeq.ClosedError):
        await client.stats()


async def test_leases_of_the_async_client_are_kept_alive_from_a_thread():
    with socket_path() as path:
        async with (
            lodeq.testing.open() as engine,
            serving(engine, path=path) as url,
            lodeq.connect(url) as client,
        ):
            await client.queue("mail").enqueue(b"x")
            (lease,) = await client.queue("mail").claim(lease=5)
            before = lease.deadline
            beat = client.sync.heartbeat_many
            assert await anyio.to_thread.run_sync(beat, [lease], 60) == [None]
            assert lease.deadline > before


@pytest.mark.parametrize("missing", ["httpx", "httptools", "msgspec"])
def test_the_core_does_not_need_the_extra(missing):
    code = """
import sys
sys.modules[sys.argv[1]] = sys.modules["starlette"] = sys.modules["uvicorn"] = None
import asyncio, lodeq, lodeq.sync
for call in (lodeq.sync.connect, lambda url: asyncio.run(connect(url))):
    async def connect(url):
        await lodeq.connect(url)
    try:
        call("unix:///none")
    except lodeq.UsageError as error:
        assert 'pip install "lodeq[http]"' in str(error)
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code, missing], check=True, timeout=60)


async def test_an_older_server_is_named_where_it_keeps_no_progress(pair):
    _, engine = pair
    queue = engine.queue("jobs")
    await queue.enqueue(b"x")
    (lease,) = await queue.claim()
    engine.session.takes_progress = False
    with pytest.raises(lodeq.UsageError, match=r"keeps no progress .* upgrade the server"):
        await lease.progress(0.5)
    with pytest.raises(lodeq.UsageError, match=r"cannot cancel all of a queue: .* upgrade"):
        await queue.cancel_all()


async def test_heartbeats_of_one_shard_that_is_led_elsewhere_are_not_lost(monkeypatch):
    """Nor do they keep those of the others from being extended, and told so."""
    async with ServedOpening(lodeq.testing.open(shards=2), Settings()) as client:
        queue = client.queue("mail")
        await queue.enqueue_many([lodeq.NewTask(n, shard_key=str(n)) for n in range(12)])
        leases = await queue.claim(limit=12, lease=30)
        state = client.inner._state
        left = state.shards[1].coalescer

        def check_session(coalescer=None):
            if coalescer is left:
                raise lodeq.NotLeaderError("led elsewhere")

        monkeypatch.setattr(type(left), "check_session", check_session)
        before = {lease: lease.deadline for lease in leases}
        await anyio.sleep(0.01)
        assert await client.heartbeat_many(leases) == [None] * 12
        extended = [lease.deadline > before[lease] for lease in leases]
        assert extended == [
            state.shard_of(lease.task_id) is not state.shards[1] for lease in leases
        ]
        assert 0 < sum(extended) < 12
        only = [lease for lease in leases if state.shard_of(lease.task_id) is state.shards[1]]
        with pytest.raises(lodeq.NotLeaderError):
            await client.heartbeat_many(only)


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_stream_hands_out_no_lease_that_ran_out_while_it_waited(monkeypatch, is_blocking):
    clock = lodeq.testing.ManualClock()

    async def take(stream):
        if is_blocking:
            return await anyio.to_thread.run_sync(next, stream)
        return await anext(stream)

    with socket_path() as path:
        async with lodeq.testing.open(clock=clock) as engine, serving(engine, path=path) as url:
            here = engine.queue("mail")
            for n in range(3):
                await here.enqueue(n)
            async with lodeq.connect(url) as client:
                store = client.sync if is_blocking else client
                stream = store.queue("mail").leases(lease=10, keepalive=False, wait=0.01)
                each = iter(stream) if is_blocking else await stream.__aenter__()
                assert (await take(each)).payload == 0
                clock.advance(11)
                monkeypatch.setattr(lease_facts, "_mono", lambda: _mono() + 11)
                others = await here.claim(limit=9)
                assert len(others) == 3
                await here.enqueue("next")
                assert (await take(each)).payload == "next"
                assert all(one.is_live for one in others)
                if is_blocking:
                    await anyio.to_thread.run_sync(each.close)
                else:
                    await stream.__aexit__(None, None, None)


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_stream_hands_out_no_lease_of_which_nobody_says_that_it_is_held(
    monkeypatch, is_blocking
):
    """One look is enough for all, and the claim that follows says what is wrong."""
    looks = []
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path) as url:
            await engine.queue("mail").enqueue_many([lodeq.NewTask(n) for n in range(3)])
            async with lodeq.connect(url) as client:
                store = client.sync if is_blocking else client
                stream = store.queue("mail").leases(lease=10, keepalive=False, wait=0.01)
                each = iter(stream) if is_blocking else await stream.__aenter__()

                async def take():
                    return await (
                        anyio.to_thread.run_sync(next, each) if is_blocking else anext(each)
                    )

                assert (await take()).payload == 0
                waiting = list(stream._waiting)
                assert len(waiting) == 2
                gone = lodeq.UnreachableError("gone")

                def look(self, *args):
                    looks.append(self)
                    raise gone

                monkeypatch.setattr(type(waiting[0]), "heartbeat", look)
                monkeypatch.setattr(stream, "_claim", look.__get__(stream))
                monkeypatch.setattr(lease_facts, "_mono", lambda: _mono() + 11)
                with pytest.raises(lodeq.UnreachableError, match="gone"):
                    await take()
                assert looks == [waiting[0], stream]
                assert [one.is_live for one in waiting] == [False, False]
                if not is_blocking:
                    await stream.__aexit__(None, None, None)
