"""An event loop in a thread of its own, around one thing that is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from threading import Thread
from typing import Generic, TypeVar

__all__ = ["LoopThread"]

T = TypeVar("T")


class LoopThread(Generic[T]):
    """A daemon thread and the event loop in it: it does not hold up a script that dies."""

    def __init__(self, opening: AbstractAsyncContextManager[T], name: str = "lodeq-loop") -> None:
        self._opening = opening
        self.opened: Future[tuple[T, Callable[[], object]]] = Future()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def stop() -> None:
            try:
                loop.call_soon_threadsafe(over.set)
            except RuntimeError:
                pass  # it has stopped

        async with self._opening as opened:
            self.opened.set_result((opened, stop))
            await over.wait()

    def wait(self) -> tuple[T, Callable[[], object]]:
        """Wait until it is open: it, and what ends the loop. Interrupted, it is closed once open.

        Raises what the opening raises.
        """
        try:
            return self.opened.result()
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Nobody waits for it any more: close it as soon as it is open."""

        def stop(opened: Future[tuple[T, Callable[[], object]]]) -> None:
            if opened.exception() is None:
                opened.result()[1]()

        self.opened.add_done_callback(stop)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()
