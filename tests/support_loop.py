"""An event loop whose timers run when a test says so, and a store that fails when it is told to."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.port import Op

__all__ = ["FaultyStore", "ManualSpawner", "Timer", "on_loop", "settle"]

HANG_S = 60.0  # nothing here waits for time: whoever is still waiting then, waits for ever


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an ``async def`` test on a loop of its own; a hang is a failure, not a wait."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(HANG_S):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


async def settle(turns: int = 20) -> None:
    """Let everything run that can."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Timer:
    """One ``call_later``."""

    def __init__(self, delay_s: float, fn: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.fn = fn
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True

    def fire(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.fn()


class Seq:
    """A hybrid clock that stands still."""

    def __init__(self, seq: int) -> None:
        self.seq = seq


class ManualSpawner(AsyncioSpawner):
    """asyncio, but timers only fire by ``fire``."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.timers: list[Timer] = []

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        timer = Timer(delay_s, fn)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> list[float]:
        """Delays of the timers that have yet to fire."""
        return sorted(timer.delay_s for timer in self.timers if not timer.is_over)

    def fire(self) -> int:
        """Fire what is armed now; returns how many that were."""
        due = [timer for timer in self.timers if not timer.is_over]
        self.timers.clear()
        for timer in due:
            timer.fire()
        return len(due)


class FaultyStore(MemoryStore):
    """Keeps what was written, syncs when told to, and raises what it was given to raise."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Op]] = []
        self.write_errors: list[Exception] = []
        self.is_held = False  # syncs wait for ``release``
        self.syncs = 0
        self.sync_error: Exception | None = None
        self.ran: list[Callable[[], None]] = []
        self.flushes = 0
        self._held: list[Callable[[BaseException | None], None]] = []

    def write(self, ops: Iterable[Op]) -> None:
        batch = list(ops)
        if self.write_errors:
            raise self.write_errors.pop(0)
        super().write(batch)
        self.batches.append(batch)

    def start_sync(self, done: Callable[[BaseException | None], None]) -> None:
        self.syncs += 1
        if self.is_held:
            self._held.append(done)
        else:
            done(self.sync_error)

    def release(self, error: BaseException | None = None) -> None:
        """End the sync that is in flight."""
        held, self._held = self._held, []
        for done in held:
            done(error)

    def run(self, fn: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.ran.append(fn)
        super().run(fn, done)

    def flush(self, wait: bool = True) -> None:
        self.flushes += 1
