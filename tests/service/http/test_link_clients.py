"""Clients that use the link: when they do, what they do where it is lost, on every loop."""

import threading

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal
from support_http import serving, socket_path

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client.transport import layout
from lodeq.client.transport.entries import NotSpokenError
from lodeq.service.http import server as http_server
from lodeq.service.http.guard import Settings
from lodeq.service.http.link import connection as linked
from lodeq.service.http.link import operations

pytestmark = pytest.mark.anyio
asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture
def links(monkeypatch):
    """The links that the server has had."""
    found = []
    real = linked.LinkConnection.connection_made

    def made(self, transport):
        found.append(self)
        real(self, transport)

    monkeypatch.setattr(linked.LinkConnection, "connection_made", made)
    return found


@pytest.fixture
def url(links):
    """A server whose loop is in another thread."""
    with socket_path() as path, start_blocking_portal() as portal:
        opening = lodeq.testing.open()
        engine = portal.call(opening.__aenter__)
        with portal.wrap_async_context_manager(serving(engine, path=path)) as url:
            yield url
        portal.call(opening.__aexit__, None, None, None)


async def live(engine):
    """What a queue lives by, and more."""
    queue = engine.queue("mail")
    receipt = await queue.enqueue({"to": "a"}, headers={"trace": "1"})
    second = await queue.enqueue(b"plain")
    assert not receipt.duplicate
    (one,) = await queue.claim(worker="w1")
    assert (one.task_id, one.payload, one.headers) == (receipt.id, {"to": "a"}, {"trace": "1"})
    assert await one.heartbeat(600) > one.enqueued_at
    await one.complete({"ok": True}, then=[lodeq.NewTask(b"next")])
    assert (await engine.result(receipt.id)).value == {"ok": True}
    two, three = await queue.claim(limit=5, lease=20, wait=5)
    assert (two.task_id, two.payload, three.payload) == (second.id, b"plain", b"next")
    await two.nack(delay=0, reason="no luck")
    await three.complete()
    with pytest.raises(lodeq.LeaseLostError):
        await three.nack()
    four = await queue.claim_one()
    assert (four.attempt, four.payload) == (2, b"plain")
    await four.release()
    receipts = await queue.enqueue_many([lodeq.NewTask(n) for n in range(100)])
    assert len({one.id for one in receipts}) == 100
    leases = await queue.claim(limit=200)
    assert [lease.payload for lease in leases] == [b"plain", *range(100)]
    await leases[3].bury("bad")
    outcomes = await engine.complete_many([(lease, b"r") for lease in leases])
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [3]
    assert await queue.claim() == []
    stats = await queue.stats()
    assert (stats.ready, stats.leased, stats.dead) == (0, 0, 1)


# --- when it is used ----------------------------------------------------------------------------


async def test_a_client_uses_the_link_by_itself(url, links, anyio_backend_name):
    async with lodeq.connect(url) as engine:
        await live(engine)
    assert len(links) == 1  # trio asks one thing at a time here


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])
async def test_a_client_on_uvloop_uses_the_link(url, links, anyio_backend):
    """Its transports are no ``asyncio.Transport``."""
    with anyio.fail_after(60):
        async with lodeq.connect(url) as engine:
            await live(engine)
    assert len(links) == 1


def test_a_server_on_uvloop_speaks_the_link(links):
    uvloop = {"use_uvloop": True}
    with socket_path() as path, start_blocking_portal(backend_options=uvloop) as portal:
        opening = lodeq.testing.open()
        engine = portal.call(opening.__aenter__)
        with (
            portal.wrap_async_context_manager(serving(engine, path=path)) as url,
            lodeq.sync.connect(url) as client,
        ):
            queue = client.queue("mail")
            queue.enqueue(b"x")
            (lease,) = queue.claim()
            lease.complete(b"done")
        portal.call(opening.__aexit__, None, None, None)
    assert len(links) == 1


