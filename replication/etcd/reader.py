"""Reads of a shard's log: in pages, each as of one moment, with floor and tail beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...errors import RecordCorruptError
from ..fragments import Head, join_fragments, read_stored
from ..port import CompactedError
from ..record import LogRecord, unpacked_bytes
from . import rpc_pb2 as pb
from .endpoints import Endpoints
from .keys import Keys, decode_number
from .near_pages import NearPages, Page, page_of, page_reads
from .rpc import Rpc
from .txn import get, kvs, only, scan, txn

__all__ = ["LogReader"]

_PAGE_MAX: Final = 16  # keys of 1 MiB at most
_PAGE_KEY_BYTES: Final = 1 << 16
_LOOK_BACK: Final = 64  # indices; a record rarely has more entries


class LogReader:
    """Reads records. One for each connection."""

    def __init__(self, endpoints: Endpoints, keys: Keys, budget_s: float) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._budget_s = budget_s
        self._near = NearPages(endpoints, keys)
        self.base = 0  # of the genesis: what a shard's tail is before there is one

    async def read(
        self, shard: int, after: int, bytes_max: int, *, is_near: bool = False
    ) -> list[LogRecord]:
        """Records with entries above ``after``; see ``SharedLog.read``.

        Args:
            shard: which.
            after: index of the last entry that the caller has.
            bytes_max: stop behind about so many bytes, unpacked; there is at least one record.
            is_near: what the member that is asked has will do, if it has any; no other member
                hears of such a read.
        """
        found: list[LogRecord] = []
        if is_near:
            found = await self._read(shard, after, bytes_max, is_near=True)
        return found or await self._read(shard, after, bytes_max, is_near=False)

    async def _read(
        self, shard: int, after: int, bytes_max: int, *, is_near: bool
    ) -> list[LogRecord]:
        run = _Run(self._keys, shard, after)
        start = self._keys.record(shard, after + 1)
        limit = max(2, min(_PAGE_MAX, bytes_max // _PAGE_KEY_BYTES))
        while True:
            page = await self._page(shard, start, limit, is_near=is_near)
            if page is None:
                return run.records
            floor, last, found = self._parts(page, shard)
            if floor > run.next and not run.is_inside:
                return run.records or _refuse(shard, run.next, floor)
            if last < run.next:
                return run.records
            if run.is_at_start and not self._begins(found, shard, run.next):
                first = await self.begin(shard, run.next)
                start, run.is_at_start = self._keys.record(shard, first), False
                continue
            try:
                for kv in found:
                    run.take(kv)
                    if run.size_bytes >= bytes_max and not run.is_inside:
                        return run.records
                if last < run.next and not run.is_inside:
                    return run.records
                if not found:
                    raise RecordCorruptError(
                        f"shard {shard}: record {run.next} of {last} is missing"
                    )
            except RecordCorruptError:
                if run.records:
                    return run.records  # who reads on behind them is told
                if floor > run.next:  # it has been truncated since the page before
                    return _refuse(shard, run.next, floor)
                raise
            start = found[-1].key + b"\0"

    async def _page(self, shard: int, start: bytes, limit: int, *, is_near: bool) -> Page | None:
        if is_near:
            return await self._near.read(shard, start, limit)
        request = txn([], page_reads(self._keys, shard, start, limit, is_near=False))
        return page_of(await self._endpoints.call(Rpc.TXN, request, self._budget_s))

    def _parts(self, page: Page, shard: int) -> tuple[int, int, Sequence[pb.KeyValue]]:
        floor, tail = page.floor, page.tail
        return (
            self.base + 1
            if floor is None
            else decode_number(floor.value, f"the floor of shard {shard}"),
            self.base if tail is None else decode_number(tail.value, f"the tail of shard {shard}"),
            page.found,
        )

    def _begins(self, found: Sequence[pb.KeyValue], shard: int, index: int) -> bool:
        return bool(found) and found[0].key == self._keys.record(shard, index)

    async def begin(self, shard: int, index: int) -> int:
        """The first index of the record that holds ``index``: the nearest one not above it.

        Raises:
            CompactedError: it has been truncated.
            RecordCorruptError: there is none.
        """
        back = _LOOK_BACK
        end = self._keys.record(shard, index) + b"\0"
        floor_key = self._keys.of_shard("floor", shard)
        while True:
            low = max(0, index - back)
            page = scan(self._keys.record(shard, low), end, is_keys_only=True, is_reversed=True)
            request = txn([], [page, get(floor_key)])
            answer = await self._endpoints.call(Rpc.TXN, request, self._budget_s)
            for kv in kvs(answer, 0):
                found = self._keys.parse_log(kv.key, shard)
                if found.fragment is None:
                    return found.first
            kept = only(answer, 1)
            if kept is not None:
                floor = decode_number(kept.value, f"the floor of shard {shard}")
                if floor > index:  # moved since whoever asks has seen it
                    _refuse(shard, index, floor)
            if low == 0:
                raise RecordCorruptError(f"shard {shard}: the record with entry {index} is missing")
            back *= 16


def _refuse(shard: int, index: int, floor: int) -> list[LogRecord]:
    raise CompactedError(
        f"shard {shard}: entry {index} has been truncated, {floor} is the first there: restore a "
        "checkpoint",
        floor=floor,
    )


class _Run:
    """Records put together from keys in order."""

    def __init__(self, keys: Keys, shard: int, after: int) -> None:
        self._keys = keys
        self._shard = shard
        self.next = after + 1
        self.is_at_start = True
        self.records: list[LogRecord] = []
        self.size_bytes = 0
        self._head: Head | None = None
        self._parts: list[bytes] = []

    @property
    def is_inside(self) -> bool:
        """Between a head and the last of its fragments."""
        return self._head is not None

    def take(self, kv: pb.KeyValue) -> None:
        """The next key; ``RecordCorruptError`` if the log cannot go on with it."""
        key = self._keys.parse_log(kv.key, self._shard)
        if key.fragment is not None:
            self._fragment(kv.value, key.first, key.term, key.nonce)
            return
        if self._head is not None:
            raise RecordCorruptError(
                f"shard {self._shard}: the record at {self._head.first} lacks a fragment"
            )
        stored = read_stored(kv.value)
        fits = stored.first == self.next or (
            not self.records and stored.first < self.next <= stored.last
        )
        if not fits or (stored.shard, stored.first) != (self._shard, key.first):
            raise RecordCorruptError(
                f"shard {self._shard}: where entry {self.next} should be is a record of shard "
                f"{stored.shard} with entries {stored.first} to {stored.last}"
            )
        self.is_at_start = False
        self.size_bytes += unpacked_bytes(kv.value)
        if isinstance(stored, Head):
            self._head, self._parts = stored, []
        else:
            self._add(stored)

    def _fragment(self, value: bytes, first: int, term: int, nonce: bytes) -> None:
        head = self._head
        if head is None or (first, term, nonce) != (head.first, head.term, head.nonce):
            return  # left behind by a term that was fenced
        self._parts.append(value)
        if len(self._parts) == head.fragments:
            self.size_bytes += max(head.size_bytes, unpacked_bytes(self._parts[0]))
            self._add(join_fragments(head, self._parts))
            self._head = None

    def _add(self, record: LogRecord) -> None:
        self.records.append(record)
        self.next = record.last + 1
