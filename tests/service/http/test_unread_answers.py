"""Answers that nobody reads: together they have a bound, and who reads slowest is cut."""

from contextlib import AsyncExitStack

import anyio
import pytest
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq.service.http import unread_answers as unread_answers_module
from lodeq.service.http.guard import Settings
from lodeq.service.http.unread_answers import STILL_S, UnreadAnswers

pytestmark = pytest.mark.anyio
MIB = 1 << 20


@pytest.fixture
def anyio_backend():
    return "asyncio"


class One:
    def __init__(self):
        self.unread_bytes = 0
        self.is_cut = False

    def cut(self):
        self.is_cut = True
        self.unread_bytes = 0


def wrote(unread, one, n_bytes):
    one.unread_bytes += n_bytes
    unread.written(one, n_bytes)


def test_who_has_read_nothing_for_longest_is_cut():
    unread, ones = UnreadAnswers(10), [One() for _ in range(3)]
    for one in ones:
        wrote(unread, one, 3)
    ones[0].unread_bytes = 1  # it reads
    wrote(unread, ones[0], 3)
    assert not any(one.is_cut for one in ones)
    wrote(unread, ones[2], 1)
    assert [one.is_cut for one in ones] == [False, True, False]
    assert unread.total_bytes == 8


def test_what_was_read_meanwhile_counts_no_more():
    unread, first, second = UnreadAnswers(10), One(), One()
    wrote(unread, first, 9)
    first.unread_bytes = 0
    wrote(unread, second, 9)
    assert not first.is_cut
    assert unread.total_bytes == 9
    unread.left(second)
    assert unread.total_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["http", "link"])
async def test_those_who_read_nothing_take_no_more_than_the_bound(way):
    request = b"GET /v1/queues/mail/tasks?limit=4 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    settings = Settings(answers_bytes_max=8 * MIB)
    async with lodeq.testing.open() as engine, AsyncExitStack() as stack:
        for _ in range(4):
            await engine.queue("mail").enqueue(b"x" * (MIB // 2))
        path = stack.enter_context(socket_path())
        url = await stack.enter_async_context(serving(engine, path=path, settings=settings))
        silent = []
        for _ in range(12):
            stream = await stack.enter_async_context(await anyio.connect_unix(path))
            silent.append(stream)
            if way == "http":
                await stream.send(request)
            else:
                await stream.send(link_hello())
                await stream.receive()
                await stream.send(link_call())
        async with lodeq.connect(url) as client:  # and who reads is served
            assert len(await client.queue("mail").list("ready", limit=4)) == 4
        ends = [await size_read(one) for one in silent]
        ends.sort()  # they stand in line for their pages, and need not be answered as they came
        assert max(ends[:4]) < 2 * MIB  # cut
        assert min(ends[-2:]) > 2 * MIB  # whole
        await stack.aclose()


def link_hello():
    from lodeq.client.transport.layout import hello_frame

    return hello_frame(None, bytes(8))


def link_call():
    from lodeq.client.transport.layout import Op, frames_of

    call = (int(Op.CALL), 1, "GET", "/queues/mail/tasks", {"limit": "4"}, None, 30.0)
    return frames_of([call])


async def size_read(stream):
    n_bytes = 0
    with anyio.move_on_after(0.2):
        try:
            while True:
                n_bytes += len(await stream.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    return n_bytes


async def test_a_reader_that_was_cut_has_not_read(monkeypatch):
    """Those who read nothing, and are cut one after the other, hold up no page for longer."""
    now = 0.0
    unread = UnreadAnswers(1000)

    async def sleep(seconds):
        nonlocal now
        now += seconds
        assert now < 2 * STILL_S
        wrote(unread, One(), 300)  # at every look: the first of the three others is cut

    monkeypatch.setattr(unread_answers_module, "current_time", lambda: now)
    monkeypatch.setattr(unread_answers_module, "sleep", sleep)
    for _ in range(3):
        wrote(unread, One(), 300)
    await unread.room()
    assert now >= STILL_S
