"""Pages of logs that the member at hand is asked for: those of one turn of the loop in one call.

A node follows many shards and looks at them at the same times, and a call costs it, and etcd, more
than the few records that it brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from . import rpc_pb2 as pb
from .endpoints import Endpoints
from .keys import Keys
from .txn import get, kvs, only, scan, txn

__all__ = ["PAGES_MAX", "NearPages", "Page", "page_of", "page_reads"]

PAGES_MAX: Final = 8  # of one call: each gets its share of the records that one answer may have
_RECORDS_MIN: Final = 2
_READS: Final = 3  # of one page


class Page(NamedTuple):
    """Floor and tail of a log, where it has them, and some of its records' keys in order."""

    floor: pb.KeyValue | None
    tail: pb.KeyValue | None
    found: Sequence[pb.KeyValue]


class _Wanted(NamedTuple):
    shard: int
    start: bytes
    limit: int
    answer: asyncio.Future[Page | None]


def page_reads(
    keys: Keys, shard: int, start: bytes, limit: int, *, is_near: bool
) -> list[pb.RequestOp]:
    """The reads of one page, of records from ``start`` on."""
    return [
        get(keys.of_shard("floor", shard), is_near=is_near),
        get(keys.of_shard("tail", shard), is_near=is_near),
        scan(start, keys.records_end(shard), limit=limit, is_near=is_near),
    ]


def page_of(answer: pb.TxnResponse, number: int = 0) -> Page:
    """One of the pages that an answer brings."""
    at = _READS * number
    return Page(only(answer, at), only(answer, at + 1), kvs(answer, at + 2))


class NearPages:
    """Reads of the member at hand. One for each connection."""

    def __init__(self, endpoints: Endpoints, keys: Keys) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._wanted: list[_Wanted] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, shard: int, start: bytes, limit: int) -> Page | None:
        """One page, as of one moment; None: the member lags, or is silent.

        Args:
            shard: which.
            start: the first key of a record that is wanted.
            limit: how many keys at most; fewer where other shards are read in the same call.
        """
        loop = asyncio.get_running_loop()
        wanted = _Wanted(shard, start, limit, loop.create_future())
        self._wanted.append(wanted)
        if len(self._wanted) == 1:
            loop.call_soon(self._ask_all)
        return await wanted.answer

    def _ask_all(self) -> None:
        wanted, self._wanted = self._wanted, []
        for n in range(0, len(wanted), PAGES_MAX):
            ask = self._ask(wanted[n : n + PAGES_MAX])
            task = asyncio.get_running_loop().create_task(ask, name="lodeq-log-read")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, wanted: list[_Wanted]) -> None:
        reads: list[pb.RequestOp] = []
        for shard, start, limit, _ in wanted:
            share = max(_RECORDS_MIN, limit // len(wanted))
            reads += page_reads(self._keys, shard, start, share, is_near=True)
        try:
            answer = await self._endpoints.ask_near(txn([], reads))
        except asyncio.CancelledError:  # of a loop that is being ended
            for one in wanted:
                one.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - it is for those who wait
            for one in wanted:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for number, one in enumerate(wanted):
            if not one.answer.done():
                one.answer.set_result(None if answer is None else page_of(answer, number))
