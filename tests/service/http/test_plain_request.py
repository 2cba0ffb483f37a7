"""A request that httptools reads by itself is what h11 would have read; all others are h11's."""

import asyncio
import random

import anyio
import h11
import pytest
from support_http import serving, socket_path

import lodeq.testing
from lodeq.service.http.plain_request import HELD_BYTES_MAX, OneWrite, PlainReader

POST = (
    b"POST /v1/queues/mail/tasks?x=1 HTTP/1.1\r\nHost: localhost\r\n"
    b'Content-Type: application/json\r\nContent-Length: 14\r\n\r\n{"payload": 1}'
)
GET = (
    b"GET /v1/tasks/a%20b/result?wait=30 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
PARTS = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\x00",
    b":",
    b"\x7f",
    b"\xff",
    b"#",
    b"+",
    b",",
    b"-",
    b"0x",
    b"{",
    b"http://x/",
    b"HTTP/1.0",
    b" folded\r\n",
    b"A:\r\n",
    b"Host: x\r\n",
    b"Content-Length: 14\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
]
OTHERS = {
    "nothing": b"",
    "half a head": POST[:60],
    "half a body": POST[:-1],
    "two": GET + GET,
    "one and a half": GET + GET[:20],
    "an end after it": GET.replace(b"keep-alive", b"close"),
    "HTTP/1.0": GET.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a head alone": GET.replace(b"GET", b"HEAD"),
    "a whole address": GET.replace(b"/v1", b"http://localhost/v1"),
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": GET.replace(b"Host: localhost\r\n", b""),
    "two hosts": GET.replace(b"Host", b"Host: x\r\nHost"),
    "an empty line before it": b"\r\n" + GET,
    "two spaces": GET.replace(b" HTTP", b"  HTTP"),
    "an upgrade": POST.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost"),
    "a wait": POST.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    "two lengths": POST.replace(b"Host", b"Content-Length: 3\r\nHost"),
    "chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00",
}


def by_h11(data):
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=32768)
    connection.receive_data(data)
    head, body = connection.next_event(), b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert not connection.trailing_data[0].strip(b"\r\n")
    return head.method.decode(), head.target, list(head.headers), body


@pytest.mark.parametrize("data", [POST, GET, GET.replace(b"\r\nConnection: keep-alive", b"")])
def test_a_plain_request_is_read(data):
    reader = PlainReader()
    for _ in range(2):
        assert reader.read(data) == by_h11(data)


def test_another_is_not_and_the_next_is_again():
    reader = PlainReader()
    for name, data in OTHERS.items():
        assert reader.read(data) is None, name
        assert reader.read(POST) == by_h11(POST), name


def damaged(data, rnd):
    for _ in range(rnd.choice((1, 1, 2, 3))):
        at = rnd.randrange(len(data) + 1)
        match rnd.randrange(4):
            case 0:
                data = data[:at] + rnd.choice(PARTS) + data[at:]
            case 1:
                data = data[:at] + bytes([rnd.randrange(256)]) + data[at + 1 :]
            case 2:
                data = data[:at] + data[at + rnd.randrange(1, 4) :]
            case _:
                lines = data.split(b"\r\n")
                lines.insert(rnd.randrange(len(lines)), rnd.choice(lines))
                data = b"\r\n".join(lines)
    return data


def test_what_is_read_is_what_h11_reads():
    """Else a proxy could see a damaged request otherwise than the server does."""
    rnd, reader, n_plain = random.Random(28), PlainReader(), 0
    for _ in range(20_000):
        data = damaged(rnd.choice((POST, GET)), rnd)
        request = reader.read(data)
        if request is not None:
            n_plain += 1
            assert request == by_h11(data), data
    assert n_plain > 2000


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_requests_behind_a_plain_one_are_answered_in_their_order(anyio_backend):
    """In one packet with it they are h11's; in the next they wait until it is answered."""
    async with lodeq.testing.open() as engine:
        with socket_path() as path:
            async with serving(engine, path=path), await anyio.connect_unix(path) as stream:
                poll = b'{"queues": ["mail"], "wait": 30}'
                head = b"POST /v1/leases/claim HTTP/1.1\r\nHost: localhost\r\n"
                typed = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(poll)
                await stream.send(head + typed + poll)
                await anyio.wait_all_tasks_blocked()
                for _ in range(3):
                    await stream.send(POST.replace(b"?x=1", b"").replace(b"mail", b"other"))
                    await anyio.wait_all_tasks_blocked()
                await engine.queue("mail").enqueue(b"")
                await stream.send(GET.replace(b"keep-alive", b"close"))
                got = b""
                try:
                    while True:
                        got += await stream.receive()
                except anyio.EndOfStream:
                    pass
                statuses = [int(one[:3]) for one in got.split(b"HTTP/1.1 ")[1:]]
                assert statuses == [200, 201, 201, 201, 422]
                assert await engine.queue("other").purge() == 3


class Transport:
    def __init__(self):
        self.written = []
        self.is_closed = False

    def write(self, data):
        self.written.append(data)

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_answer_is_one_write(anyio_backend):
    inner = Transport()
    transport = OneWrite(inner, asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(b"body")
    assert inner.written == []
    transport.flush()
    assert inner.written == [b"headbody"]
    transport.write(b"late")
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    assert inner.written[1:] == [b"late"]
    transport.write(b"a")
    transport.write(b"b" * HELD_BYTES_MAX)
    assert [len(one) for one in inner.written[2:]] == [1, HELD_BYTES_MAX]
    transport.write(b"end")
    transport.close()
    assert inner.written[4:] == [b"end"]
    assert transport.is_closing()
