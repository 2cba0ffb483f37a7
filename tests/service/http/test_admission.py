"""Too many connections, and too many long polls: who stays, who goes, who is told to come again."""

import errno
import json
import os
import re
import resource
import socket
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq.service.http import listener
from lodeq.service.http.admission import Admission, TooManyError
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
TOKEN = "a token of some length"
MANY = 24  # of the server's 8


@pytest.fixture
def anyio_backend():
    return "asyncio"


class One:
    """A connection."""

    def __init__(self):
        self.is_shed = False
        self.has_unread = False

    def shed(self):
        self.is_shed = True

    def turn_away(self):
        self.is_shed = True


def arrived(admission, n=1):
    ones = [One() for _ in range(n)]
    for one in ones:
        admission.arrived(one)
    return ones


def known(admission):
    (one,) = arrived(admission)
    admission.asked(one)
    return one if admission.admits(one) else None


def shed(ones):
    return [n for n, one in enumerate(ones) if one.is_shed]


def test_of_silent_ones_the_oldest_goes():
    admission = Admission(4)
    ones = arrived(admission, 10)
    assert shed(ones) == [0, 1, 2, 3, 4, 5]
    admission.left(ones[6])
    arrived(admission)
    assert shed(ones) == [0, 1, 2, 3, 4, 5]


def test_silent_ones_take_nothing_from_the_known():
    admission = Admission(16)
    callers = [known(admission) for _ in range(16)]
    arrived(admission, 100)
    assert shed(callers) == []
    for one in callers:
        admission.answered(one)
    arrived(admission, 100)
    assert shed(callers) == []


def test_those_at_rest_go_before_anybody_is_refused_and_then_the_newest():
    admission = Admission(4)
    callers = [known(admission) for _ in range(4)]
    for n in (2, 0):
        admission.answered(callers[n])
    admission.asked(callers[0])  # at work again
    assert known(admission) is not None
    assert shed(callers) == [2]
    assert known(admission) is None
    admission.left(callers[1])
    assert known(admission) is not None
    assert shed(callers) == [2]


def test_who_shows_nothing_is_silent_again_after_the_answer():
    admission = Admission(4)
    (one,) = arrived(admission)
    admission.asked(one)
    admission.answered(one)
    arrived(admission, 4)
    assert one.is_shed


def test_of_those_whose_request_shows_nothing_the_oldest_goes():
    admission = Admission(4)
    callers = [known(admission) for _ in range(4)]
    strangers = arrived(admission)
    for _ in range(9):
        admission.asked(strangers[-1])
        admission.strange(strangers[-1])
        strangers += arrived(admission)
    assert shed(strangers) == [0, 1, 2, 3, 4]
    assert shed(callers) == []
    admission.answered(strangers[5])
    admission.asked(strangers[9])
    admission.strange(strangers[9])
    assert shed(strangers) == [0, 1, 2, 3, 4]


def test_who_has_sent_something_is_not_silent():
    admission = Admission(4)
    ones = arrived(admission, 4)
    for n in (0, 1, 3):
        ones[n].has_unread = True
    more = arrived(admission)
    assert shed(ones) == [2]
    more[0].has_unread = True
    arrived(admission)[0].has_unread = True
    assert shed(ones) == [2]
    assert shed(more) == []
    for n in (0, 1, 3):
        admission.asked(ones[n])  # unseen by the guard, all in one turn
    assert all(admission.admits(ones[n]) for n in (0, 1, 3))
    assert shed(ones) == [2]


def test_requests_that_nobody_has_looked_at_are_kept():
    admission = Admission(2)
    ones = []
    for _ in range(10):
        (one,) = arrived(admission)
        admission.asked(one)
        ones.append(one)
    assert shed(ones) == []
    assert [admission.admits(one) for one in ones] == [True, True] + [False] * 8
    assert shed(ones[:2]) == []


def test_one_at_rest_with_a_request_in_its_socket_stays():
    admission = Admission(2)
    first, second = known(admission), known(admission)
    admission.answered(first)
    first.has_unread = True
    assert known(admission) is None
    admission.answered(second)
    assert known(admission) is not None
    assert (first.is_shed, second.is_shed) == (False, True)


def test_polls_leave_a_reserve():
    admission = Admission(16)
    polls = [admission.polling() for _ in range(14)]
    for poll in polls:
        poll.__enter__()
    with pytest.raises(TooManyError) as refused, admission.polling():
        pass
    assert refused.value.retry_after_ms > 0
    polls[0].__exit__(None, None, None)
    with admission.polling():
        pass


# --- over sockets -------------------------------------------------------------------------------


@pytest.fixture(params=["unix", "loopback"])
async def connect(request):
    """Connections to a server of eight callers."""
    async with lodeq.testing.open() as engine, AsyncExitStack() as streams:
        with socket_path() as path:
            at = path if request.param == "unix" else None
            public = frozenset({"/v1/tasks"})
            settings = Settings(token=TOKEN, wait_s_max=600.0, public_paths=public)
            async with serving(engine, path=at, settings=settings, connections_max=8) as url:

                async def connect():
                    if at is not None:
                        stream = await anyio.connect_unix(at)
                    else:
                        stream = await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2]))
                    return await streams.enter_async_context(stream)

                connect.engine = engine
                yield connect
                await streams.aclose()


