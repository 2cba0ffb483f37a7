"""The link, seen from the server: what a client of any language may send, and what it gets."""

from contextlib import asynccontextmanager

import anyio
import msgpack
import pytest
from anyio.lowlevel import checkpoint
from support_http import serving, socket_path
from support_wire import NONCE, frame, pack, wired

import lodeq
import lodeq.testing
from lodeq.client.transport.layout import FRAME_BYTES_MAX
from lodeq.service.http import server as http_server
from lodeq.service.http.guard import Settings
from lodeq.service.http.link import connection as linked

pytestmark = pytest.mark.anyio
ENTRY_ERRORS = "urn:lodeq:problem:"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


@pytest.fixture
async def url(engine):
    with socket_path() as path:
        async with serving(engine, path=path) as url:
            yield url


@pytest.fixture
async def wire(url):
    async with wired(url) as wire:
        wire.send([0, 0, pack({"queue": "mail"})])
        yield wire


async def eventually(condition):
    with anyio.fail_after(10):
        while not condition():
            await checkpoint()


# --- hello --------------------------------------------------------------------------------------


async def test_http_and_links_share_a_socket(engine, url, wire):
    async with lodeq.connect(url) as client:
        await client.queue("mail").enqueue(b"x")
    import httpx

    transport = httpx.AsyncHTTPTransport(uds=url.removeprefix("unix://"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/v1/queues/mail/stats")).json()["ready"] == 1
    wire.send([8, 1, "GET", "/queues/mail/stats", {}, None, 5.0])
    status, body = await wire.answer(1)
    assert (status, msgpack.unpackb(body)["ready"]) == (0, 1)


@pytest.mark.parametrize("token", [None, "", "wrong", "right-token-of-16\0", "ü"])
async def test_a_wrong_token_is_refused(engine, token):
    settings = Settings(token="right-token-of-16")
    with socket_path() as path:
        async with serving(engine, path=path, settings=settings) as url:
            async with wired(url, greet=False) as wire:
                version, (is_welcome, problem) = await wire.hello(token)
                assert (version, is_welcome, problem["status"]) == (1, False, 401)
                said = "this token is not the server's" if token else "give the server's token"
                assert said in problem["detail"]
                assert await wire.is_closed()
            async with wired(url, token="right-token-of-16") as wire:
                wire.send([8, 1, "GET", "/health", {}, None, None])
                assert (await wire.answer(1))[0] == 0


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (1, 1), (2, 1), (255, 1)])
async def test_the_lower_version_is_spoken(url, asked, got):
    async with wired(url, greet=False) as wire:
        version, (is_welcome, _) = await wire.hello(version=asked)
        assert (version, is_welcome) == (got, got == 1)


@pytest.mark.parametrize(
    "hello",
    [
        b"\1" + pack([None, b"short", "x"]),
        b"\1" + pack({"token": None}),
        b"\1",
        b"\1" + pack([None, NONCE, "x" * 5000]),
        b"\1" + pack([5, NONCE, "x"]),
    ],
)
async def test_a_hello_that_is_none_ends_the_connection(url, hello):
    async with wired(url, greet=False) as wire:
        wire.writer.write(frame(hello))
        body = await wire.body()
        is_welcome, problem = msgpack.unpackb(body[1:])
        assert (is_welcome, problem["status"]) == (False, 400)
        assert await wire.is_closed()


async def test_a_hello_behind_its_time_ends_the_connection(url, monkeypatch):
    monkeypatch.setattr(linked, "HELLO_WAIT_S", 0.02)
    async with wired(url, greet=False) as wire:
        wire.writer.write(b"\0\0")
        assert await wire.is_closed()


async def test_members_that_come_later_are_passed_over(url):
    async with wired(url, greet=False) as wire:
        wire.writer.write(frame(b"\1" + pack([None, NONCE, "x", {"new": 1}])))
        assert msgpack.unpackb((await wire.body())[1:])[0] is True
        wire.send([8, 1, "GET", "/health", {}, None, None, {"new": [1, 2]}, 3])
        assert (await wire.answer(1))[0] == 0


# --- frames -------------------------------------------------------------------------------------

