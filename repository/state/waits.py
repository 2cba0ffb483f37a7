"""Await helpers: backpressure, commit barrier, the shard's thread, shielded await."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...engine.runtime.shielded import await_shielded as await_shielded  # handed on: a wait as well

if TYPE_CHECKING:
    from ...engine.runtime.event_loop import Spawner
    from .queue_state import Shard

__all__ = ["backpressure", "commit_barrier", "on_shard_thread"]


async def backpressure(check: Callable[[], None], shard: Shard) -> None:
    """Backpressure: wait for a turn on a shard that is at ``submit_queue_max``."""
    if not shard.coalescer.has_capacity:
        await shard.coalescer.wait_in_line()
        check()


async def commit_barrier(shard: Shard, *, is_durable: bool = False, is_local: bool = False) -> None:
    """Wait until everything queued on the shard so far is committed: an answer may rest on it.

    Args:
        shard: of what the answer is about.
        is_durable: until it is durable, whatever the mode.
        is_local: the answer is about this store, whoever leads.

    Raises:
        NotLeaderError: another replica may lead a shard that is led from here as far as is known.
    """
    future = shard.coalescer.commit_barrier(is_durable=is_durable, is_local=is_local)
    if future is not None:
        await future


async def on_shard_thread(
    spawner: Spawner,
    shard: Shard,
    fn: Callable[[], None],
    failed: Callable[[BaseException], BaseException] = lambda error: error,
) -> None:
    """Run ``fn`` where the shard syncs.

    Args:
        failed: called with an error, on the loop, whether or not anyone still waits; the error it
            returns is raised.
    """
    future = spawner.future()

    def report(error: BaseException | None) -> None:
        failure = None if error is None else failed(error)
        if future.done():
            return
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    shard.store.run(fn, lambda error: _post(spawner, report, error))
    await future


def _post(spawner: Spawner, report: Callable[..., None], error: BaseException | None) -> None:
    """In the thread."""
    spawner.call_soon_threadsafe(report, error)
