"""When an asyncio client writes: at the end of a turn of its loop, or ahead of that."""

import asyncio

import msgpack
import pytest
from support_link import frame, pack, turns

import lodeq
from lodeq.client.transport.connection import FramedConnection
from lodeq.client.transport.layout import FrameReader, Op

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

COMPLETE, CLAIM = int(Op.COMPLETE), int(Op.CLAIM)
ENQUEUE_MANY, COMPLETE_MANY = int(Op.ENQUEUE_MANY), int(Op.COMPLETE_MANY)


class Server(asyncio.Transport):
    """The server's end: the ids of each write that arrives, and whoever called."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.calls = []
        self._reader = FrameReader()
        self._connection = FramedConnection(asyncio.get_running_loop(), 10.0)
        self._connection.connection_made(self)
        self._connection.sends_ahead = True
        self._connection.data_received(frame(b"\x01" + pack((True, [list(range(10))]))))

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def abort(self):
        pass

    def write(self, data):
        self.writes += [
            [one[1] for one in msgpack.unpackb(body)] for body in self._reader.feed(data)
        ]

    def stay_together(self):
        self._connection.sends_ahead = False

    async def asked(self, n, operation=COMPLETE, members=(), wait_s=0.0):
        """The sizes of the writes that n calls of one turn come to."""
        connection, before = self._connection, len(self.writes)
        self.calls += [
            asyncio.ensure_future(connection.ask(operation, None, members, wait_s))
            for _ in range(n)
        ]
        await turns(3)
        return [len(one) for one in self.writes[before:]]

    async def answer(self, *writes):
        """All that came in these writes, in one frame."""
        ids = [id for n in writes for id in self.writes[n]]
        self._connection.sends_ahead = True
        self._connection.data_received(frame(pack([(id, 0, None) for id in ids])))

    async def close(self):
        self._connection.lose(ConnectionError())
        await asyncio.gather(*self.calls, return_exceptions=True)


@pytest.fixture
async def server():
    made = Server()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(1, [1]), (7, [7]), (8, [8]), (15, [8, 7]), (32, [8, 8, 16]), (40, [8, 8, 16, 8])],
)
async def test_calls_of_one_turn_go_in_writes_that_double(server, n, sizes):
    assert await server.asked(n) == sizes


async def test_no_more_is_sent_ahead_than_the_server_has(server):
    await server.asked(40)
    await server.answer(0)
    assert await server.asked(8) == [8]  # at the end of its turn
    await server.answer(1, 2, 3)
    assert await server.asked(12) == [8, 4]


async def test_claims_that_wait_do_not_count(server):
    await server.asked(100, CLAIM, (1,), 30.0)
    assert await server.asked(16) == [8, 8]


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        (ENQUEUE_MANY, lambda n: (0, [b"x"] * n)),
        (COMPLETE_MANY, lambda n: ([()] * n,)),
        (CLAIM, lambda n: (n,)),
    ],
)
async def test_a_request_about_many_tasks_goes_at_once(server, operation, members):
    assert await server.asked(3, operation, members(8)) == [1, 1, 1]
    assert await server.asked(3, operation, members(7)) == [3]


async def test_callers_that_wait_for_a_sync_stay_together(server):
    server.stay_together()
    assert await server.asked(40) == [40]
    assert await server.asked(3, COMPLETE_MANY, ([()] * 64,)) == [3]


async def test_what_is_sent_ahead_keeps_the_order_of_the_calls(server):
    await server.asked(50)
    await server.asked(2, COMPLETE_MANY, ([()] * 9,))
    assert [id for write in server.writes for id in write] == [*range(1, 53)]


@pytest.mark.parametrize(("durability", "is_ahead"), [("nosync", True), ("fsync", False)])
async def test_only_to_a_store_that_does_not_sync(tmp_path, durability, is_ahead):
    seen = []
    path = tmp_path / "s"
    async with (
        lodeq.open(tmp_path / "store", durability=durability, serve=path),
        lodeq.connect(f"unix://{path}") as engine,
    ):
        for _ in range(2):
            await engine.queue("q").enqueue(b"x")
            connection = engine._transport._framed.connection
            seen.append(connection.sends_ahead)
            connection.lose(ConnectionError())
    assert seen == [is_ahead, is_ahead]
