"""The two waits of every operation: for a turn, and for what an answer rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import Core
    from .state import Shard

__all__ = ["room", "settled"]


async def room(core: Core, shard: Shard) -> None:
    """Wait for a turn on a shard that is at ``queue_max``: back-pressure."""
    co = shard.co
    while not co.has_room:
        await co.room()
        core.check()
        if co.waiting < co.queue_max:
            return


async def settled(shard: Shard, *, is_durable: bool = False) -> None:
    """Wait for what an answer rests on: everything queued on its shard so far."""
    future = shard.co.settled(is_durable=is_durable)
    if future is not None:
        await future
