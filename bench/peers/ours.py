"""lodeq behind the same interface, through its public API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import lodeq
from lodeq import NewTask

from .base import Peer

__all__ = ["LodeqFsync", "LodeqNosync"]


class LodeqSession:
    def __init__(self, engine: lodeq.Engine, queue: lodeq.Queue) -> None:
        self.engine = engine
        self.queue = queue

    async def put(self, payload: bytes) -> None:
        await self.queue.enqueue(payload)

    async def take(self) -> Any:
        leases = await self.queue.claim()
        return leases[0] if leases else None

    async def done(self, token: lodeq.Lease, result: bytes) -> None:
        await token.complete(result)

    async def put_many(self, payloads: Sequence[bytes]) -> None:
        await self.queue.enqueue_many([NewTask(payload) for payload in payloads])

    async def take_many(self, n: int) -> list[Any]:
        return list(await self.queue.claim(limit=n))

    async def done_many(self, tokens: Sequence[lodeq.Lease], result: bytes) -> None:
        await self.engine.complete_many([(token, result) for token in tokens])

    async def close(self) -> None:
        """The engine is everybody's."""


class _Lodeq(Peer):
    keeps = "fenced lease, result"
    is_async = True
    has_batches = True
    callers_max = 512
    mode: ClassVar[Any]

    async def enter(self) -> None:
        self.engine = await lodeq.open(self.folder / "store", durability=self.mode)
        self.queue = self.engine.queue("bench")

    async def leave(self) -> None:
        await self.engine.close()

    def session(self) -> LodeqSession:
        return LodeqSession(self.engine, self.queue)


class LodeqNosync(_Lodeq):
    name = "lodeq, nosync"
    durability = "os"
    mode = "nosync"


class LodeqFsync(_Lodeq):
    name = "lodeq, fsync"
    durability = "fsync"
    mode = "fsync"
