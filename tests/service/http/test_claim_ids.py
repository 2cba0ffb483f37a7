"""A claim that its client takes back: what it was granted goes back, and nothing comes later."""

import contextlib
import os

import anyio
import anyio.lowlevel
import httpx
import pytest
from support_http import BASE, asgi_client, serving, socket_path

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client import calls
from lodeq.client.blocking.engine import SyncRemoteEngine
from lodeq.client.calls import Session
from lodeq.client.engine import RemoteEngine
from lodeq.client.transport.transport import SyncTransport, Target, Transport
from lodeq.service.http.app import make_app
from lodeq.service.http.server_state import CANCELLED_MAX, GRANTED_MAX

pytestmark = pytest.mark.anyio
CLAIM = "/v1/leases/claim"
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # so are sockets served


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


class Held(httpx.AsyncBaseTransport):
    """Answers of claims are held back: the server has granted, and nobody has read it."""

    def __init__(self, app, *, fails=False):
        self._inner = httpx.ASGITransport(app)
        self._fails = fails
        self.held = anyio.Event()

    async def handle_async_request(self, request):
        response = await self._inner.handle_async_request(request)
        if request.url.path == CLAIM:
            await response.aread()
            self.held.set()
            if self._fails:
                raise httpx.ReadError("cut off", request=request)
            await anyio.sleep_forever()
        return response


async def client_of(app, transport):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as plain:
        session = Session((await plain.get("/v1/engine")).json())
    return RemoteEngine(Transport(Target(BASE, None, 30.0), transport), session)


@contextlib.asynccontextmanager
async def socket_of(engine):
    with socket_path() as path:
        async with serving(engine, path=path) as url:
            yield url


async def is_back(engine, count=1):
    tasks = await engine.queue("mail").peek()
    assert [(task.state, task.attempts) for task in tasks] == [("ready", 0)] * count
    assert not engine._state.leases


async def test_a_claim_cancelled_in_mid_answer_comes_back_at_once(engine):
    await engine.queue("mail").enqueue(b"x")
    app = make_app(engine)
    transport = Held(app)
    client = await client_of(app, transport)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: client.queue("mail").claim(wait=60))
        await transport.held.wait()
        assert len(engine._state.leases) == 1
        group.cancel_scope.cancel()
    await is_back(engine)
    await client.close()


@pytest.mark.parametrize("wait", [0, 60])
async def test_a_claim_cancelled_at_any_step_comes_back_at_once(wait):
    leases = []

    async def claim(client):
        leases.extend(await client.queue("mail").claim(wait=wait))

    for steps in range(1000):
        async with lodeq.testing.open() as engine:
            await engine.queue("mail").enqueue(b"x")
            app = make_app(engine)
            client = await client_of(app, httpx.ASGITransport(app))
            async with anyio.create_task_group() as group:
                group.start_soon(claim, client)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            if leases:
                break
            await is_back(engine)
    assert steps


async def test_a_claim_whose_answer_is_lost_comes_back_at_once(engine):
    await engine.queue("mail").enqueue(b"x")
    app = make_app(engine)
    client = await client_of(app, Held(app, fails=True))
    with pytest.raises(lodeq.UnreachableError):
        await client.queue("mail").claim()
    await is_back(engine)
    await client.close()


async def test_a_client_that_closes_takes_its_claims_back(engine):
    await engine.queue("mail").enqueue(b"x")
    app = make_app(engine)
    transport = Held(app)
    client = await client_of(app, transport)

    async def claim():
        with pytest.raises(lodeq.ClosedError):
            await client.queue("mail").claim(wait=60)

    async with anyio.create_task_group() as group:
        group.start_soon(claim)
        await transport.held.wait()
        await client.close()
    await is_back(engine)


class Late(httpx.AsyncBaseTransport):
    """The answer of a claim reaches its client after the client, closing, has cancelled it."""

    def __init__(self, app, *, loses_cancels=False):
        self._inner = httpx.ASGITransport(app)
        self._loses_cancels = loses_cancels
        self.granted = anyio.Event()
        self.cancelled = anyio.Event()
        self.ended = anyio.Event()

    async def handle_async_request(self, request):
        if request.url.path.endswith("/cancel_claim"):
            if self._loses_cancels:
                self.cancelled.set()
                raise httpx.ReadError("cut off", request=request)
            response = await self._inner.handle_async_request(request)
            self.cancelled.set()
            with anyio.move_on_after(1):  # the client still has its connections
                await self.ended.wait()
            return response
        response = await self._inner.handle_async_request(request)
        if request.url.path == CLAIM:
            await response.aread()
            self.granted.set()
            await self.cancelled.wait()
        return response