async def test_many_callers_share_one_connection(url, links):
    async with lodeq.connect(url) as engine:
        queue = engine.queue("mail")

        async def cycle():
            for _ in range(5):
                await queue.enqueue(b"x")
                for lease in await queue.claim(wait=5):
                    await lease.complete(b"done")

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(cycle)
        assert (await queue.stats()).results == 100
    assert len(links) == 1


def test_threads_share_one_connection(url, links):
    with lodeq.sync.connect(url) as engine:
        queue = engine.queue("mail")

        def cycle():
            for _ in range(20):
                queue.enqueue(b"x")
                for lease in queue.claim(wait=5):
                    lease.complete(b"done")

        threads = [threading.Thread(target=cycle) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert queue.stats().results == 160
        leases = queue.enqueue_many([lodeq.NewTask(n) for n in range(3)]) and queue.claim(limit=3)
        assert engine.complete_many([(lease, None) for lease in leases]) == [None] * 3
    assert len(links) == 1


@asyncio_only
async def test_an_older_server_is_spoken_to_in_http(monkeypatch, links, anyio_backend):
    monkeypatch.setattr(http_server._Protocol, "_is_new", False)
    async with lodeq.testing.open() as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
                await live(engine)
                await anyio.to_thread.run_sync(_blocking_life, url)
    assert links == []


def _blocking_life(url):
    with lodeq.sync.connect(url) as engine:
        engine.queue("threads").enqueue(b"x")
        engine.queue("threads").claim_one().complete()


@asyncio_only
@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-nothing\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
async def test_who_is_no_server_of_ours_gets_no_request(anyio_backend, answer):
    got = []

    async def handle(stream):
        async with stream:
            got.append(await stream.receive())
            if answer:
                await stream.send(answer)

    with socket_path() as path:
        listener = await anyio.create_unix_listener(path)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, handle)
            with pytest.raises(lodeq.LodeqError):
                await lodeq.connect(f"unix://{path}", timeout=2)
            group.cancel_scope.cancel()
        await listener.aclose()
    assert got[0][:1] == b"\0"
    assert got[1].startswith(b"GET /v1/engine ")  # a read, over HTTP


@asyncio_only
async def test_tcp_needs_the_token(links, anyio_backend):
    settings = Settings(token="right-token-of-16")
    async with lodeq.testing.open() as inner, serving(inner, settings=settings) as http_url:
        url = http_url.replace("http://", "tcp://")
        with pytest.raises(lodeq.AccessDeniedError):
            await lodeq.connect(url, token="wrong-token-of-16")
        with pytest.raises(lodeq.AccessDeniedError):
            await lodeq.connect(url)
        async with lodeq.connect(url, token="right-token-of-16") as engine:
            await live(engine)
        n = len(links)
        async with lodeq.connect(http_url, token="right-token-of-16") as engine:
            await engine.queue("mail").enqueue(b"x")
        assert len(links) == n == 3  # http:// stays HTTP


async def test_nobody_there_is_unreachable():
    with socket_path() as path, pytest.raises(lodeq.UnreachableError):
        await lodeq.connect(f"unix://{path}")


@pytest.mark.parametrize("wrong", ["tcp://", "tcp://host", "tcp://host:99999", "tcp://h:1/path"])
async def test_an_address_that_is_none_is_refused(wrong):
    with pytest.raises(lodeq.UsageError):
        await lodeq.connect(wrong)


# --- values and limits --------------------------------------------------------------------------


