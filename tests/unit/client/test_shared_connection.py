"""One connection of many threads, or of many tasks on any loop, to a server made of bytes."""

import asyncio
import errno
import socket
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from types import MappingProxyType

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgpack
import pytest

from lodeq.client.calls import Call
from lodeq.client.transport import blocking_link, shared_link
from lodeq.client.transport import connection as connection_module
from lodeq.client.transport.connection import FramedConnection
from lodeq.client.transport.entries import (
    AnswerLostError,
    NotBegunError,
    NotSpokenError,
    SilentError,
)
from lodeq.client.transport.exchange import FramedExchange, Slot
from lodeq.client.transport.layout import FrameReader, Op, frame_of
from lodeq.client.transport.target import Doubt, FramedTarget
from lodeq.errors import ClosedError, CommitUnknownError, LodeqError, UnreachableError

CALL = int(Op.CALL)
CANCEL = int(Op.CANCEL)
WAIT_S = 10.0
END = Call("POST", "/v1/end", is_write=True, is_repeatable=True)


class Server:
    """The other end. Its methods block."""

    def __init__(self, path):
        self.path = str(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.settimeout(WAIT_S)
        self.listener.bind(self.path)
        self.listener.listen()
        self.connections = 0
        self.frames = []
        self.stream = self.reader = None

    def accept(self):
        self.stream = self.listener.accept()[0]
        self.stream.settimeout(WAIT_S)
        self.connections += 1
        self.reader = FrameReader()
        self.frame()
        self.stream.sendall(frame_of(b"\x01" + msgpack.packb([True, list(range(10))])))

    def frame(self):
        data = b""
        while True:
            for body in self.reader.feed(data):
                return body
            data = self.stream.recv(1 << 16)

    def entries(self, n):
        """The next ``n`` entries, in whatever frames they come."""
        found = []
        while len(found) < n:
            body = self.frame()
            self.frames.append(msgpack.unpackb(body))
            found += self.frames[-1]
        return found

    def answer(self, *entries):
        self.stream.sendall(frame_of(msgpack.packb(entries)))

    def lose_one(self):
        """End the connection in place of an answer, and answer the call when it comes again."""
        self.entries(1)
        self.stream.close()
        self.accept()
        self.answer([self.entries(1)[0][1], 0, b"\xc0"])

    def close(self):
        if self.stream is not None:
            self.stream.close()
        self.listener.close()


@pytest.fixture
def server(tmp_path_factory):
    found = Server(tmp_path_factory.mktemp("s") / "s")
    yield found
    found.close()


def target(server, timeout_s=WAIT_S):
    return FramedTarget("unix:///s", server.path, None, timeout_s)


def opened(server, pool, timeout_s=WAIT_S):
    accepted = pool.submit(server.accept)
    link = blocking_link.SyncFramedLink(target(server, timeout_s))
    connection = link.connected()
    accepted.result(WAIT_S)
    return link, connection


@pytest.fixture
def pool():
    with ThreadPoolExecutor(16) as found:
        yield found


def asked(connection, n, wait_s=0.0):
    return connection.ask(CALL, None, (n,), wait_s)


# --- threads ------------------------------------------------------------------------------------


def test_requests_of_threads_are_pipelined_and_answered_in_any_order(server, pool):
    link, connection = opened(server, pool)
    asking = [pool.submit(asked, connection, n) for n in range(8)]
    found = server.entries(8)  # none is answered before all are sent
    assert [entry[1] for entry in found] == list(range(1, 9))
    server.answer(*[[entry[1], 0, entry[2] * 10] for entry in reversed(found)])
    assert [one.result(WAIT_S) for one in asking] == [n * 10 for n in range(8)]
    assert server.connections == 1
    link.close()


def test_what_is_put_during_a_write_goes_in_one_frame(server, pool):
    link, connection = opened(server, pool)
    sender, all_there = connection._sender, threading.Event()

    class Slow:
        """The first write lasts until everybody has put something."""

        def settimeout(self, value):
            sender.settimeout(value)

        def send(self, data):
            all_there.wait(WAIT_S)
            return sender.send(data)

        def shutdown(self, how):
            sender.shutdown(how)

        def close(self):
            sender.close()

    put = connection._exchange.put

    def noted(*args):
        put(*args)
        if len(connection._exchange.pending) == 8:
            all_there.set()

    connection._sender, connection._exchange.put = Slow(), noted
    asking = [pool.submit(asked, connection, n) for n in range(8)]
    found = server.entries(8)
    assert [len(frame) for frame in server.frames] == [1, 7]
    server.answer(*[[entry[1], 0, entry[2]] for entry in found])
    assert [one.result(WAIT_S) for one in asking] == list(range(8))
    link.close()


def test_who_reads_for_all_hands_that_on(server, pool):
    """The first gets its answer, or none in time: the others still get theirs."""
    link, connection = opened(server, pool, timeout_s=0.1)
    first = pool.submit(asked, connection, 0)  # reads for all, and gives up
    (entry,) = server.entries(1)
    others = [pool.submit(asked, connection, n, WAIT_S) for n in (1, 2)]
    found = sorted(server.entries(3))  # where the machine is busy, it gives up before they ask
    with pytest.raises(AnswerLostError, match="no answer in time"):
        first.result(WAIT_S)
    assert [one for one in found if one[0] == CANCEL] == [[CANCEL, entry[1]]]
    for _, id, n in (one for one in found if one[0] == CALL):
        server.answer([id, 0, n])
        assert others[n - 1].result(WAIT_S) == n
    link.close()


def test_each_hears_of_a_lost_connection(server, pool):
    link, connection = opened(server, pool)
    asking = [pool.submit(asked, connection, n) for n in range(4)]
    server.entries(4)
    server.stream.close()
    errors = [one.exception(WAIT_S) for one in asking]
    assert [type(error) for error in errors] == [AnswerLostError] * 4
    assert len(set(map(id, errors))) == 4
    assert link.taken(CALL) is None
    link.close()


def test_a_goodbye_names_what_was_not_begun(server, pool):
    link, connection = opened(server, pool)
    first = pool.submit(asked, connection, 0)
    server.entries(1)
    second = pool.submit(asked, connection, 1)
    server.entries(1)
    server.answer([0, 3, 1])
    assert isinstance(second.exception(WAIT_S), NotBegunError)
    with pytest.raises(NotBegunError):
        asked(connection, 2)
    server.answer([1, 2, {"type": "urn:lodeq:problem:lease-lost", "status": 409, "detail": "no"}])
    assert isinstance(first.exception(WAIT_S), LodeqError)
    link.close()


def test_what_is_begun_before_a_goodbye_is_answered_although_another_connection_is_opened(
    server, pool
):
    link, connection = opened(server, pool)
    first = pool.submit(asked, connection, 0)
    second = pool.submit(asked, connection, 1)
    server.entries(2)
    server.answer([0, 3, 1])
    ended = {one.exception(WAIT_S) for one in wait([first, second], WAIT_S, FIRST_COMPLETED).done}
    assert [type(error) for error in ended] == [NotBegunError]
    old = server.stream
    accepted = pool.submit(server.accept)
    assert link.connected() is not connection
    accepted.result(WAIT_S)
    old.sendall(frame_of(msgpack.packb([[1, 0, "done"]])))
    ends = [one.exception(WAIT_S) or one.result() for one in (first, second)]
    assert "done" in ends
    assert old.recv(1) == b""  # the last one closes it
    old.close()
    link.close()


def test_a_thread_that_waits_when_the_client_closes_gets_its_answer(server, pool):
    link, connection = opened(server, pool)
    asking = pool.submit(asked, connection, 7)
    server.entries(1)
    link.close()
    with pytest.raises(ClosedError):
        link.connected()
    server.answer([1, 0, 7])
    assert asking.result(WAIT_S) == 7
    assert server.stream.recv(1) == b""  # and then it closes


def test_a_call_whose_answer_was_lost_is_in_doubt_until_it_is_answered(server, pool):
    link, _ = opened(server, pool)
    losing = pool.submit(server.lose_one)
    with Doubt() as doubt:
        assert link.send(END, doubt) is None
        losing.result(WAIT_S)
        assert isinstance(doubt.unknown, CommitUnknownError)
    link.close()
    with pytest.raises(CommitUnknownError), doubt:
        link.send(END, doubt)


def test_an_idle_connection_that_the_server_has_closed_is_not_used(server, pool):
    link, _ = opened(server, pool)
    server.stream.close()
    accepted = pool.submit(server.accept)
    assert link.taken(CALL) is None
    again = link.connected()
    accepted.result(WAIT_S)
    asking = pool.submit(asked, again, 3)
    (entry,) = server.entries(1)
    server.answer([entry[1], 0, 3])
    assert asking.result(WAIT_S) == 3
    assert server.connections == 2
    link.close()


def test_an_answer_in_parts(server, pool):
    link, connection = opened(server, pool)
    asking = [pool.submit(asked, connection, n) for n in range(2)]
    server.entries(2)
    server.answer([1, 1, b"a"], [2, 0, b"x"])
    server.answer([1, 1, b"b"])
    server.answer([1, 0, b"c"])
    assert sorted(one.result(WAIT_S) for one in asking) == [b"abc", b"x"]
    link.close()


def test_all_who_wait_for_a_connection_fail_with_it(server, pool, monkeypatch):
    link = blocking_link.SyncFramedLink(target(server))
    waiting, attempts = threading.Semaphore(0), []

    def frozen(target):
        attempts.append(target)
        for _ in range(4):
            waiting.acquire(timeout=WAIT_S)
        raise TimeoutError("no welcome")

    class Opening:
        """Counts those who come to the lock."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            waiting.release()
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    monkeypatch.setattr(blocking_link, "_connected", frozen)
    link._opening = Opening(link._opening)
    opening = [pool.submit(link.connected) for _ in range(4)]
    errors = [one.exception(WAIT_S) for one in opening]
    assert [type(error) for error in errors] == [UnreachableError] * 4
    assert len({str(error) for error in errors}) == 1
    assert len(set(map(id, errors))) == 4
    assert len(attempts) == 1
    waiting.release(4)
    with pytest.raises(UnreachableError):  # a call that comes later tries again
        link.connected()
    assert len(attempts) == 2


def test_an_answer_that_comes_while_one_asks_is_read_by_another(server, pool, monkeypatch):
    """Nobody asks twice, and whoever asks is not the one to read."""
    monkeypatch.setattr(blocking_link, "SILENCE_S", 0.02)
    link, connection = opened(server, pool)
    is_asked, is_told, asks = threading.Event(), threading.Event(), []

    def is_given_up():
        asks.append(1)
        is_asked.set()
        is_told.wait(WAIT_S)
        return True

    connection._is_given_up = is_given_up
    asking = [pool.submit(asked, connection, n) for n in range(3)]
    found = server.entries(3)
    assert is_asked.wait(WAIT_S)
    for entry in found:  # the one that asks may be any of them
        server.answer([entry[1], 0, entry[2]])
    others = wait(asking, WAIT_S, FIRST_COMPLETED).done
    assert others
    assert len(asks) == 1
    is_told.set()
    assert [one.result(WAIT_S) for one in asking] == [0, 1, 2]
    link.close()


def test_an_answer_that_nobody_has_read_counts_before_the_server_is_given_up(
    server, pool, monkeypatch
):
    monkeypatch.setattr(blocking_link, "SILENCE_S", 0.02)
    link, connection = opened(server, pool)

    def is_given_up():  # meanwhile nobody reads
        server.answer([1, 0, "late"])
        return True

    connection._is_given_up = is_given_up
    assert asked(connection, 0) == "late"
    link.close()


def test_a_silent_server_is_given_up_for_all(server, pool, monkeypatch):
    monkeypatch.setattr(blocking_link, "SILENCE_S", 0.02)
    link, connection = opened(server, pool)
    is_told = threading.Event()
    connection._is_given_up = lambda: is_told.wait(WAIT_S)
    asking = [pool.submit(asked, connection, n) for n in range(3)]
    server.entries(3)
    is_told.set()
    assert [type(one.exception(WAIT_S)) for one in asking] == [SilentError] * 3
    link.close()


def test_a_question_that_fails_is_not_the_answer_to_a_request(server, pool, monkeypatch):
    monkeypatch.setattr(blocking_link, "SILENCE_S", 0.02)
    link, connection = opened(server, pool)

    def is_given_up():
        server.answer([1, 0, "late"])
        raise RuntimeError("a defect")

    connection._is_given_up = is_given_up
    assert asked(connection, 0) == "late"
    link.close()


def test_without_a_descriptor_for_the_other_end_nothing_is_left_open(monkeypatch):
    class Receiver:
        is_closed = False

        def dup(self):
            raise OSError(errno.EMFILE, "too many")

        def shutdown(self, how):
            pass

        def close(self):
            self.is_closed = True

    receiver = Receiver()
    monkeypatch.setattr(blocking_link, "_connected", lambda target: receiver)
    link = blocking_link.SyncFramedLink(FramedTarget("unix:///s", "s", None, WAIT_S))
    with pytest.raises(NotSpokenError):
        link.connected()
    assert receiver.is_closed


@pytest.mark.parametrize("begin", ["_read", "_write"])
def test_an_interrupt_before_a_thread_reads_or_writes_ends_the_connection(server, pool, begin):
    """Otherwise nobody would ever read or write there again."""
    link, connection = opened(server, pool)

    def interrupted(*_):
        raise KeyboardInterrupt

    setattr(connection, begin, interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked(connection, 0)
    delattr(connection, begin)
    assert link.taken(CALL) is None
    with pytest.raises(NotBegunError):
        asked(connection, 1)


LARGE = b"x" * (4 << 20)  # more than a socket takes


def test_a_server_that_reads_nothing_is_asked_about_during_a_write(server, pool, monkeypatch):
    monkeypatch.setattr(blocking_link, "SILENCE_S", 0.02)
    link, connection = opened(server, pool)
    connection._is_given_up = lambda: True
    with pytest.raises(SilentError):
        asked(connection, LARGE)
    link.close()


def test_a_write_goes_on_where_a_server_that_read_nothing_reads_again(server, pool, monkeypatch):
    monkeypatch.setattr(blocking_link, "SILENCE_S", 0.02)
    link, connection = opened(server, pool)
    is_asked = threading.Event()

    def is_given_up():
        is_asked.set()
        return False

    connection._is_given_up = is_given_up
    asking = pool.submit(asked, connection, LARGE)
    assert is_asked.wait(WAIT_S)
    assert server.entries(1) == [[CALL, 1, LARGE]]
    server.answer([1, 0, "read"])
    assert asking.result(WAIT_S) == "read"
    link.close()


# --- what both have in common -------------------------------------------------------------------


@pytest.fixture
def exchange():
    found = FramedExchange()
    found.is_open = True
    return found


def test_a_request_that_is_taken_back_is_nobodys_to_write(exchange):
    one, two = Slot(), Slot()
    exchange.put(one, CALL, None, ())
    exchange.put(two, CALL, None, ())
    exchange.forget(one)
    assert exchange.unsent == [two]
    assert exchange.has_unsent


def test_a_request_that_a_goodbye_ends_is_nobodys_to_write(exchange):
    one, two = Slot(), Slot()
    exchange.put(one, CALL, None, ())
    exchange.put(two, CALL, None, ())
    assert list(exchange.incoming(frame_of(msgpack.packb([[0, 3, 1]])))) == [two]
    assert exchange.unsent == [one]


# --- tasks --------------------------------------------------------------------------------------


class Tasks:
    """Requests of tasks, and what became of them."""

    def __init__(self, connection):
        self.connection = connection
        self.found = {}

    async def ask(self, n, wait_s=0.0):
        try:
            self.found[n] = await self.connection.ask(CALL, None, (n,), wait_s)
        except (AnswerLostError, NotBegunError, LodeqError) as error:
            self.found[n] = error


in_thread = anyio.to_thread.run_sync
on_every_loop = pytest.mark.anyio


def on_trio(test):
    """Run a test on trio, whose link looks at the socket itself."""
    return pytest.mark.anyio(pytest.mark.parametrize("anyio_backend", ["trio"])(test))


async def connected(server, timeout_s=WAIT_S):
    link = shared_link.SharedLink(target(server, timeout_s))
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, server.accept)
        connection = await link.connected()
    return link, connection, Tasks(connection)


@on_every_loop
async def test_requests_of_one_turn_are_one_frame_and_answered_in_any_order(server):
    link, _, tasks = await connected(server)
    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(tasks.ask, n)
        found = await in_thread(server.entries, 8)
        assert len(server.frames) <= 2
        server.answer(*[[entry[1], 0, entry[2] * 10] for entry in reversed(found)])
    assert tasks.found == {n: n * 10 for n in range(8)}
    await link.aclose()


@on_every_loop
async def test_a_task_that_is_cancelled_takes_its_request_back_and_hands_on(server):
    link, _, tasks = await connected(server)
    async with anyio.create_task_group() as outer:
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.ask, 0)  # reads for all
            (first,) = await in_thread(server.entries, 1)
            outer.start_soon(tasks.ask, 1)
            (second,) = await in_thread(server.entries, 1)
            group.cancel_scope.cancel()
        assert await in_thread(server.entries, 1) == [[CANCEL, first[1]]]
        server.answer([second[1], 0, "still there"])
    assert tasks.found == {1: "still there"}
    await link.aclose()


@on_every_loop
async def test_tasks_that_wait_too_long_hear_so_and_others_go_on(server):
    link, _, tasks = await connected(server, timeout_s=0.1)
    async with anyio.create_task_group() as group:
        group.start_soon(tasks.ask, 0)
        await in_thread(server.entries, 1)
        group.start_soon(tasks.ask, 1, WAIT_S)
        found = await in_thread(server.entries, 2)  # the first is taken back
        (entry,) = [one for one in found if one[0] == CALL]
        server.answer([entry[1], 0, 1])
    assert isinstance(tasks.found[0], AnswerLostError)
    assert tasks.found[1] == 1
    await link.aclose()


@on_every_loop
async def test_tasks_hear_of_a_lost_connection_and_of_the_end(server):
    link, _, tasks = await connected(server)
    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(tasks.ask, n)
        await in_thread(server.entries, 3)
        server.stream.close()
    assert [type(tasks.found[n]) for n in range(3)] == [AnswerLostError] * 3
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, server.accept)
        again = Tasks(await link.connected())
    async with anyio.create_task_group() as group:
        group.start_soon(again.ask, 0)
        await in_thread(server.entries, 1)
        await link.aclose()
    assert isinstance(again.found[0], ClosedError)


@on_every_loop
async def test_a_call_of_a_task_whose_answer_was_lost_is_in_doubt(server):
    link, _, _ = await connected(server)
    doubt = Doubt()
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, server.lose_one)
        with doubt:
            assert await link.send(END, doubt) is None
    assert isinstance(doubt.unknown, CommitUnknownError)
    await link.aclose()
    with pytest.raises(CommitUnknownError), doubt:
        await link.send(END, doubt)


@on_every_loop
async def test_what_is_begun_is_answered_although_another_connection_is_opened(server):
    link, connection, tasks = await connected(server)
    async with anyio.create_task_group() as group:
        group.start_soon(tasks.ask, 5)
        await in_thread(server.entries, 1)
        async with anyio.create_task_group() as second:
            second.start_soon(tasks.ask, 6)
            await in_thread(server.entries, 1)
            server.answer([0, 3, 1])
        assert isinstance(tasks.found.pop(6), NotBegunError)
        old = server.stream
        async with anyio.create_task_group() as opening:
            opening.start_soon(in_thread, server.accept)
            assert await link.connected() is not connection
        old.sendall(frame_of(msgpack.packb([[1, 0, "done"]])))
    assert tasks.found == {5: "done"}
    assert await in_thread(old.recv, 1) == b""  # the last one closes it
    old.close()
    await link.aclose()


@on_every_loop
async def test_all_tasks_that_wait_for_a_connection_fail_with_it(server, monkeypatch):
    link = shared_link.SharedLink(target(server))
    attempts, errors = [], []

    async def frozen(path):
        attempts.append(path)
        while link._opening.statistics().tasks_waiting < 3:
            await anyio.lowlevel.checkpoint()
        raise TimeoutError("no welcome")

    async def opening():
        try:
            await link.connected()
        except UnreachableError as error:
            errors.append(error)

    monkeypatch.setattr(shared_link.anyio, "connect_unix", frozen)
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(opening)
    assert len(set(map(id, errors))) == 4
    assert len(attempts) == 1


@on_trio
async def test_an_answer_that_comes_while_one_task_asks_is_read_by_another(server, monkeypatch):
    monkeypatch.setattr(shared_link, "SILENCE_S", 0.02)
    link, connection, tasks = await connected(server)
    is_asked, is_told, asks = anyio.Event(), anyio.Event(), []

    async def is_given_up():
        asks.append(1)
        is_asked.set()
        await is_told.wait()
        return True

    connection._is_given_up = is_given_up
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(tasks.ask, n)
            found = await in_thread(server.entries, 3)
            await is_asked.wait()
            server.answer(*[[entry[1], 0, entry[2]] for entry in found])
            while len(tasks.found) < 2:
                await anyio.lowlevel.checkpoint()
            assert len(asks) == 1
            is_told.set()
    assert tasks.found == {0: 0, 1: 1, 2: 2}
    await link.aclose()


@on_trio
@pytest.mark.parametrize("is_answered", [True, False])
async def test_an_answer_that_no_task_has_read_counts(server, monkeypatch, is_answered):
    monkeypatch.setattr(shared_link, "SILENCE_S", 0.02)
    link, connection, tasks = await connected(server)

    async def is_given_up():  # meanwhile nobody reads
        if is_answered:
            server.answer([1, 0, "late"])
        return True

    connection._is_given_up = is_given_up
    await tasks.ask(0)
    if is_answered:
        assert tasks.found == {0: "late"}
    else:
        assert isinstance(tasks.found[0], SilentError)
    await link.aclose()


@on_trio
async def test_a_question_that_fails_is_not_the_answer_to_a_task(server, monkeypatch):
    monkeypatch.setattr(shared_link, "SILENCE_S", 0.02)
    link, connection, tasks = await connected(server)

    async def is_given_up():
        server.answer([1, 0, "late"])
        raise RuntimeError("a defect")

    connection._is_given_up = is_given_up
    await tasks.ask(0)
    assert tasks.found == {0: "late"}
    await link.aclose()


@on_every_loop
@pytest.mark.parametrize("kind", [anyio.BrokenResourceError, anyio.ClosedResourceError])
async def test_a_hello_that_cannot_be_sent_reaches_nobody(server, monkeypatch, kind):
    class Broken:
        async def send(self, data):
            raise kind

        async def aclose(self):
            pass

        extra_attributes = MappingProxyType({})

    async def connect(path):
        return Broken()

    monkeypatch.setattr(shared_link.anyio, "connect_unix", connect)
    with pytest.raises(UnreachableError, match=kind.__name__):
        await shared_link.SharedLink(target(server)).connected()


class Busy:
    """A stream whose sends last until more was put, and count."""

    def __init__(self, stream, during):
        self.stream, self.during, self.n = stream, during, 0

    async def send(self, data):
        self.n += 1
        await self.during(self.n)
        await self.stream.send(data)

    def __getattr__(self, name):
        return getattr(self.stream, name)


@on_every_loop
async def test_no_task_writes_for_the_others_for_ever(server):
    link, connection, tasks = await connected(server)
    writers = []
    async with anyio.create_task_group() as group:

        async def during(n):
            writers.append(connection._roles.writing)
            if n < 9:
                group.start_soon(tasks.ask, n)
                while len(connection._exchange.unsent) < 1:
                    await anyio.lowlevel.checkpoint()

        connection._stream = Busy(connection._stream, during)
        group.start_soon(tasks.ask, 0)
        found = await in_thread(server.entries, 9)
        server.answer(*[[entry[1], 0, entry[2]] for entry in found])
    assert tasks.found == {n: n for n in range(9)}
    assert max(map(writers.count, writers)) <= 4
    await link.aclose()


@pytest.mark.slow
@on_every_loop
async def test_each_write_has_the_whole_time(server):
    link, connection, tasks = await connected(server, timeout_s=0.5)
    async with anyio.create_task_group() as group:

        async def during(n):
            if n < 3:
                group.start_soon(tasks.ask, n, WAIT_S)
            await anyio.sleep(0.2)  # three of them are longer than the time

        connection._stream = Busy(connection._stream, during)
        group.start_soon(tasks.ask, 0, WAIT_S)
        found = await in_thread(server.entries, 3)
        server.answer(*[[entry[1], 0, entry[2]] for entry in found])
    assert tasks.found == {n: n for n in range(3)}
    await link.aclose()


@on_trio
@pytest.mark.parametrize("is_over", [True, False])
async def test_a_server_that_reads_nothing_is_asked_about_during_a_tasks_write(
    server, monkeypatch, is_over
):
    """It is given up, or the write goes on once it reads again."""
    monkeypatch.setattr(shared_link, "SILENCE_S", 0.02)
    link, connection, tasks = await connected(server)
    is_asked = anyio.Event()

    async def is_given_up():
        is_asked.set()
        await anyio.lowlevel.checkpoint()
        return is_over

    connection._is_given_up = is_given_up
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.ask, LARGE)
            await is_asked.wait()
            if not is_over:
                assert await in_thread(server.entries, 1) == [[CALL, 1, LARGE]]
                server.answer([1, 0, "read"])
    if is_over:
        assert isinstance(tasks.found[LARGE], SilentError)
    else:
        assert tasks.found == {LARGE: "read"}
    await link.aclose()


# --- tasks of asyncio ---------------------------------------------------------------------------


class Stuck(asyncio.Transport):
    """A transport whose server reads nothing."""

    def __init__(self):
        super().__init__()
        self.is_aborted = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        pass

    def abort(self):
        self.is_aborted = True


def paused(timeout_s, is_given_up=None):
    found = FramedConnection(asyncio.get_running_loop(), timeout_s, is_given_up)
    stuck = Stuck()
    found.connection_made(stuck)
    found.is_open = True
    found.pause_writing()
    return found, stuck


on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.mark.anyio
@on_asyncio
async def test_a_server_that_reads_nothing_is_not_waited_for_for_ever(anyio_backend):
    connection, stuck = paused(timeout_s=0.05)
    with anyio.fail_after(WAIT_S):
        with pytest.raises(NotBegunError):
            await connection.send(Call("GET", "/stats"))
    assert stuck.is_aborted
    assert not connection.is_open


@pytest.mark.anyio
@on_asyncio
async def test_a_server_that_reads_nothing_is_given_up_when_another_has_its_place(
    anyio_backend, monkeypatch
):
    monkeypatch.setattr(connection_module, "SILENCE_S", 0.02)

    async def is_given_up():
        await anyio.lowlevel.checkpoint()
        return True

    connection, stuck = paused(1e6, is_given_up)
    with anyio.fail_after(WAIT_S):
        with pytest.raises(NotBegunError):
            await connection.send(Call("GET", "/stats"))
    assert stuck.is_aborted