def head(method, path, body=b"", token=TOKEN):
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def ask(stream, *request, **options):
    await stream.send(head(*request, **options))
    got = b""
    while True:  # head and body may come apart
        got += await stream.receive()
        begun, end, body = got.partition(b"\r\n\r\n")
        if end and len(body) == int(re.search(rb"content-length: (\d+)", begun)[1]):
            return got


async def is_closed(stream):
    """Whether the server has closed it; one that has sent nothing is told so first."""
    got = b""
    try:
        while True:
            got += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return not got or (got.startswith(b"HTTP/1.1 503") and b'"not_begun": true' in got)


async def turns(n=20):
    """The server runs on this loop: it has taken in and read what was sent."""
    for _ in range(n):
        await anyio.lowlevel.checkpoint()


async def test_connections_that_send_nothing_keep_nobody_out(connect):
    silent = [await connect() for _ in range(MANY)]
    await turns()
    for _ in range(MANY):
        caller = await connect()
        assert (await ask(caller, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")
        silent.append(await connect())
        await turns()
    assert (await ask(caller, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")
    for one in silent[:-8]:  # those above the limit were closed, oldest first
        assert await is_closed(one)
    for one in silent[-8:]:  # the others may still say what they want
        with anyio.move_on_after(0), pytest.raises(anyio.get_cancelled_exc_class()):
            await one.receive()


async def test_who_has_no_token_keeps_nobody_out(connect):
    callers = [await connect() for _ in range(8)]
    for one in callers:
        assert (await ask(one, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")
    for _ in range(MANY):
        stranger = await connect()
        refused = await ask(stranger, "GET", "/v1/health", token="wrong")
        assert refused.startswith(b"HTTP/1.1 401")
    for one in callers:  # kept alive all the while
        assert (await ask(one, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")
    another = await connect()  # the one that rests longest makes room for it
    assert (await ask(another, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")
    assert await is_closed(callers[0])


async def test_slow_bodies_of_strangers_are_bounded(connect):
    slow = []
    for _ in range(MANY):
        slow.append(await connect())
        await slow[-1].send(head("POST", "/v1/tasks", b"{", token="wrong")[:-1])
        await turns()
    for one in slow[:-8]:
        assert await is_closed(one)
    caller = await connect()
    assert (await ask(caller, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")


async def test_connections_leave_files_to_the_store(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    async with lodeq.testing.open() as engine, AsyncExitStack() as streams:
        with socket_path() as path:
            async with serving(engine, path=path, settings=Settings(token=TOKEN)):
                silent = []
                for _ in range(MANY):
                    stream = await anyio.connect_unix(path)
                    silent.append(await streams.enter_async_context(stream))
                await turns()
                for one in silent[:-8]:
                    assert await is_closed(one)
                caller = await streams.enter_async_context(await anyio.connect_unix(path))
                assert (await ask(caller, "GET", "/v1/health")).startswith(b"HTTP/1.1 200")
                await streams.aclose()


async def test_of_too_many_long_polls_the_newest_are_refused(connect):
    body = json.dumps({"queues": ["mail"], "wait": 600}).encode()
    answers = []

    async def poll():
        stream = await connect()
        answers.append(await ask(stream, "POST", "/v1/leases/claim", body))

    async with anyio.create_task_group() as group:
        for _ in range(MANY):
            group.start_soon(poll)
            await turns()
        while len(answers) < MANY - 7:
            await anyio.lowlevel.checkpoint()
        for answer in answers:
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in answer
        # What polls leave is enough for others, and what they bring reaches those who wait.
        for n in range(7):
            caller = await connect()
            task = json.dumps({"payload": n}).encode()
            answer = await ask(caller, "POST", "/v1/queues/mail/tasks", task)
            assert answer.startswith(b"HTTP/1.1 201")
        while len(answers) < MANY:
            await anyio.lowlevel.checkpoint()
        granted = [answer for answer in answers if answer.startswith(b"HTTP/1.1 200")]
        assert len(granted) == 7
        assert len(await connect.engine.queue("mail").list("leased")) == 7


async def test_a_listener_without_files_left_says_so_once_a_turn(monkeypatch):
    """asyncio asks 64 times, and logs each refusal: the second one ends its turn."""
    now = [5.0]
    monkeypatch.setattr(listener.SystemClock, "mono", lambda: now[0])

    def refused(self):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with listener.listen_tcp("127.0.0.1", 0, None) as one:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", refused)
            for _ in range(2):
                with pytest.raises(OSError, match="ulimit -n") as caught:
                    one.accept()
                assert caught.value.errno == errno.EMFILE
                for _ in range(3):
                    with pytest.raises(BlockingIOError):
                        one.accept()
                now[0] += 1
        with socket.create_connection(one.getsockname()):
            accepted, _ = one.accept()
            accepted.close()
