"""Appends: one transaction that holds only while the term leads and the tail has not moved.

    if create_revision(leader) = term and mod_revision(tail) = seen: put record, tail, now and
        then hints
    else: get record, get floor

``seen`` changes with every append, and a revision never comes back. So a transaction may be sent
again, to another member, as often as it takes: at most one of its copies takes effect, and when one
does not, what is stored under its key says whether an earlier one did.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from ...engine.records.compression import Compressor
from ...engine.runtime.clock import Clock
from ...errors import LimitError
from ..fragments import CutRecord, cut_record
from ..port import FencedError, LogUnavailableError
from ..record import LogRecord
from . import rpc_pb2 as pb
from .endpoints import Endpoints
from .hints import Hints
from .joint import JointAppends, Part
from .keys import Keys, decode_number
from .rpc import Rpc
from .session import Session
from .txn import created_at, delete, get, modified_at, only, put, txn

__all__ = ["RECORD_BYTES_MAX", "Appender", "Tenure"]

RECORD_BYTES_MAX: Final = 1 << 20  # etcd takes requests of 1.5 MiB by default
_SETTLE_MAX: Final = 8


@dataclass(slots=True)
class Tenure:
    """A term of this node.

    Attributes:
        term: the revision at which its leader key was created.
        last: index of the last entry.
        seen: the revision at which the tail was last written; 0: never.
        is_unsure: an append got no answer: no other until the tail has been settled.
        turn: one append at a time.
    """

    term: int
    last: int
    seen: int
    is_unsure: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Appender:
    """The terms of this node, and appends in them."""

    def __init__(
        self, endpoints: Endpoints, keys: Keys, session: Session, clock: Clock, bytes_max: int
    ) -> None:
        """Begin without a term.

        Args:
            endpoints: the members.
            keys: of the cluster.
            session: of this node.
            clock: shows that this process stood still.
            bytes_max: of one value; a record that is longer when it is packed is cut.
        """
        self._endpoints = endpoints
        self._keys = keys
        self._session = session
        self._clock = clock
        self._bytes_max = bytes_max
        self._packer = Compressor("zstd", level=1)
        self._hints = Hints(endpoints, keys, clock)
        self._joint = JointAppends(self._send, self._hints)
        self._tenures: dict[int, Tenure] = {}
        self.base = 0  # of the genesis: what a shard's tail is before there is one

    def tenure(self, shard: int, term: int) -> Tenure | None:
        """The term, if this node has it and knows where the tail is."""
        found = self._tenures.get(shard)
        return found if found is not None and found.term == term and not found.is_unsure else None

    def drop(self, shard: int, term: int) -> None:
        """Append no more in a term."""
        found = self._tenures.get(shard)
        if found is not None and found.term == term:
            del self._tenures[shard]

    def clear(self) -> None:
        """Append no more in any."""
        self._tenures.clear()

    async def close(self) -> None:
        """Append no more, and write no more hints."""
        self.clear()
        await self._hints.close()

    async def begin(self, shard: int, term: int, tail: pb.KeyValue | None) -> Tenure | None:
        """Settle the tail for a term that was won; None: the term is over.

        What earlier appends left behind it goes, and none of them can take effect any more.

        Args:
            shard: which.
            term: the term.
            tail: its tail's key as the campaign saw it.
        """
        key = self._keys.of_shard("tail", shard)
        leader = self._keys.of_shard("leader", shard)
        for _ in range(_SETTLE_MAX):
            last = self.base
            if tail is not None:
                last = decode_number(tail.value, f"the tail of shard {shard}")
            seen = 0 if tail is None else tail.mod_revision
            behind = self._keys.record(shard, last + 1)
            request = txn(
                [created_at(leader, term), modified_at(key, seen)],
                [put(key, b"%d" % last), delete(behind, self._keys.records_end(shard))],
                [get(leader), get(key)],
            )
            answer = await self._endpoints.call(Rpc.TXN, request, self._session.left_s())
            if answer.succeeded:
                tenure = Tenure(term, last, answer.header.revision)
                self._tenures[shard] = tenure
                return tenure
            holder = only(answer, 0)
            if holder is None or holder.create_revision != term:
                return None
            tail = only(answer, 1)  # moved by an append of ours that was still under way
        raise LogUnavailableError(f"shard {shard}: the tail moves without an append of this node")

    async def append(self, record: LogRecord) -> None:
        """Add a record; see ``SharedLog.append``."""
        shard, term = record.shard, record.term
        tenure = self.tenure(shard, term)
        if tenure is None:
            raise FencedError(f"shard {shard}: this node does not lead in term {term}")
        async with tenure.turn:
            if self.tenure(shard, term) is not tenure or not self._session.until():
                raise FencedError(f"shard {shard}: term {term} of this node is over")
            cut = cut_record(record, self._bytes_max, self._packer)
            if record.first != tenure.last + 1:  # nothing is to be sent: is it there already?
                self._found(await self._send(txn([], self._look(record))), record, cut.stored)
                return
            try:
                await self._add(tenure, record, cut)
            except (FencedError, LimitError):
                self.drop(shard, term)
                raise
            except BaseException:
                tenure.is_unsure = True
                raise

    async def _add(self, tenure: Tenure, record: LogRecord, cut: CutRecord) -> None:
        leader = self._keys.of_shard("leader", record.shard)
        tail = self._keys.of_shard("tail", record.shard)
        fence = [created_at(leader, tenure.term), modified_at(tail, tenure.seen)]
        for number, part in enumerate(cut.fragments):
            key = self._keys.fragment(record, number)
            answer = await self._send(txn(fence, [put(key, part)]))
            if not answer.succeeded:
                raise FencedError(
                    f"shard {record.shard}: another term leads; record {record.first} was not added"
                )
        shard, last = record.shard, record.last
        written = [put(self._keys.record(shard, record.first), cut.stored), put(tail, b"%d" % last)]
        looks = self._look(record)
        answer = await self._joint.send(Part(shard, last, fence, written, looks, len(cut.stored)))
        if answer.succeeded:
            tenure.seen = answer.header.revision
        else:
            tenure.seen = self._found(answer, record, cut.stored)
            self._hints.owe(shard, last)  # that try may have been one without hints
        tenure.last = last

    def _look(self, record: LogRecord) -> list[pb.RequestOp]:
        """Reads that say whether a record was added."""
        floor = self._keys.of_shard("floor", record.shard)
        return [get(self._keys.record(record.shard, record.first)), get(floor)]

    def _found(self, answer: pb.TxnResponse, record: LogRecord, stored: bytes) -> int:
        """The revision at which an earlier try took effect."""
        kept, floor = only(answer, 0), only(answer, 1)
        if kept is not None and kept.value == stored:
            return kept.mod_revision
        if floor is not None and decode_number(floor.value, "a floor") > record.first:
            raise LogUnavailableError(
                f"shard {record.shard}: whether record {record.first} was added cannot be said: "
                "its place has been truncated"
            )
        raise FencedError(
            f"shard {record.shard}: another term leads; record {record.first} was not added"
        )

    async def _send(self, request: pb.TxnRequest) -> pb.TxnResponse:
        left_s, try_s = self._session.left_s(), self._endpoints.try_s
        before = self._clock.mono()
        try:
            answer: pb.TxnResponse = await self._endpoints.call(Rpc.TXN, request, left_s)
        except LogUnavailableError:
            if self._clock.mono() - before < left_s + 2 * try_s:
                raise
            # This process stood still: nobody was asked since. Once more, for a definite answer.
            answer = await self._endpoints.call(Rpc.TXN, request, try_s)
        return answer