@pytest.mark.parametrize("loses_cancels", [False, True])
async def test_a_claim_that_closing_takes_back_hands_out_no_lease(engine, loses_cancels):
    """Its leases are the server's again: a complete of one would find it lost."""
    await engine.queue("mail").enqueue(b"x")
    app = make_app(engine)
    transport = Late(app, loses_cancels=loses_cancels)
    client = await client_of(app, transport)

    errors = []

    async def work():
        try:
            for lease in await client.queue("mail").claim(wait=60):
                await lease.complete()
        except lodeq.LodeqError as error:
            errors.append(type(error))
        finally:
            transport.ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await transport.granted.wait()
        await client.close()
    assert errors == [lodeq.ClosedError]
    if not loses_cancels:
        await is_back(engine)


async def test_closing_leaves_the_leases_of_answered_claims_alone(engine):
    await engine.queue("mail").enqueue(b"x")
    app = make_app(engine)
    transport = Late(app)
    client = await client_of(app, httpx.ASGITransport(app))
    (lease,) = await client.queue("mail").claim()
    client._transport._given = transport  # from here on, cancels would be seen
    await client.close()
    assert not transport.cancelled.is_set()
    assert list(engine._state.leases) == [lease.task_id]


class Stuck(httpx.AsyncBaseTransport):
    """A server that answers no claim, and no cancelling of one until there are so many."""

    def __init__(self, app, count):
        self._inner = httpx.ASGITransport(app)
        self._count = count
        self.claims = self.cancels = 0
        self._are_all = anyio.Event()

    async def handle_async_request(self, request):
        if request.url.path == CLAIM:
            self.claims += 1
            await anyio.sleep_forever()
        self.cancels += 1
        if self.cancels == self._count:
            self._are_all.set()
        await self._are_all.wait()
        return await self._inner.handle_async_request(request)


async def test_a_client_that_closes_waits_for_a_stuck_server_once(engine, monkeypatch):
    monkeypatch.setattr(calls, "CANCEL_CLAIM_S", 60)
    app, count = make_app(engine), 6
    transport = Stuck(app, count)
    client = await client_of(app, transport)

    async def claim():
        with pytest.raises(lodeq.ClosedError):
            await client.queue("mail").claim(wait=60)

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(claim)
        while transport.claims < count:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            await client.close()
    assert transport.cancels == count


class Twice(httpx.AsyncBaseTransport):
    """The answer of a claim is lost, and that of the first attempt to cancel it."""

    def __init__(self, app):
        self._inner = httpx.ASGITransport(app)
        self._lost = set()

    async def handle_async_request(self, request):
        is_new = request.url.path not in self._lost
        self._lost.add(request.url.path)
        if request.url.path == CLAIM:
            await self._inner.handle_async_request(request)
        if is_new:
            raise httpx.ReadError("cut off", request=request)
        return await self._inner.handle_async_request(request)


async def test_a_cancel_that_is_lost_is_sent_again(engine):
    await engine.queue("mail").enqueue(b"x")
    app = make_app(engine)
    client = await client_of(app, Twice(app))
    with pytest.raises(lodeq.UnreachableError):
        await client.queue("mail").claim()
    await is_back(engine)


@ON_ASYNCIO
async def test_over_a_socket_the_lease_is_back_before_the_cancelled_claim_returns(engine):
    async with socket_of(engine) as url, lodeq.connect(url) as client:
        await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x")] * 8)
        for _ in range(20):  # wherever the cancellation falls
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def cancel(scope=scope):
                        await anyio.lowlevel.checkpoint()
                        while not engine._state.leases:
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    group.start_soon(cancel)
                    await client.queue("mail").claim(limit=8, lease=3600)
                    for lease in list(engine._state.leases.values()):  # it was quicker
                        await lease.release()
            await is_back(engine, 8)


@ON_ASYNCIO
async def test_a_blocking_claim_whose_answer_is_lost_comes_back_at_once(engine):
    await engine.queue("mail").enqueue(b"x")
    async with socket_of(engine) as url:

        class Cut(httpx.HTTPTransport):
            def handle_request(self, request):
                response = super().handle_request(request)
                if request.url.path == CLAIM:
                    response.read()
                    raise httpx.ReadError("cut off", request=request)
                return response

        def claim():
            link = SyncTransport(Target(url, None, 30.0), Cut(uds=url.removeprefix("unix://")))
            client = SyncRemoteEngine(link, Session(link.send(calls.engine_call("/engine"))))
            with pytest.raises(lodeq.UnreachableError):
                client.queue("mail").claim()
            client.close()

        await anyio.to_thread.run_sync(claim)
        await is_back(engine)


