"""Calls to several nodes at once, and pauses: what the blocking client does in another way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from anyio import CancelScope, create_task_group, move_on_after, sleep

from ...errors import LodeqError
from ..calls import Call

__all__ = ["Ask", "Send", "Take", "at_last", "closed", "first_true", "gather", "pause"]

T = TypeVar("T")
Ask = Callable[[], Awaitable[T]]
Send = Callable[[Call], Awaitable[Any]]  # sends a call, and returns the document of its answer
# Claims at a node, by its identity: how many tasks, and for how many seconds it may wait.
Take = Callable[[str, int, float], Awaitable[list[Any]]]


async def gather(asks: Sequence[Ask[T]]) -> list[T | LodeqError]:
    """Ask all; returns each one's answer or error, in order."""
    found: list[T | LodeqError] = [LodeqError("not asked")] * len(asks)

    async def one(n: int, ask: Ask[T]) -> None:
        try:
            found[n] = await ask()
        except LodeqError as error:
            found[n] = error

    if len(asks) == 1:
        await one(0, asks[0])
        return found
    async with create_task_group() as group:
        for n, ask in enumerate(asks):
            group.start_soon(one, n, ask)
    return found


async def first_true(
    asks: Sequence[Ask[bool]], stop: Callable[[int], Awaitable[object]]
) -> int | None:
    """The number of the first that returns True, the others are given up then; None: none does.

    Args:
        asks: one at least. What fails counts as False.
        stop: ends the one of that number, where it cannot be cancelled.
    """
    first: int | None = None
    async with create_task_group() as group:

        async def one(n: int) -> None:
            nonlocal first
            try:
                answer = await asks[n]()
            except LodeqError:
                return
            if answer and first is None:
                first = n
                group.cancel_scope.cancel()

        for n in range(len(asks)):
            group.start_soon(one, n)
    return first


async def pause(seconds: float) -> None:
    """Let so much time pass."""
    await sleep(seconds)


async def at_last(ask: Ask[object], seconds: float) -> None:
    """Do it although the caller is cancelled; a failure is passed over. Not longer than that."""
    with move_on_after(seconds, shield=True):
        try:
            await ask()
        except LodeqError:
            pass


async def closed(closes: Sequence[Ask[object]]) -> None:
    """Close all, also while the caller is cancelled."""
    with CancelScope(shield=True):
        for close in closes:
            await close()
