"""One HTTP connection of a client: what ends an answer, and what ends the connection."""

import asyncio
from contextlib import suppress

import pytest

from lodeq.client.transport.http_connection import Address, HttpConnection, LostError

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\n"
PATIENCE_S = 30.0


@pytest.fixture
async def serve(tmp_path):
    """Start a server that sends these bytes for each request, and closes where there are no more.

    Returns a connection to it, and the queue of the requests it has had.
    """
    servers, writers = [], []

    async def start(*answers):
        asked = asyncio.Queue()

        async def meet(reader, writer):
            writers.append(writer)
            for parts in answers:
                with suppress(asyncio.IncompleteReadError):  # the client has gone
                    await asked.put(await reader.readuntil(b"\r\n\r\n"))
                for part in [parts] if isinstance(parts, bytes) else parts:
                    writer.write(part)
                    await writer.drain()
            writer.close()

        path = str(tmp_path / f"{len(servers)}.sock")
        servers.append(await asyncio.start_unix_server(meet, path, limit=16 << 20))
        return await HttpConnection.open(Address(path, None), PATIENCE_S), asked

    yield start
    for server in servers:
        server.close()
    for writer in writers:
        writer.close()


async def ask(connection):
    return await connection.ask(b"GET / HTTP/1.1\r\n\r\n", PATIENCE_S)


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD + b"content-length: 5\r\n\r\nhello"],
        [HEAD, b"content-length: 5\r\n\r\nhe", b"llo"],
        [HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 5\r\n\r\nhello"],
    ],
    ids=["at once", "in parts", "chunked", "after a 100"],
)
async def test_an_answer_ends_and_the_connection_takes_another(serve, parts):
    connection, asked = await serve(parts, parts)
    for _ in range(2):
        assert await ask(connection) == (200, "text/x", b"hello")
        assert connection.is_open
    assert asked.qsize() == 2
    connection.close()


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (HEAD + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.0 200 OK\r\ncontent-type: text/x\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (HEAD + b"\r\nuntil the end", b"until the end"),
    ],
    ids=["close", "HTTP/1.0", "without a length"],
)
async def test_an_answer_after_which_the_connection_is_of_no_use(serve, answer, content):
    connection, _ = await serve(answer)
    assert await ask(connection) == (200, "text/x", content)
    assert not connection.is_open
    connection.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection"),
        (HEAD + b"content-length: 5\r\n\r\nhel", "closed the connection"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhel", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP"),
        (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", "no HTTP"),
    ],
    ids=["nothing", "cut", "cut in a chunk", "another protocol", "two lengths"],
)
async def test_an_answer_that_is_none(serve, answer, why):
    connection, _ = await serve(answer)
    with pytest.raises(LostError, match=why):
        await ask(connection)
    assert not connection.is_open


async def test_an_answer_that_nobody_has_asked_for_ends_the_connection(serve):
    whole = HEAD + b"content-length: 1\r\n\r\nx"
    connection, _ = await serve(whole + whole, b"")
    assert (await ask(connection)).content == b"x"
    assert not connection.is_open
    with pytest.raises(LostError):
        await ask(connection)


async def test_a_server_that_has_closed_is_not_asked_again(serve):
    connection, _ = await serve(HEAD + b"content-length: 1\r\n\r\nx")
    assert (await ask(connection)).content == b"x"
    with pytest.raises(LostError):
        await ask(connection)


async def test_no_answer_in_time(serve):
    connection, _ = await serve([], b"")
    with pytest.raises(LostError, match="in time"):
        await connection.ask(b"GET / HTTP/1.1\r\n\r\n", 0.0)
    assert not connection.is_open


async def test_patience_is_that_of_the_request(serve):
    connection, _ = await serve(HEAD + b"content-length: 1\r\n\r\nx", [], b"")
    assert (await ask(connection)).content == b"x"
    with pytest.raises(LostError, match="in time"):
        async with asyncio.timeout(PATIENCE_S / 2):
            await connection.ask(b"GET / HTTP/1.1\r\n\r\n", 0.0)


async def test_a_server_that_reads_slowly_is_waited_for(serve):
    """Whoever takes what is sent, however slowly, is not overdue."""
    connection, _ = await serve([], b"")
    asking = asyncio.create_task(connection.ask(b"x" * (8 << 20), PATIENCE_S))
    await asyncio.sleep(0)
    connection._heard_at -= 2 * PATIENCE_S
    connection._unsent_bytes += 1  # a byte has gone since
    connection._look()
    assert connection._timer is not None
    connection._heard_at -= 2 * PATIENCE_S
    connection._look()
    with pytest.raises(LostError, match="in time"):
        await asking


async def test_a_cancelled_request_closes_the_connection(serve):
    connection, asked = await serve([], b"")
    asking = asyncio.create_task(ask(connection))
    await asked.get()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not connection.is_open
