"""Hints of appends: a key of its own for each shard, which all nodes watch.

Whoever watches a key gets a message for each change. The tail changes with every
append, so nobody watches it: a busy cluster would do little else. An append that comes ``HINT_S``
behind the last hints of this node writes one in its own transaction, and with it those that its
other shards *owe*: their appends came earlier than that. What is owed and has found no such append
is written alone, all of it together, twice that time behind the last hints. So appends that go on
and on never do that, and a node that leads many shards tells of all of them in one message.

A hint that is lost costs a follower time: it looks at the log now and then anyway. So a hint is not
fenced, as appends are: one of a term that is over says of an entry what is true of it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from ...engine.runtime.clock import Clock
from ...errors import LodeqError
from . import rpc_pb2 as pb
from .endpoints import Endpoints
from .keys import Keys
from .rpc import Rpc
from .txn import put, txn

__all__ = ["HINTS_MAX", "HINT_S", "Hints"]

HINT_S: Final = 0.02  # between two writes of them
HINTS_MAX: Final = 64  # of one transaction: etcd takes 128 operations by default


class Hints:
    """The hints that this node writes. One for each connection."""

    def __init__(self, endpoints: Endpoints, keys: Keys, clock: Clock) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._clock = clock
        self._written: float | None = None  # mono() of the last ones
        self._owed: dict[int, int] = {}  # by shard: last index
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def take(self, added: Mapping[int, int]) -> dict[int, int]:
        """The last indices by shard that an append is to write; none: nothing is due. See ``sent``.

        Args:
            added: by shard, the last entry that the append adds.
        """
        if self._written is not None and self._clock.mono() - self._written < HINT_S:
            return {}
        others = [shard for shard in self._owed if shard not in added]
        return {**self._take_owed(others[: HINTS_MAX - len(added)]), **added}

    def puts(self, hints: Mapping[int, int]) -> list[pb.RequestOp]:
        """The operations that write these."""
        return [
            put(self._keys.of_shard("hint", shard), b"%d" % last) for shard, last in hints.items()
        ]

    def sent(self, added: Mapping[int, int], hints: Mapping[int, int], *, is_added: bool) -> None:
        """Owe what an append that was sent has not written.

        Args:
            added: as for ``take``.
            hints: what that returned.
            is_added: whether the append took effect, as far as its answer says.
        """
        if is_added and hints:
            for shard, last in added.items():
                if self._owed.get(shard, last + 1) <= last:
                    del self._owed[shard]
            return
        unwritten = added
        if not is_added:  # its hints are not there; of what it adds nobody knows
            unwritten = {shard: last for shard, last in hints.items() if shard not in added}
        for shard, last in unwritten.items():
            self.owe(shard, last)

    def _take_owed(self, shards: Iterable[int]) -> dict[int, int]:
        """Take the hints that these are owed: they count as written from now on."""
        taken = {shard: self._owed.pop(shard) for shard in shards}
        self._written = self._clock.mono()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._owed:
            self._wait()
        return taken

    def owe(self, shard: int, last: int) -> None:
        """Owe a hint of an entry that is there, and of which none was written for sure."""
        if self._is_closed:
            return
        self._owed[shard] = max(last, self._owed.get(shard, 0))
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        written = self._clock.mono() if self._written is None else self._written
        left_s = written + 2 * HINT_S - self._clock.mono()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._write_owed)

    def _write_owed(self) -> None:
        self._timer = None
        if not self._owed:  # appends have written it since
            return
        request = txn([], self.puts(self._take_owed([*islice(self._owed, HINTS_MAX)])))
        task = asyncio.get_running_loop().create_task(self._send(request), name="lodeq-hints")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, request: pb.TxnRequest) -> None:
        try:
            await self._endpoints.call(Rpc.TXN, request, self._endpoints.try_s)
        except LodeqError:
            pass  # whatever it is, the next append meets it

    async def close(self) -> None:
        """Write none any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owed.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
