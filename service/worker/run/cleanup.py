"""The scope of a run that can be stopped: one cancellation, a time for cleanup, then the hard end.

anyio cancels by level: whatever waits in a cancelled scope is cancelled, also each wait in a
``finally`` and an ``__aexit__``. So a rollback would never be made. ``asyncio.timeout`` and
``Task.cancel`` cancel once. This scope does the same on asyncio: as soon as the cancellation has
arrived it shields the function from more of it, and takes the shield away when the time for cleanup
is over. On trio, which has no other way of cancelling than by level, it does nothing of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from ....engine.runtime.clock import TimerHandle

__all__ = ["RunScope"]

TURNS: Final = 8  # of the loop, in which a cancellation nearly always can be made
LOOK_S: Final = 0.05  # then so often: what a function has shielded goes on until its end


class RunScope:
    """``with RunScope(…) as scope:``; leaving it swallows the cancellation that it has made.

    Args:
        later: call something after so many seconds.
        soon: call something in the next turn of the loop.
        cleanup_s: seconds that the cleanup may take; 0: every wait is cancelled at once.
        on_cut: called when that time is over, before the hard end.
        is_shielded: only ``cancel`` reaches it; scopes around it do not.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], TimerHandle],
        soon: Callable[[Callable[[], None]], object],
        *,
        cleanup_s: float,
        on_cut: Callable[[], None],
        is_shielded: bool,
    ) -> None:
        self._later = later
        self._soon = soon
        self._cleanup_s = cleanup_s
        self._on_cut = on_cut
        self._outer = anyio.CancelScope(shield=is_shielded)
        self._inner = anyio.CancelScope()
        self._stack = ExitStack()
        self._task: asyncio.Task[object] | None = None  # on asyncio
        self._before = 0  # cancellations of the task that are not ours
        self._timer: TimerHandle | None = None
        self._is_cut = False
        self._is_over = False

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._outer.cancel_called

    def __enter__(self) -> Self:
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            self._task = asyncio.current_task()
        self._stack.enter_context(self._outer)
        self._stack.enter_context(self._inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._is_over = True
        self._clear()
        return bool(self._stack.__exit__(kind, error, traceback))

    def cancel(self) -> None:
        """Cancel what runs in it. Called again, the cleanup is cut off. Later it does nothing."""
        if self._is_over:
            return
        if self._outer.cancel_called:
            self._cut()
            return
        if self._task is not None:
            self._before = self._task.cancelling()
        self._outer.cancel()
        if self._task is not None and self._cleanup_s > 0:
            self._look(TURNS)

    def _look(self, turns: int) -> None:
        if self._is_over or self._is_cut or self._task is None:
            return
        self._inner.shield = False  # one that is due arrives now, if the function can take it …
        has_arrived = self._task.cancelling() > self._before
        self._inner.shield = True  # … and no second one
        if has_arrived:
            self._timer = self._later(self._cleanup_s, self._cut)
        elif turns:
            self._soon(partial(self._look, turns - 1))
        else:
            self._timer = self._later(LOOK_S, partial(self._look, 0))

    def _cut(self) -> None:
        if self._is_over or self._is_cut:
            return
        self._is_cut = True
        self._clear()
        if self._inner.shield:
            self._on_cut()
            self._inner.shield = False

    def _clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
