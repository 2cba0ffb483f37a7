"""A client of the link that is made of bytes."""

import asyncio
from contextlib import asynccontextmanager

import anyio
import msgpack

from lodeq.client.transport.layout import FRAME_BYTES_MAX

__all__ = ["NONCE", "Wire", "frame", "pack", "wired"]

NONCE = bytes(range(8))


def frame(body):
    return len(body).to_bytes(4, "big") + body


def pack(value):
    return msgpack.packb(value)


class Wire:
    """A client that is made of bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.read = []  # entries that are read and not asked for yet

    def send(self, *entries):
        self.writer.write(frame(pack(entries)))

    async def body(self):
        with anyio.fail_after(10):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            assert 0 < size <= FRAME_BYTES_MAX
            return await self.reader.readexactly(size)

    async def hello(self, token=None, version=1, nonce=NONCE):
        self.writer.write(frame(bytes([version]) + pack([token, nonce, "test"])))
        body = await self.body()
        return body[0], msgpack.unpackb(body[1:])

    async def entries(self):
        return msgpack.unpackb(await self.body(), strict_map_key=False)

    async def answer(self, id):
        while True:
            for one in self.read:
                if one[0] == id:
                    self.read.remove(one)
                    return one[1:]
            self.read += await self.entries()

    async def is_closed(self):
        with anyio.fail_after(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def wired(url, **hello):
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
    wire = Wire(reader, writer)
    try:
        if hello.pop("greet", True):
            version, (is_welcome, operations) = await wire.hello(**hello)
            assert (version, is_welcome, operations) == (1, True, list(range(12)))
        yield wire
    finally:
        writer.close()
