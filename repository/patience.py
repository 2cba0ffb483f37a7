"""Waits: for a turn, for what an answer rests on, for a thread, and one that is seen through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from anyio import CancelScope, get_cancelled_exc_class

if TYPE_CHECKING:
    from ..engine.spawner import Spawner
    from .core import Core
    from .state import Shard

__all__ = ["insist", "on_shard_thread", "room", "settled"]


async def room(core: Core, shard: Shard) -> None:
    """Wait for a turn on a shard that is at ``queue_max``: back-pressure. It comes once."""
    await shard.co.room()
    core.check()


async def settled(shard: Shard, *, is_durable: bool = False) -> None:
    """Wait for what an answer rests on: everything queued on its shard so far."""
    future = shard.co.settled(is_durable=is_durable)
    if future is not None:
        await future


async def on_shard_thread(
    spawner: Spawner, shard: Shard, fn: Callable[[], None],
    failed: Callable[[BaseException], BaseException] = lambda error: error,
) -> None:  # fmt: skip
    """Run ``fn`` where the shard syncs.

    Args:
        failed: told of an error, on the loop, whether or not anyone still waits; what it returns is
            raised.
    """
    future = spawner.future()

    def tell(error: BaseException | None) -> None:
        failure = None if error is None else failed(error)
        if future.done():
            return
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    shard.store.run(fn, lambda error: _post(spawner, tell, error))
    await future


def _post(spawner: Spawner, tell: Callable[..., None], error: BaseException | None) -> None:
    """In the thread."""
    spawner.call_soon_threadsafe(tell, error)


async def insist(fn: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Await ``fn`` to its end. A cancellation that came meanwhile is returned: raise it.

    It is held off by the shield (trio, and anyio's scopes on asyncio) or caught
    (``Task.cancel()`` on asyncio, which knows no shield); then ``fn`` is called once more.
    """
    cancelled = None
    with CancelScope(shield=True):
        while True:
            try:
                await fn()
                break
            except get_cancelled_exc_class() as error:
                cancelled = error
    return cancelled
