"""The adapters of ``SharedLog`` that the conformance suite runs on.

An adapter is a function that takes a clock and gives, as an async context manager, a ``LogRig``: a
log service that is new, and connections to it. Register one with ``@adapter("name")``.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support_behaviour import StillClock

from lodeq.engine.runtime.clock import Clock
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.engine.store.port import Op
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.port import SharedLog
from lodeq.replication.record import Batch, LogRecord

__all__ = ["ADAPTERS", "PARAMS", "LogRig", "adapter", "noise", "record_of"]


@dataclass
class LogRig:
    """A log service of one cluster, empty.

    Attributes:
        client: a new connection of the node of this name.
        ttl_s: how long a session lasts without a renewal.
        expire: end the session of a node on the service's side.
        pass_time: let so many seconds of the connections' clock pass.
        damage: change a byte of the record that holds an entry: (shard, index).
        orphans: how many fragments a shard has that belong to no record; None: cannot be told.
    """

    client: Callable[[str], SharedLog]
    ttl_s: float
    expire: Callable[[str], Awaitable[None]]
    pass_time: Callable[[float], Awaitable[None]]
    damage: Callable[[int, int], Awaitable[None]]
    orphans: Callable[[int], Awaitable[int]]


Adapter = Callable[[], AbstractAsyncContextManager[LogRig]]
ADAPTERS: dict[str, Adapter] = {}
PARAMS: list[Any] = []  # their names, for a fixture


def adapter(name: str, *, is_slow: bool = False) -> Callable[[Adapter], Adapter]:
    """Run the suite on this one, too."""

    def register(make: Adapter) -> Adapter:
        ADAPTERS[name] = make
        PARAMS.append(pytest.param(name, marks=[pytest.mark.slow] if is_slow else []))
        return make

    return register


@adapter("memory")
@asynccontextmanager
async def memory_log() -> AsyncIterator[LogRig]:
    clock: Clock = StillClock()
    log = MemoryLog(current_spawner(), clock, record_bytes_max=4096)

    async def expire(node: str) -> None:
        log.expire(node)

    async def pass_time(seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            await clock.advance(0.1)

    async def damage(shard: int, index: int) -> None:
        log.service.damage(shard, index)

    async def orphans(shard: int) -> int:
        return log.service.fragments(shard)

    clients: list[SharedLog] = []

    def client(node: str) -> SharedLog:
        made = log.client(node)
        clients.append(made)
        return made

    yield LogRig(client, log.service.ttl_s, expire, pass_time, damage, orphans)
    for made in clients:
        await made.close()


@adapter("etcd", is_slow=True)
@asynccontextmanager
async def etcd_log() -> AsyncIterator[LogRig]:
    from support_etcd import Raw, fresh_name, log_of, shared_servers

    servers = shared_servers()
    url = servers.url(fresh_name())
    raw = Raw(url)
    clients: list[SharedLog] = []

    def client(node: str) -> SharedLog:
        made: SharedLog = log_of(url, record_bytes_max=4096)
        clients.append(made)
        return made

    yield LogRig(client, 2.0, raw.expire, asyncio.sleep, raw.damage, raw.orphans)
    for made in clients:
        await made.close()
    await raw.close()


def noise(size: int) -> bytes:
    """Bytes that a log does not pack into fewer."""
    return random.Random(size).randbytes(size)


def record_of(shard: int, term: int, first: int, *ops: tuple[Op, ...], **given: Any) -> LogRecord:
    """A record of entries with these operations; one with a key of its own for each without."""
    batches = tuple(Batch(1 << 40 | first + n, one) for n, one in enumerate(ops))
    nonce = given.pop("nonce", b"%08d%08d" % (term, first))
    return LogRecord(nonce, shard, term, first, batches)