CALL = [8, 1, "GET", "/health", {}, None, None]


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        frame(b"\xc1"),
        frame(pack({"not": "a list"})),
        frame(pack([CALL])[:-1]),
        frame(pack([CALL]) + b"\0"),
        frame(pack([[10, 1]])),
        frame(pack([[8, 0, *CALL[2:]]])),
        frame(pack([[8, -1, *CALL[2:]]])),
        frame(pack([[8, 2**63, *CALL[2:]]])),
        frame(pack([[8, 1, 5, *CALL[3:]]])),
        frame(pack([[1, 1, 0, 3, b"x"]])),
        frame(pack([[1, 1, 1024, 0, b"x"]])),
        frame(pack([[3, 1, 0, 0, None, 0.0, ""]])),
        frame(pack([[3, 1, 0, 1, None, -1.0, ""]])),
        frame(pack([[3, 1, 0, 1, None, float("nan"), ""]])),
        frame(pack([[7, 1, [], float("nan")]])),
        frame(pack([[8, 1, "GET", "/health", {}, None, float("nan")]])),
        frame(pack([[4, 1, b"short", 1, b"", None, None, True]])),
        frame(pack([[]])),
        frame(pack([CALL, CALL])),  # an id twice
        frame(b"\xdc\x10\x01" + pack([9, 1]) * 4097),
        frame(b"\xdd\xff\xff\xff\xff"),
        frame(b"\x91" * 1000),
    ],
    ids=lambda data: data[:24].hex(),
)
async def test_what_is_no_frame_ends_the_connection_and_nothing_else(engine, url, wire, data):
    wire.writer.write(data)
    async with wired(url) as other:
        other.send(CALL)
        assert (await other.answer(1))[0] == 0
    with anyio.fail_after(10):
        status, problem = await wire.answer(0)
    assert (status, problem["status"]) == (2, 400)
    assert await wire.is_closed()


async def test_frames_may_come_in_any_pieces(engine, wire):
    frames = b"".join(frame(pack([[1, n, 0, 0, b"%d" % n]])) for n in range(1, 30))
    for at in range(0, len(frames), 7):
        wire.writer.write(frames[at : at + 7])
        await wire.writer.drain()
        await checkpoint()
    for n in range(1, 30):
        assert (await wire.answer(n))[0] == 0
    assert (await engine.queue("mail").stats()).ready == 29


async def test_half_a_frame_has_its_time(url, monkeypatch):
    monkeypatch.setattr(linked, "FRAME_WAIT_S", 0.02)
    async with wired(url) as wire:
        wire.writer.write(frame(pack([CALL]))[:-1])
        assert await wire.is_closed()


async def test_answers_of_one_turn_are_one_frame(wire):
    wire.send(*([1, n, 0, 0, b"x"] for n in range(1, 101)))
    assert sorted(one[0] for one in await wire.entries()) == list(range(1, 101))


# --- operations ---------------------------------------------------------------------------------


async def test_a_life(engine, wire):
    wire.send([1, 1, 0, 1, pack({"to": "a"})], [3, 2, 0, 1, 20.0, 0.0, "w1"])
    status, task_id = await wire.answer(1)
    assert (status, len(task_id)) == (0, 16)
    status, (lease,) = await wire.answer(2)
    (id, epoch, token, priority, attempt, enqueued_us, deadline_us, lease_s, policy, kind, payload,
     headers, tenant, face) = lease  # fmt: skip
    assert face is None
    assert (status, id, priority, attempt, lease_s) == (0, task_id, 5, 1, 20.0)
    assert (kind, msgpack.unpackb(payload), headers, tenant) == (1, {"to": "a"}, None, "")
    assert (len(policy), len(token)) == (32, 16)
    assert 20_000_000 <= deadline_us - enqueued_us < 30_000_000
    proof = [id, epoch, token]
    wire.send([7, 3, [proof], 60.0])
    status, (later_us,) = await wire.answer(3)
    assert status == 0
    assert 40_000_000 <= later_us - deadline_us < 50_000_000
    wire.send([4, 4, *proof, 1, pack({"ok": True}), True])
    assert await wire.answer(4) == [0, None]
    assert (await engine.result(lodeq.TaskId(id))).value == {"ok": True}
    wire.send([4, 5, *proof, 1, pack({"ok": True}), True], [6, 6, *proof, "nack", None, ""])
    assert await wire.answer(5) == [0, None]  # again is the same as once
    status, problem = await wire.answer(6)
    assert (status, problem["type"]) == (2, ENTRY_ERRORS + "lease-lost")


