"""A link's server side without a socket: what a client sends and reads, turn by turn."""

import asyncio
from dataclasses import asdict
from enum import IntEnum

import msgpack
from anyio.lowlevel import checkpoint

from lodeq.client.calls import Call, QueueTemplate, Session
from lodeq.client.fast_calls import FastCalls
from lodeq.client.transport.connection import FramedConnection
from lodeq.client.transport.entries import granted_of
from lodeq.client.transport.framed_link import FramedLink
from lodeq.client.transport.layout import FrameReader, Op
from lodeq.client.transport.target import Doubt, FramedTarget
from lodeq.repository.model.values import Limits, NewTask
from lodeq.service.http.admission import Refusals
from lodeq.service.http.app import make_app
from lodeq.service.http.link import serving as link_serving
from lodeq.service.http.link.connection import LinkConnection
from lodeq.service.http.link.serving import LinkServing

__all__ = ["Client", "Peer", "Wire", "frame", "grow_older", "pack", "serving_links", "turns"]

SESSION = {
    "limits": asdict(Limits()),
    "path": None,
    "shards": 1,
    "durability": "nosync",
    "batch_max": 4096,
    "wait_s_max": 60.0,
    "body_bytes_max": 8 << 20,
    "takes_claim_ids": True,
    "takes_policies": True,
}
TURNS = 40  # of the loop: more than any answer takes that does not wait


def grow_older(monkeypatch):
    """From now on servers are of before there were the operations."""
    kept = {one.name: int(one) for one in Op if one < Op.ENQUEUE_WITH_OPTIONS}
    monkeypatch.setattr(link_serving, "Op", IntEnum("Op", kept))


def pack(value):
    return msgpack.packb(value)


def frame(body):
    return len(body).to_bytes(4, "big") + body


async def turns(n=TURNS):
    for _ in range(n):
        await checkpoint()


def serving_links(engine, settings=None):
    """What the links of one server share, and its admission."""
    hub = make_app(engine, settings).state.hub
    serving = LinkServing(hub, Refusals(), set(), set(), asyncio.get_running_loop())
    return serving, hub.admission


class Wire(asyncio.Transport):
    """The server's end of a connection. ``is_stuck``: its client reads nothing."""

    def __init__(self, is_stuck=False):
        super().__init__()
        self.is_stuck = is_stuck
        self.sent = bytearray()  # what the client can read
        self.unread = 0
        self.most_unread = 0
        self.high = 1 << 16
        self.is_reading = True
        self.is_gone = False
        self._is_closing = False
        self._is_paused = False

    def begin(self, protocol):
        self.protocol = protocol
        protocol.connection_made(self)

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high

    def get_write_buffer_size(self):
        return self.unread

    def get_extra_info(self, name, default=None):
        return default

    def is_closing(self):
        return self._is_closing

    def write(self, data):
        if self._is_closing and not self.unread:
            return  # as asyncio's does
        self.sent += data
        if self.is_stuck:
            self.unread += len(data)
            self.most_unread = max(self.most_unread, self.unread)
            if self.unread > self.high and not self._is_paused:
                self._is_paused = True
                self.protocol.pause_writing()

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def close(self):
        if not self._is_closing:
            self._is_closing = True
            if not self.unread:
                self._lose_soon()

    def write_eof(self):
        """The client closes its side, unless it reads nothing."""
        if not self.unread:
            self.close()

    def abort(self):
        self._is_closing = True
        self.unread = 0
        self._lose_soon()

    def _lose_soon(self):
        if not self.is_gone:
            self.is_gone = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def read(self):
        """The client reads all there is."""
        self.unread = 0
        self.is_stuck = False
        if self._is_closing:
            self._lose_soon()
        elif self._is_paused:
            self._is_paused = False
            self.protocol.resume_writing()


class Peer:
    """One client. Its requests have ids from 1."""

    def __init__(self, serving, admission, *, nonce=b"12345678", is_stuck=False, token=None):
        self.wire = Wire()
        self.link = LinkConnection(serving, admission)
        self.wire.begin(self.link)
        self.id = 0
        self._reader = FrameReader()
        self._entries = []
        self.send_bytes(frame(b"\x01" + pack([token, nonce, "test"])))
        self.welcome = self.bodies()
        self.wire.is_stuck = is_stuck

    def send_bytes(self, data):
        """What arrives in one read of the server; False: it does not read."""
        if self.wire.is_closing() or not self.wire.is_reading:
            return False
        self.link.data_received(data)
        return True

    def send(self, *entries):
        return self.send_bytes(frame(pack(entries)))

    @property
    def is_quiet(self):
        """Whether all that it has sent is answered, waits apart."""
        link = self.link
        return not (link._n_open or link._backlog or link._out)

    def request(self, operation, *members):
        """One entry with the next id."""
        self.id += 1
        return [operation, self.id, *members]

    def bodies(self):
        data = bytes(self.wire.sent)
        self.wire.sent.clear()
        return list(self._reader.feed(data))

    def answers(self):
        """Entries that have come so far, by id; 0: those of the connection."""
        for body in self.bodies():
            self._entries += msgpack.unpackb(body, strict_map_key=False)
        return {entry[0]: entry[1:] for entry in self._entries}


class Client:
    """A Python client whose server is made of bytes. Its calls have the ids from 1, in order."""

    def __init__(self, loop):
        self.wire = Wire()
        self.connection = FramedConnection(loop, 30.0)
        self.wire.begin(self.connection)
        self.receive(frame(b"\x01" + pack([True, list(range(12))])))
        link = FramedLink(FramedTarget("unix:///s", "/s", None, 30.0))
        link._connection = self.connection
        session = Session(SESSION)
        self.template = QueueTemplate(
            session,
            "mail",
            "",
            max_attempts=3,
            lease=30.0,
            retention=60.0,
            dead_retention=60.0,
            backoff=None,
            boost_after=None,
            codec=None,
            faces=True,
        )
        self.fast = FastCalls(link, session)

    def receive(self, data):
        """What the server sends."""
        if not self.wire.is_closing():
            self.connection.data_received(data)

    def calls(self):
        fast, template = self.fast, self.template
        lease = granted_of([bytes(16), 1, b"t", 5, 1, 1, 1, 30.0, bytes(32), 0, b"", None, ""], "q")
        return [
            fast.enqueue(template, b"x"),
            fast.enqueue_many(template, [NewTask(b"x"), NewTask(b"y")]),
            fast.claim(template, 1, 30.0, 5.0, "w", lambda id: None),
            fast.complete(lease, None, False, Doubt()),
            fast.complete_many([(lease, None)], Doubt()),
            self.connection.send(Call("GET", "/queues/mail/stats")),
            fast.enqueue_with(template, NewTask(b"x", dedup_key="k")),
            fast.enqueue_many(template, [NewTask(b"x", dedup_key="k"), NewTask(b"y")]),
        ]