async def test_large_payloads_go_round(url):
    async with lodeq.connect(url) as engine:
        queue = engine.queue("mail")
        large = [bytes([n]) * size for n, size in enumerate((20_000, 300_000, 1_000_000))]
        for one in large:
            await queue.enqueue(one)
            await queue.enqueue({"packed": one[: len(one) // 2]})
        leases = await queue.claim(limit=10)
        assert [lease.payload for lease in leases[::2]] == large
        assert leases[5].payload == {"packed": large[2][:500_000]}
        await leases[0].complete(large[1])
        assert (await engine.result(leases[0].task_id)).value == large[1]
        with pytest.raises(lodeq.PayloadTooLargeError):
            await queue.enqueue(b"x" * (engine.session.limits.payload_bytes_max + 1))


@asyncio_only
async def test_more_queues_than_handles(url, monkeypatch, anyio_backend):
    monkeypatch.setattr("lodeq.client.transport.connection.HANDLES_MAX", 3)
    async with lodeq.connect(url) as engine:
        for _ in range(2):
            for n in range(8):
                await engine.queue(f"queue-{n}").enqueue(n)
        for n in range(8):
            leases = await engine.queue(f"queue-{n}").claim(limit=5)
            assert [lease.payload for lease in leases] == [n, n]


# --- what is lost -------------------------------------------------------------------------------


@pytest.fixture
async def pair(links, anyio_backend):
    async with lodeq.testing.open() as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
                yield inner, engine


@pytest.fixture
def cut(monkeypatch):
    """Answers to be cut off: each ends its connection in place of the answer."""
    left = [0]
    for name in ("answer", "answer_sized"):
        real = getattr(linked.LinkConnection, name)

        def answer(self, *args, real=real):
            if left[0]:
                left[0] -= 1
                self._abort()
            else:
                real(self, *args)

        monkeypatch.setattr(linked.LinkConnection, name, answer)
    return left


@asyncio_only
async def test_a_lost_enqueue_may_have_happened(pair, cut):
    inner, engine = pair
    cut[0] = 1
    with pytest.raises(lodeq.CommitUnknownError):
        await engine.queue("mail").enqueue(b"x")
    assert (await inner.queue("mail").stats()).ready == 1  # once
    cut[0] = 1
    with pytest.raises(lodeq.CommitUnknownError) as caught:
        await engine.queue("mail").enqueue_many([lodeq.NewTask(n) for n in range(3)])
    assert caught.value.receipts == [None] * 3
    await engine.queue("mail").enqueue(b"y")
    assert (await inner.queue("mail").stats()).ready == 5


@asyncio_only
async def test_a_lost_complete_is_repeated(pair, cut, links):
    inner, engine = pair
    queue = engine.queue("mail")
    await queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
    one, two, three = await queue.claim(limit=3)
    cut[0] = 1
    await one.complete(b"first")
    assert (await inner.result(one.task_id)).value == b"first"
    cut[0] = 1
    assert await engine.complete_many([(two, b"second")]) == [None]
    assert (await inner.result(two.task_id)).value == b"second"
    cut[0] = 1
    with pytest.raises(lodeq.CommitUnknownError):  # nothing shows that it was done
        await three.complete(keep=False)
    assert len(links) == 3


@asyncio_only
async def test_a_lost_claim_is_taken_back(pair, cut):
    inner, engine = pair
    await inner.queue("mail").enqueue(b"x")
    cut[0] = 1
    with pytest.raises(lodeq.UnreachableError):
        await engine.queue("mail").claim()
    assert (await inner.queue("mail").stats()).ready == 1
    (lease,) = await engine.queue("mail").claim()
    assert lease.attempt == 1


@asyncio_only
async def test_a_cancelled_claim_takes_nothing(pair):
    inner, engine = pair
    with anyio.move_on_after(0.02):
        await engine.queue("mail").claim(wait=30)
    await inner.queue("mail").enqueue(b"x")
    assert (await inner.queue("mail").stats()).ready == 1


@pytest.mark.slow
@asyncio_only
async def test_a_server_that_hangs_is_given_up(monkeypatch, anyio_backend):
    async with lodeq.testing.open() as inner:
        with socket_path() as path:
            async with (
                serving(inner, path=path) as url,
                lodeq.connect(url, timeout=0.1) as engine,
            ):
                queue = engine.queue("mail")
                await queue.enqueue(b"x")
                monkeypatch.setattr(linked.LinkConnection, "_write", lambda self, data: None)
                with pytest.raises(lodeq.CommitUnknownError, match="no answer in time"):
                    await queue.enqueue(b"y")
                with pytest.raises(lodeq.UnreachableError, match="no answer in time"):
                    await engine.stats()


@asyncio_only
async def test_a_server_that_is_started_again_is_found(links, anyio_backend):
    async with lodeq.testing.open() as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url:
                engine = await lodeq.connect(url)
                queue = engine.queue("mail")
                await queue.enqueue(b"one")
                (lease,) = await queue.claim()
            with pytest.raises(lodeq.UnreachableError):
                await queue.enqueue(b"nobody is there")
            async with serving(inner, path=path):
                await queue.enqueue(b"two")
                await lease.complete(b"done")
                assert [one.payload for one in await queue.claim(limit=5)] == [b"two"]
                assert (await inner.result(lease.task_id)).value == b"done"
                await engine.close()
    assert len(links) == 2


class Gone:
    """A link whose server answers every hello with something else, or not at all."""

    def __init__(self, *, is_certain):
        self.is_certain = is_certain
        self.closed = 0

    async def send(self, call, doubt):
        await anyio.lowlevel.checkpoint()
        raise NotSpokenError(is_certain=self.is_certain)

    async def aclose(self):
        self.closed += 1
        await anyio.lowlevel.checkpoint()


@asyncio_only
@pytest.mark.parametrize("is_certain", [True, False])
async def test_several_calls_that_find_no_link_go_by_http(pair, is_certain):
    """A server that only closes may be stopping: the next one is asked for the link again."""
    _, engine = pair
    gone = engine._transport._framed = Gone(is_certain=is_certain)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(engine.stats)
    assert gone.closed == (1 if is_certain else 0)
    assert engine._transport._framed is (None if is_certain else gone)


@asyncio_only
async def test_a_server_that_closes_without_a_word_may_still_have_the_link(links, anyio_backend):
    async with lodeq.testing.open() as inner:
        with socket_path() as path:
            async with serving(inner, path=path) as url:
                engine = await lodeq.connect(url)
            listener = await anyio.create_unix_listener(path)

            async def close(stream):
                await stream.aclose()

            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, close)
                with pytest.raises(lodeq.UnreachableError):
                    await engine.stats()
                group.cancel_scope.cancel()
            await listener.aclose()
            async with serving(inner, path=path):
                await engine.queue("mail").enqueue(b"x")
                await engine.close()
    assert len(links) == 2


@asyncio_only
async def test_a_request_that_was_not_begun_is_sent_again(pair, links):
    inner, engine = pair
    await engine.queue("mail").enqueue(b"one")
    links[0].shed()  # the request below is on its way when the client reads of it
    await engine.queue("mail").enqueue(b"two")
    assert (await inner.queue("mail").stats()).ready == 2
    assert len(links) == 2


@asyncio_only
async def test_a_closed_client_says_so(pair):
    _, engine = pair
    errors = []

    async def wait():
        try:
            await engine.queue("mail").claim(wait=30)
        except lodeq.ClosedError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await engine.queue("mail").stats()
        await engine.close()
    assert len(errors) == 1
    for call in (engine.queue("mail").enqueue(b"x"), engine.queue("mail").claim(), engine.stats()):
        with pytest.raises(lodeq.ClosedError):
            await call


@asyncio_only
async def test_a_bug_of_the_server_is_an_error_of_one_request(pair, monkeypatch, caplog):
    _, engine = pair

    def broken(link, entry):
        raise RuntimeError("a bug")

    handlers = dict(operations.HANDLERS)
    (kind,) = [one for one in handlers if one.__name__ == "Enqueue"]
    monkeypatch.setattr(operations, "HANDLERS", handlers | {kind: broken})
    with pytest.raises(lodeq.LodeqError, match="see its log"):
        await engine.queue("mail").enqueue(b"x")
    assert "a bug" in caplog.text
    assert (await engine.queue("mail").stats()).ready == 0


def test_frames_stay_below_their_limit():
    entries = [(1, n, 0, 0, b"x" * 1000) for n in range(20_000)]
    data = layout.frames_of(entries)
    reader = layout.FrameReader()
    bodies = list(reader.feed(data))
    assert reader.is_empty
    assert len(bodies) > 4
    assert sum(layout.entry_count(body) for body in bodies) == 20_000