async def test_many_at_once(engine, wire):
    wire.send([2, 1, 0, 0, [b"%d" % n for n in range(5)]], [3, 2, 0, 5, None, 0.0, ""])
    status, ids = await wire.answer(1)
    assert (status, len(ids)) == (0, 5 * 16)
    status, leases = await wire.answer(2)
    assert [one[10] for one in leases] == [b"0", b"1", b"2", b"3", b"4"]
    proofs = [one[:3] for one in leases]
    wire.send([6, 3, *proofs[1], "bury", None, "bad"])
    assert await wire.answer(3) == [0, None]
    wire.send([5, 4, [[*proof, 0, b"done"] for proof in proofs]], [7, 5, proofs, None])
    status, ((position, _),) = await wire.answer(4)
    assert (status, position) == (0, 1)
    status, deadlines = await wire.answer(5)
    assert [type(one) for one in deadlines] == [str] * 5
    stats = await engine.queue("mail").stats()
    assert (stats.dead, stats.results) == (1, 5)  # a dead letter's end is one, too


async def test_errors_are_of_one_request(wire):
    wire.send(
        [1, 1, 7, 0, b"no such handle"],
        [1, 2, 0, 1, b"\xc1"],
        [0, 1, pack({"queue": "BAD NAME"})],
        [1, 3, 1, 0, b"x"],
        [6, 4, b"x" * 16, 1, b"t" * 16, "forget", None, ""],
        [4, 5, b"x" * 16, 1, b"t" * 16, None, None, True],
        [8, 6, "GET", "/nowhere", {}, None, None],
        [8, 7, "POST", "/tasks", {}, pack({"tasks": 5}), None],
        [8, 8, "GET", "/tasks/" + "0" * 32, {}, None, None],
        [1, 9, 0, 0, b"good"],
    )
    expected = {1: 422, 2: 422, 3: 422, 4: 422, 5: 409, 6: 404, 7: 422, 8: 404}
    for id, code in expected.items():
        status, problem = await wire.answer(id)
        assert (status, problem["status"]) == (2, code), problem
        assert problem["type"].startswith(ENTRY_ERRORS)
    assert (await wire.answer(9))[0] == 0


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
async def test_a_time_that_is_none_is_refused(engine, wire, seconds):
    await engine.queue("mail").enqueue(b"x")
    wire.send([3, 1, 0, 1, None, 0.0, ""])
    ((id, epoch, token, *_),) = (await wire.answer(1))[1]
    wire.send(
        [7, 2, [[id, epoch, token]], seconds],
        [3, 3, 0, 1, seconds, 0.0, ""],
        [3, 4, 0, 1, None, seconds, ""],
        [6, 5, id, epoch, token, "release", seconds, ""],
        [8, 6, "GET", "/health", {}, None, seconds],
    )
    for n in range(2, 7):
        status, problem = await wire.answer(n)
        assert (status, problem["status"]) == (2, 422)


async def test_a_claim_that_waits_holds_nothing_up(engine, wire):
    wire.send([3, 1, 0, 1, None, 30.0, ""], [8, 2, "GET", "/health", {}, None, None])
    assert (await wire.answer(2))[0] == 0
    await engine.queue("mail").enqueue(b"at last")
    status, (lease,) = await wire.answer(1)
    assert (status, lease[10]) == (0, b"at last")


async def test_a_long_answer_comes_in_parts(engine, wire):
    await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x" * 600_000) for _ in range(5)])
    wire.send([8, 1, "GET", "/queues/mail/tasks", {"state": "ready", "limit": "5"}, None, None])
    parts = []
    while True:
        status, body = await wire.answer(1)
        parts.append(body)
        if status == 0:
            break
        assert status == 1
    assert len(parts) > 1
    assert len(msgpack.unpackb(b"".join(parts), timestamp=3)["tasks"]) == 5


# --- cancelling ---------------------------------------------------------------------------------


async def test_a_claim_that_waits_is_cancelled(engine, wire):
    wire.send([3, 1, 0, 1, None, 30.0, ""])
    wire.send([9, 1], [8, 2, "GET", "/health", {}, None, None])
    assert (await wire.answer(2))[0] == 0
    await engine.queue("mail").enqueue(b"x")
    assert (await engine.queue("mail").stats()).ready == 1


@pytest.mark.parametrize("is_ready", [False, True])
async def test_a_large_claim_is_cancelled_in_the_frame_it_came_in(engine, wire, is_ready):
    queue = engine.queue("mail")
    if is_ready:
        await queue.enqueue(b"x")
    wire.send([3, 1, 0, 1025, None, 30.0, ""], [9, 1], [8, 2, "GET", "/health", {}, None, None])
    assert (await wire.answer(2))[0] == 0
    if not is_ready:
        await queue.enqueue(b"x")
    wire.send([8, 3, "GET", "/health", {}, None, None])
    assert (await wire.answer(3))[0] == 0
    assert (await queue.stats()).ready == 1


