"""A wrong call is told as the engine would tell it, a wrong address before it is used."""

import os

import httpx
import pytest
from anyio import to_thread
from support_http import BASE, ServedOpening, serving

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client import calls
from lodeq.client.transport.transport import Target
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
LONE = "\ud800"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["embedded", "served"])
async def engine(request):
    opening = lodeq.testing.open()
    if request.param == "served":
        opening = ServedOpening(opening)
    async with opening as engine:
        yield engine


# --- calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"dedup_key": LONE},
        {"shard_key": LONE},
        {"dedup_key": ""},
        {"dedup_key": b"x" * 4097},
        {"on_conflict": LONE, "dedup_key": "k"},
        {"headers": {LONE: 1}},
        {"priority": object()},
    ],
    ids=map(str, range(7)),
)
async def test_an_enqueue_that_is_wrong(engine, options):
    with pytest.raises(lodeq.UsageError):
        await engine.queue("mail").enqueue(b"x", **options)


@pytest.mark.parametrize("name", ["queue", "tenant"])
async def test_a_name_that_is_none(engine, name):
    with pytest.raises(lodeq.UsageError):
        await engine.enqueue_many([lodeq.NewTask(b"x", **{"queue": "mail", name: LONE})])


async def test_a_worker_that_no_encoding_knows_is_told_as_it_can_be(engine):
    queue = engine.queue("mail")
    receipt = await queue.enqueue(b"x")
    await (await queue.claim_one(worker=LONE)).complete()
    assert (await engine.result(receipt.id)).worker == "?"


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": 4097},
        {"lease": 0},
        {"lease": "x"},
        {"worker": 5},
        {"worker": "x" * 257},
        {"wait": 0},
    ],
    ids=str,
)
async def test_a_stream_is_refused_where_it_is_made(engine, options):
    with pytest.raises(lodeq.UsageError):
        engine.queue("mail").leases(**options)


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.queue("mail").list(LONE),
        lambda engine: engine.queue("all", tenant=lodeq.ALL_TENANTS).claim(skip_tenants=[LONE]),
        lambda engine: engine.queue("mail").redrive([LONE]),
    ],
)
async def test_text_that_no_encoding_knows(engine, call):
    with pytest.raises(lodeq.UsageError):
        await call(engine)


async def test_an_unheard_of_snapshot(tmp_path):
    async with ServedOpening(lodeq.open(tmp_path / "s", shards=1)) as client:
        for engine in (client, client.inner):
            with pytest.raises(lodeq.LodeqError):
                await engine.release_snapshot(LONE)


async def test_a_heartbeat_of_no_length_ends_at_once(engine):
    await engine.queue("mail").enqueue(b"x")
    lease = await engine.queue("mail").claim_one()
    until = lease.deadline
    assert await lease.heartbeat(0) < until
    assert lease.deadline < until


# --- in several requests ------------------------------------------------------------------------


@pytest.fixture
async def few():
    """A client whose server takes three of anything in a request."""
    async with ServedOpening(lodeq.testing.open(), Settings(batch_max=3)) as engine:
        yield engine


async def bury(queue, n):
    await queue.enqueue_many([lodeq.NewTask(i) for i in range(n)])
    leases = [await queue.claim_one() for _ in range(n)]
    for lease in leases:
        await lease.bury("x")
    return [lease.task_id for lease in leases]


async def test_many_are_redriven_in_several_requests(few):
    queue = few.queue("mail")
    ids = await bury(queue, 7)
    assert await queue.redrive(ids) == 7
    assert await queue.redrive([]) == 0
    ids = await bury(queue, 7)
    ids[1] = lodeq.TaskId(bytes(16))
    with pytest.raises(lodeq.TaskNotFoundError, match=str(ids[1])):
        await queue.redrive(ids)
    # The others went, also those after it.
    assert (await queue.stats()).dead == 1
    with pytest.raises(lodeq.UsageError):
        await queue.redrive([*ids, "x"])
    with pytest.raises(lodeq.LimitError):  # of somebody else's client
        await few.send(calls.queue_call(queue.template, "redrive", {"ids": [bytes(16)] * 4}))


