"""Hints of appends: a key of its own for each shard, which all nodes watch.

Whoever watches a key gets a message for each change. The tail changes with every
append, so nobody watches it: a busy cluster would do little else. An append that comes ``HINT_S``
behind the last hint writes one in its own transaction. One that comes earlier *owes* it: unless
another append has written it by then, it is written alone twice that time behind the last one. So
appends that go on and on never do.

A hint that is lost costs a follower time: it looks at the log now and then anyway.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ...engine.runtime.clock import Clock
from ...errors import LodeqError
from . import rpc_pb2 as pb
from .endpoints import Endpoints
from .keys import Keys
from .rpc import Rpc
from .txn import created_at, put, txn

__all__ = ["HINT_S", "Hints"]

HINT_S: Final = 0.02  # between two of one shard


class Hints:
    """The hints that this node writes. One for each connection."""

    def __init__(self, endpoints: Endpoints, keys: Keys, clock: Clock) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._clock = clock
        self._written: dict[int, float] = {}  # by shard: mono() of the last one
        self._owed: dict[int, tuple[int, int]] = {}  # term and last index
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_due(self, shard: int) -> bool:
        """Whether the next append is to write one."""
        written = self._written.get(shard)
        return written is None or self._clock.mono() - written >= HINT_S

    def put(self, shard: int, last: int) -> pb.RequestOp:
        """The operation that writes one."""
        return put(self._keys.of_shard("hint", shard), b"%d" % last)

    def wrote(self, shard: int) -> None:
        """An append has written one."""
        self._written[shard] = self._clock.mono()
        self._owed.pop(shard, None)
        timer = self._timers.pop(shard, None)
        if timer is not None:
            timer.cancel()

    def owe(self, shard: int, term: int, last: int) -> None:
        """An append has written none: see to it that one follows."""
        self._owed[shard] = term, last
        if shard not in self._timers:
            left_s = self._written.get(shard, 0.0) + 2 * HINT_S - self._clock.mono()
            loop = asyncio.get_running_loop()
            self._timers[shard] = loop.call_later(max(0.0, left_s), self._write_owed, shard)

    def _write_owed(self, shard: int) -> None:
        del self._timers[shard]
        term, last = self._owed.pop(shard)
        self._written[shard] = self._clock.mono()
        leads = created_at(self._keys.of_shard("leader", shard), term)
        send = self._send(txn([leads], [self.put(shard, last)]))
        task = asyncio.get_running_loop().create_task(send, name=f"lodeq-hint-{shard}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, request: pb.TxnRequest) -> None:
        try:
            await self._endpoints.call(Rpc.TXN, request, self._endpoints.try_s)
        except LodeqError:
            pass  # whatever it is, the next append meets it

    async def close(self) -> None:
        """Write none any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._owed.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
