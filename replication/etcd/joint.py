"""Appends of several shards in one transaction: those that come in one turn of the loop.

Who waits for a record is answered with all others that wait for it, and comes back with them. So
records of the shards that a node leads tend to come together, and a transaction costs etcd, its
disks and this node about as much with six of them as with one.

It holds only where all of its parts do. When it does not hold, one of them is of a term that is
over, or an earlier try of all of them took effect: then each is sent by itself, and is told what
became of it. That is safe, for a part may be sent as often as it takes (see ``appends``); and a
copy of the whole that is still under way cannot hold once one of its parts has taken effect.

A turn of the loop is what a lone append would wait for others in vain. So once several turns have
had one append each, the first of a turn goes at once, in the call that has it; the first turn with
two ends that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from . import rpc_pb2 as pb
from .hints import Hints
from .txn import txn

__all__ = ["ALONE_MIN", "JOINT_BYTES_MAX", "PARTS_MAX", "JointAppends", "Part"]

PARTS_MAX: Final = 16  # with two comparisons and two keys each: etcd takes 128 by default
JOINT_BYTES_MAX: Final = 512 << 10  # of records in one transaction; a larger one goes alone
ALONE_MIN: Final = 8  # turns in a row with one append each: then nobody is waited for


class Part(NamedTuple):
    """The append of one shard.

    Attributes:
        shard: its index.
        last: the last entry that it adds.
        fence: what has to hold.
        written: what is written if it does.
        look: what is read if it does not.
        size: bytes of the record.
    """

    shard: int
    last: int
    fence: Sequence[pb.Compare]
    written: Sequence[pb.RequestOp]
    look: Sequence[pb.RequestOp]
    size: int


class JointAppends:
    """Sends appends, together where they come together. One for each connection.

    Args:
        send: sends a transaction, to one member after another.
        hints: of this node; they go with the appends.
    """

    def __init__(
        self, send: Callable[[pb.TxnRequest], Awaitable[pb.TxnResponse]], hints: Hints
    ) -> None:
        self._send = send
        self._hints = hints
        self._waiting: list[tuple[Part, asyncio.Future[pb.TxnResponse]]] = []
        self._alone = 0  # turns of late with one append each
        self._came = 0  # appends of this turn
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, part: Part) -> pb.TxnResponse:
        """Send a part; returns the answer to it, or to the whole if that has held.

        Raises what ``send`` raises, which then holds for all parts of a whole.
        """
        loop = asyncio.get_running_loop()
        if not self._came:
            loop.call_soon(self._turn_over)
        self._came += 1
        if self._came == 1 and self._alone >= ALONE_MIN:
            return await self._write_alone(part)
        answer: asyncio.Future[pb.TxnResponse] = loop.create_future()
        self._waiting.append((part, answer))
        return await answer

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _turn_over(self) -> None:
        self._alone = self._alone + 1 if self._came == 1 else 0
        self._came = 0
        waiting, self._waiting = self._waiting, []
        waiting = [one for one in waiting if not one[1].done()]  # of whom nobody has gone
        while waiting:
            n, size = 1, waiting[0][0].size
            while n < min(PARTS_MAX, len(waiting)):
                size += waiting[n][0].size
                if size > JOINT_BYTES_MAX:
                    break
                n += 1
            whole, waiting = waiting[:n], waiting[n:]
            self._spawn(self._send_alone(*whole[0]) if n == 1 else self._send_whole(whole))

    async def _send_whole(
        self, whole: Sequence[tuple[Part, asyncio.Future[pb.TxnResponse]]]
    ) -> None:
        parts = [part for part, _ in whole]
        try:
            answer = await self._write(
                {part.shard: part.last for part in parts},
                [one for part in parts for one in part.fence],
                [one for part in parts for one in part.written],
            )
        except BaseException as error:
            for _, waiter in whole:
                _fail(waiter, error)
            if not isinstance(error, Exception):
                raise
            return
        if not answer.succeeded:
            for part, waiter in whole:
                self._spawn(self._send_alone(part, waiter))
            return
        for _, waiter in whole:
            if not waiter.done():
                waiter.set_result(answer)

    async def _send_alone(self, part: Part, waiter: asyncio.Future[pb.TxnResponse]) -> None:
        try:
            answer = await self._write_alone(part)
        except BaseException as error:
            _fail(waiter, error)
            if not isinstance(error, Exception):
                raise
        else:
            if not waiter.done():
                waiter.set_result(answer)

    async def _write_alone(self, part: Part) -> pb.TxnResponse:
        return await self._write({part.shard: part.last}, part.fence, part.written, part.look)

    async def _write(
        self,
        added: dict[int, int],
        fence: Sequence[pb.Compare],
        written: Sequence[pb.RequestOp],
        look: Sequence[pb.RequestOp] = (),
    ) -> pb.TxnResponse:
        """Send a transaction, and with it hints where they are due."""
        hints = self._hints.take(added)
        is_added = False
        try:
            answer = await self._send(txn(fence, [*written, *self._hints.puts(hints)], look))
            is_added = answer.succeeded
        finally:
            self._hints.sent(added, hints, is_added=is_added)
        return answer


def _fail(waiter: asyncio.Future[pb.TxnResponse], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        waiter.cancel()
    elif not waiter.done():
        waiter.set_exception(error)