# --- what the server keeps ----------------------------------------------------------------------


async def post(http, path, claim_id, **doc):
    return await http.post(path, content=calls.FORM.dumps({"claim_id": claim_id, **doc}))


@pytest.fixture
async def http(engine):
    kind = calls.FORM.content_type
    async with asgi_client(make_app(engine), **{"content-type": kind, "accept": kind}) as http:
        yield http


async def claimed(http, claim_id, **doc):
    answer = await post(http, CLAIM, claim_id, queues=["mail"], **doc)
    assert answer.status_code == 200, answer.content
    return calls.FORM.loads(answer.content)["leases"]


async def cancelled(http, claim_id):
    answer = await post(http, "/v1/leases/cancel_claim", claim_id)
    assert answer.status_code == 200, answer.content
    return calls.FORM.loads(answer.content)["released"]


async def test_a_cancel_that_overtakes_its_claim_forbids_it(engine, http):
    await engine.queue("mail").enqueue(b"x")
    claim_id = os.urandom(16)
    assert await cancelled(http, claim_id) == 0
    assert await claimed(http, claim_id) == []
    assert await claimed(http, claim_id, wait=60) == []
    await is_back(engine)
    assert len(await claimed(http, os.urandom(16))) == 1


async def test_a_waiting_claim_that_is_cancelled_answers_with_nothing(engine, http):
    claim_id = os.urandom(16)
    answers = []

    async def wait():
        answers.append(await claimed(http, claim_id, wait=60))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        while not sum(map(len, engine._state.waiters.by_tenant_queue.values())):
            await anyio.lowlevel.checkpoint()
        assert await cancelled(http, claim_id) == 0
    assert answers == [[]]
    await engine.queue("mail").enqueue(b"x")
    await is_back(engine)


async def test_what_was_ended_meanwhile_is_left_alone(engine, http):
    await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x"), lodeq.NewTask(b"y")])
    claim_id = os.urandom(16)
    first, second = await claimed(http, claim_id, limit=2)
    await engine._state.leases[first["task_id"]].complete()
    await engine._state.leases[second["task_id"]].release()
    (again,) = await engine.queue("mail").claim()  # another lease of that task
    assert await cancelled(http, claim_id) == 0
    await again.complete()


async def test_an_id_is_used_once_and_has_16_bytes(engine, http):
    await engine.queue("mail").enqueue(b"x")
    claim_id = os.urandom(16)
    assert len(await claimed(http, claim_id)) == 1
    assert (await post(http, CLAIM, claim_id, queues=["mail"])).status_code == 422
    for wrong in (b"", b"x" * 15, b"x" * 17, "text", 7):
        assert (await post(http, CLAIM, wrong, queues=["mail"])).status_code == 422
        assert (await post(http, "/v1/leases/cancel_claim", wrong)).status_code == 422


async def test_memory_of_ids_is_bounded_and_keeps_no_lease_alive(engine):
    claims = make_app(engine).state.hub.claims
    for n in range(CANCELLED_MAX + 10):
        claims.cancel(n.to_bytes(16, "big"))
    assert len(claims._cancelled) == CANCELLED_MAX
    await engine.queue("mail").enqueue(b"x")
    (lease,) = await engine.queue("mail").claim()
    for n in range(GRANTED_MAX + 10):
        assert claims.end(claims.begin(n.to_bytes(16, "little")), [lease])
    assert (len(claims._granted), claims._granted_count) == (GRANTED_MAX, GRANTED_MAX)
    assert not claims._in_progress
    kept = [entry for granted in claims._granted.values() for entry in granted]
    assert {tuple(map(type, entry)) for entry in kept} == {(type(lease.task_id), int)}


async def test_an_id_that_two_connections_use_is_counted_once(engine):
    claims = make_app(engine).state.hub.claims
    await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x"), lodeq.NewTask(b"y")])
    leases = await engine.queue("mail").claim(limit=2)
    waiting = claims.begin(bytes(16))
    assert claims.grant(bytes(16), leases)  # over the link the id is the client's to choose
    assert claims.end(waiting, leases[:1])
    assert claims._granted_count == 1
    assert claims.take_back(bytes(16)) == leases[:1]
    assert (claims._granted_count, len(claims._granted)) == (0, 0)


async def test_an_older_server_is_sent_no_id(engine):
    app = make_app(engine)
    client = await client_of(app, httpx.ASGITransport(app))
    assert client.session.takes_claim_ids
    client.session.takes_claim_ids = False
    call = calls.claim(
        client.session, ["mail"], limit=1, lease=None, wait_s=0, worker="", claim_id=b"x" * 16
    )
    assert "claim_id" not in call.doc
    await client.close()