async def test_a_call_is_cancelled_in_the_frame_it_came_in(engine, wire):
    receipt = await engine.queue("mail").enqueue(b"x")
    path = f"/tasks/{receipt.id}/result"
    wire.send([8, 1, "GET", path, {"wait": "30"}, None, None], [9, 1], [8, 2, *CALL[2:]])
    assert (await wire.answer(2))[0] == 0
    (lease,) = await engine.queue("mail").claim()
    await lease.complete(b"done")
    wire.send([8, 3, *CALL[2:]])
    assert (await wire.answer(3))[0] == 0
    assert not [one for one in wire.read if one[0] == 1]


async def test_a_claim_is_taken_back_after_its_answer(engine, wire):
    await engine.queue("mail").enqueue(b"x")
    wire.send([3, 1, 0, 1, None, 0.0, ""])
    assert len((await wire.answer(1))[1]) == 1
    wire.send([9, 1], [3, 2, 0, 1, None, 5.0, ""])
    (lease,) = (await wire.answer(2))[1]
    assert lease[4] == 1  # the attempt was not counted


async def test_a_claim_is_taken_back_over_another_connection(engine, url, wire):
    await engine.queue("mail").enqueue(b"x")
    wire.send([3, 1, 0, 1, None, 0.0, ""], [3, 2, 0, 1, None, 30.0, ""])
    assert len((await wire.answer(1))[1]) == 1
    async with lodeq.connect(url) as client:
        from lodeq.client.calls import cancel_claim

        for id in (2, 1):
            await client.send(cancel_claim(NONCE + id.to_bytes(8, "big")))
    assert (await wire.answer(2)) == [0, []]
    assert (await engine.queue("mail").stats()).ready == 1


async def test_a_client_that_goes_gives_back(engine, url):
    async with wired(url) as wire:
        wire.send([0, 0, pack({"queue": "mail"})], [3, 1, 0, 1, None, 30.0, ""])
        wire.send([8, 2, "GET", "/health", {}, None, None])
        await wire.answer(2)
    async with wired(url) as other:  # behind the end of the first
        other.send(CALL)
        await other.answer(1)
    await engine.queue("mail").enqueue(b"x")
    assert (await engine.queue("mail").stats()).ready == 1


async def test_a_call_has_a_deadline(engine, wire):
    receipt = await engine.queue("mail").enqueue(b"x")
    path = f"/tasks/{receipt.id}/result"
    wire.send([8, 1, "GET", path, {"wait": "30"}, None, 0.02])
    wire.send([8, 2, "GET", path, {"wait": "0.05"}, None, 5.0])
    assert (await wire.answer(2))[0] == 0
    assert not [one for one in wire.read if one[0] == 1]


# --- limits -------------------------------------------------------------------------------------


async def test_long_polls_are_counted_with_those_of_http(engine):
    with socket_path() as path:
        async with serving(engine, path=path, connections_max=8) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "mail"})])
            wire.send(*([3, n, 0, 1, None, 30.0, ""] for n in range(1, 9)))
            status, problem = await wire.answer(8)
            assert (status, problem["status"]) == (2, 503)
            await engine.queue("mail").enqueue_many([lodeq.NewTask(n) for n in range(7)])
            for n in range(1, 8):
                assert len((await wire.answer(n))[1]) == 1
            wire.send([3, 9, 0, 1, None, 0.01, ""])
            assert await wire.answer(9) == [0, []]


async def test_the_link_that_has_been_idle_longest_makes_place(engine):
    with socket_path() as path:
        async with (
            serving(engine, path=path, connections_max=1) as url,
            wired(url) as first,
            wired(url) as second,
        ):
            assert await first.answer(0) == [3, 0]
            assert await first.is_closed()
            second.send(CALL)
            assert (await second.answer(1))[0] == 0