async def test_a_thread_redrives_in_several_requests(tmp_path):
    async with lodeq.testing.open() as engine:
        ids = await bury(engine.queue("mail"), 7)
        async with serving(engine, settings=Settings(batch_max=3)) as url:

            def redrive():
                with lodeq.sync.connect(url) as client:
                    return client.queue("mail").redrive(ids)

            assert await to_thread.run_sync(redrive) == 7


async def test_as_many_tenants_are_passed_over_as_a_worker_has(engine):
    queue = engine.queue("mail", tenant=lodeq.ALL_TENANTS)
    await engine.queue("mail", tenant="last").enqueue(b"x")
    skip = [f"t{n}" for n in range(10_000)]  # of a worker's concurrency at most
    assert await queue.claim(skip_tenants=[*skip, "last"]) == []
    (lease,) = await queue.claim(skip_tenants=skip)
    await lease.complete()


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "unix:",
        "unix://",
        "unix://a\0b",
        "http://",
        "http:///x",
        "http://[::1",
        "http://localhost:x",
        "http://localhost:99999",
        f"http://{'x' * 64}.example",
        "http://a..b",
        f"http://{LONE}",
        "http://localhost?x",
        "http://localhost#x",
        "ftp://x",
        5,
        None,
        b"unix:///x",
    ],
    ids=ascii,
)
def test_an_address_that_is_none(url):
    with pytest.raises(lodeq.UsageError):
        Target(url, None, 1.0)


@pytest.mark.parametrize("token", [5, b"bytes", "", "ü", "a\nb"], ids=ascii)
def test_a_token_that_is_none(token):
    with pytest.raises(lodeq.UsageError):
        Target(BASE, token, 1.0)


@pytest.mark.parametrize("path", ["/x/a#b", "/x/a?b", "/x/a%20b", "relative", "/x/[a]", "/x//y"])
def test_a_socket_may_have_any_name(path):
    assert Target(f"unix://{path}", None, 1.0).uds == os.path.join(os.getcwd(), path)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8765", "http://localhost:8765/v1"),
        ("http://[::1]:1/", "http://[::1]:1/v1"),
        ("https://jobs.example/below/", "https://jobs.example/below/v1"),
    ],
)
def test_an_address(url, base):
    assert Target(url, None, 1.0).base == base
    assert httpx.URL(base)


def test_a_path_adds_no_line_and_no_word_to_a_request():
    target = Target("http://127.0.0.1:1/pre fix", None, 1.0)
    call = calls.Call("GET", "/tasks/a b\r\nx: y\u00e9", query={"limit": "1 \r\n"})
    first, *rest = target.request_bytes(call).split(b"\r\n")
    assert first == (b"GET /pre%20fix/v1/tasks/a%20b%0D%0Ax:%20y%C3%A9?limit=1+%0D%0A HTTP/1.1")
    assert [line.partition(b":")[0] for line in rest] == [
        b"host",
        b"accept",
        b"user-agent",
        b"",
        b"",
    ]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.ORG", b"example.org"),
        ("http://b\u00fccher.example:80/x", b"xn--bcher-kva.example:80"),
        ("http://[::1]:8765", b"[::1]:8765"),
        ("https://user:secret@host:443", b"host:443"),
        ("unix:///run/l.sock", b"lodeq"),
    ],
)
def test_the_host_of_a_request(url, host):
    request = Target(url, "t0ken", 1.0).request_bytes(calls.Call("POST", "/tasks", doc={}))
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"host: " + host in head.split(b"\r\n")
    assert b"authorization: Bearer t0ken" in head.split(b"\r\n")
    assert b"content-length: %d" % len(body) in head.split(b"\r\n")
