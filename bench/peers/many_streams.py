"""Redis streams in the shape of a claim over many queues: a stream a queue, one group, one read.

A read names all streams and returns up to COUNT entries of each, so a batch of 64 over k streams
asks each for 64 / k of them. There is no order across streams, neither by priority nor by age.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from .servers import RedisEverysec

__all__ = ["ManyStreams"]

GROUP = "workers"
BLOCK_MS = 50


class ManyStreams(RedisEverysec):
    """The server, and the measures of ``cases/queues.py`` on it."""

    async def prepare(self, names: Sequence[str]) -> None:
        """Make the streams."""
        client = self._client()
        for name in names:
            await client.xgroup_create(name, GROUP, id="0", mkstream=True)
        await client.aclose()

    def _client(self) -> Any:
        import redis.asyncio

        return redis.asyncio.Redis(unix_socket_path=self.socket, single_connection_client=True)

    async def drain(
        self, names: Sequence[str], full: Sequence[str], n: int, size: int, payload: bytes
    ) -> float:
        """Read over all of ``names`` and end what came; entries are in ``full``. Tasks a second."""
        client = self._client()
        turns = itertools.cycle(full)
        for _ in range(n // size):
            pipe = client.pipeline(transaction=False)
            for _ in range(size):
                pipe.xadd(next(turns), {"p": payload})
            await pipe.execute()
        streams, done = dict.fromkeys(names, ">"), 0
        each = max(1, size // len(names))
        began = time.perf_counter()
        while found := await client.xreadgroup(GROUP, "one", streams, count=each):
            done += await _end(client, found)
        took = time.perf_counter() - began
        await client.aclose()
        if done != n:
            raise AssertionError(f"{done} came out of {n}")
        return done / took

    async def waited(
        self,
        names: Sequence[str],
        full: Sequence[str],
        n: int,
        payload: bytes,
        *,
        producers: int = 16,
        workers: int = 64,
    ) -> float:
        """Cycles of single calls: workers wait over all of ``names``. Cycles a second."""
        streams, turns = dict.fromkeys(names, ">"), itertools.cycle(full)
        left, done = iter(range(n)), 0
        clients = [self._client() for _ in range(producers + workers)]
        for client in clients:
            await client.ping()

        async def produce(client: Any) -> None:
            for _ in left:
                await client.xadd(next(turns), {"p": payload})

        async def work(client: Any, name: str) -> None:
            nonlocal done
            while done < n:
                found = await client.xreadgroup(GROUP, name, streams, count=1, block=BLOCK_MS)
                if found:
                    ended = await _end(client, found)  # not in one line: others add meanwhile
                    done += ended

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            crew = [
                group.create_task(work(client, str(nth)))
                for nth, client in enumerate(clients[producers:])
            ]
            for client in clients[:producers]:
                group.create_task(produce(client))
            while done < n:
                await asyncio.wait(crew, return_when=asyncio.FIRST_COMPLETED)
            took = time.perf_counter() - began
        for client in clients:
            await client.aclose()
        return n / took


async def _end(client: Any, found: Any) -> int:
    """Acknowledge, delete, keep a result: in one go."""
    pipe = client.pipeline(transaction=True)
    ended = 0
    for name, entries in found.items() if isinstance(found, dict) else found:
        while entries and isinstance(entries[0], list):
            entries = entries[0]
        for id, _ in entries:
            pipe.xack(name, GROUP, id)
            pipe.xdel(name, id)
            pipe.set(b"r:" + name + id, b"ok", ex=3600)
            ended += 1
    await pipe.execute()
    return ended