async def test_a_client_that_does_not_read_is_not_read_and_then_closed(engine, monkeypatch):
    monkeypatch.setattr(linked, "UNREAD_BYTES", 1 << 16)
    monkeypatch.setattr(linked, "READ_WAIT_S", 0.05)
    aborted, made = [], []
    abort, answer = linked.LinkConnection._abort, linked.LinkConnection.answer

    def noted_abort(one):
        aborted.append(one)
        abort(one)

    def noted_answer(one, *args):
        made.append(args)
        answer(one, *args)

    monkeypatch.setattr(linked.LinkConnection, "_abort", noted_abort)
    monkeypatch.setattr(linked.LinkConnection, "answer", noted_answer)
    await engine.queue("mail").enqueue(b"x" * 100_000)
    ask = ["GET", "/queues/mail/tasks", {"state": "ready"}, None, None]
    with socket_path() as path:
        async with serving(engine, path=path) as url, wired(url) as wire, wired(url) as other:
            wire.writer.transport.pause_reading()
            wire.send(*([8, n, *ask] for n in range(1, 400)))
            await eventually(lambda: aborted)
            (one,) = aborted
            assert one.transport is None or one.transport.is_closing()
            assert 0 < len(made) < 100
            other.send(CALL)
            assert (await other.answer(1))[0] == 0


async def test_many_small_frames_are_taken_in_turns(engine, wire, monkeypatch):
    monkeypatch.setattr(linked, "SLICE", 8)
    sizes = []
    real = linked.LinkConnection._slice

    def noted(self, entries, *came):
        sizes.append(len(entries))
        real(self, entries, *came)

    monkeypatch.setattr(linked.LinkConnection, "_slice", noted)
    wire.writer.write(b"".join(frame(pack([[1, n, 0, 0, b"x"]])) for n in range(1, 1001)))
    for n in range(1, 1001):
        assert (await wire.answer(n))[0] == 0
    assert (await engine.queue("mail").stats()).ready == 1000
    assert max(sizes) <= 8


async def test_parts_of_frames_are_bounded_together(engine):
    settings = Settings(held_bytes_max=100_000)
    with socket_path() as path:
        async with serving(engine, path=path, settings=settings) as url:
            async with wired(url) as first, wired(url) as second:
                for wire in (first, second):
                    wire.writer.write((1 << 20).to_bytes(4, "big") + b"x" * 60_000)
                    await wire.writer.drain()
                with anyio.fail_after(10):
                    status, problem = await second.answer(0)
                assert (status, problem["status"]) == (2, 503)
                assert await second.is_closed()
            async with wired(url) as third:  # what was kept is forgotten with its connection
                third.send([8, 1, "POST", "/fsync", {}, pack({}), None])
                assert (await third.answer(1))[0] == 0


async def test_more_requests_than_may_be_open_are_all_answered(engine, wire, monkeypatch):
    monkeypatch.setattr(linked, "OPEN_MAX", 10)
    monkeypatch.setattr(linked, "SLICE", 4)
    for start in range(1, 300, 30):
        wire.send(*([1, n, 0, 0, b"x"] for n in range(start, start + 30)))
        wire.send([9, start])
    for n in range(1, 301):
        assert (await wire.answer(n))[0] == 0
    assert (await engine.queue("mail").stats()).ready == 300


# --- the end ------------------------------------------------------------------------------------


async def test_a_stopping_server_answers_who_waits(engine):
    with socket_path() as path:
        async with wired_after(engine, path) as wire:
            status, found = await wire.answer(1)
            assert (status, found) == (0, [])
            assert await wire.answer(0) == [3, 1]
            assert await wire.is_closed()


@asynccontextmanager
async def wired_after(engine, path):
    """A client that waits at a server that stops."""
    async with anyio.create_task_group() as group:
        ready, stop = anyio.Event(), anyio.Event()

        async def serve():
            async with serving(engine, path=path):
                ready.set()
                await stop.wait()

        group.start_soon(serve)
        await ready.wait()
        async with wired(f"unix://{path}") as wire:
            wire.send([0, 0, pack({"queue": "mail"})], [3, 1, 0, 1, None, 30.0, ""])
            await eventually(lambda: engine_waits(engine))
            stop.set()
            yield wire


def engine_waits(engine):
    from lodeq.repository.api.engine import runtime_of

    return bool(runtime_of(engine).state.waiters.by_tenant_queue)


async def test_an_engine_that_is_closed_says_so(url, engine, wire):
    await engine.close()
    wire.send([1, 1, 0, 0, b"x"], [3, 2, 0, 1, None, 0.0, ""], [*CALL[:1], 3, *CALL[2:]])
    for n in (1, 2):
        status, problem = await wire.answer(n)
        assert (status, problem["type"]) == (2, ENTRY_ERRORS + "closed")


def test_the_first_byte_is_no_letter_of_http():
    assert http_server.FIRST_BYTE == 0
