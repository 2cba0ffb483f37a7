"""The end of a commit loop: what is queued is written and synced, within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ClosedError, LodeqError
from .shard_status import CLOSED, fail_waiters

if TYPE_CHECKING:
    from .commit_loop import Coalescer
    from .sync import Syncer

__all__ = ["abandon", "drain"]


async def drain(co: Coalescer, syncer: Syncer) -> None:
    """Commit and sync what is queued. The engine has stopped its intake by now."""
    co.room_line.admit_all()  # they look again, and find the engine closed
    while co.takes_writes:
        try:
            while (settled := co.settled()) is not None:
                await settled
        except LodeqError:
            pass  # failed or abandoned: those who waited have their errors
        await syncer.finish()
        if not co.pending():
            break
    if co.takes_writes:
        co.enter(CLOSED, ClosedError("the engine is closed"))


def abandon(co: Coalescer) -> None:
    """The store still refuses writes at close: say so to those who wait. Nothing applied."""
    if co._retry is not None:
        co._retry.cancel()
        co._retry = None
    text = f"closed while the store refused writes: {co.refused_write}"
    fail_waiters(co._pending, ClosedError, text)
    co._pending.clear()
    co._open = None
    co._note_accepted()  # a last sync is tried, whatever becomes of it
    co.waiting = 0
