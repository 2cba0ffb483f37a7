"""A store and a loop that do as the test says: refuse, stall, fail, hold a sync, hold a timer.

``FaultStore`` wraps any store. ``HeldTimers`` is the asyncio adapter with its timers in the
test's hand, so that retries and sync intervals happen when the test says so. ``faulty`` opens an
engine over both, in memory.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from support_behaviour import StillClock

import lodeq
from lodeq.engine.records.compression import Compressor
from lodeq.engine.recovery.open_shard import open_memory
from lodeq.engine.recovery.verify import verify
from lodeq.engine.recovery.watermark import WatermarkState
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.engine.store.port import Op, Rows, Store, StoreView
from lodeq.repository.api.open import build

__all__ = ["FaultStore", "HeldTimers", "Rig", "faulty"]

Done = Callable[[BaseException | None], None]


class FaultStore:
    """A store under orders. ``refusals`` are raised by the next writes, one each."""

    reads_beside = False

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.refusals: deque[Exception] = deque()
        self.read_error: Exception | None = None
        self.is_sync_held = False
        self.syncs: list[Done] = []
        self.sync_calls = 0
        self.attempts: list[list[Op]] = []  # every write, refused ones too
        self.applied: list[list[Op]] = []
        self.after_write: Callable[[], None] = lambda: None

    # -- under orders ------------------------------------------------------------------

    def write(self, ops: Iterable[Op]) -> None:
        batch = list(ops)
        self.attempts.append(batch)
        if self.refusals:
            raise self.refusals.popleft()
        self.inner.write(batch)
        self.applied.append(batch)
        self.after_write()

    def start_sync(self, done: Done) -> None:
        self.sync_calls += 1
        if self.is_sync_held:
            self.syncs.append(done)
        else:
            self.inner.start_sync(done)

    def release_sync(self, error: BaseException | None = None) -> None:
        """Let the sync in flight return."""
        self.syncs.pop(0)(error)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.read_error is not None:
            raise self.read_error
        return self.inner.multi_get(keys)

    def get(self, key: bytes) -> bytes | None:
        if self.read_error is not None:
            raise self.read_error
        return self.inner.get(key)

    # -- as they are -------------------------------------------------------------------

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        return self.inner.scan(lower, upper, limit)

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        return self.inner.scan_part(lower, upper, limit)

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        return self.inner.scan_last(lower, upper)

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        return self.inner.scan_back(lower, upper, limit)

    def run(self, fn: Callable[[], None], done: Done) -> None:
        self.inner.run(fn, done)

    def flush(self, wait: bool = True) -> None:
        self.inner.flush()

    def snapshot(self, splits: Sequence[bytes] = ()) -> StoreView:
        return self.inner.snapshot(splits)

    def checkpoint(self, path: str) -> None:
        self.inner.checkpoint(path)

    def property_int(self, name: str) -> int | None:
        return self.inner.property_int(name)

    def close(self) -> None:
        self.inner.close()


class _Held:
    def __init__(self, delay_s: float, fn: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class HeldTimers(AsyncioSpawner):
    """The loop, but no timer of it fires by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.held: list[_Held] = []

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Any:
        if delay_s <= 0:
            return super().call_later(0, fn)
        timer = _Held(delay_s, fn)
        self.held.append(timer)
        return timer

    def fire(self, at_most_s: float = float("inf")) -> int:
        """Run the timers of at most this length that are set now; returns how many."""
        due = [timer for timer in self.held if timer.fn is not None and timer.delay_s <= at_most_s]
        self.held = [t for t in self.held if t.fn is not None and t not in due]
        for timer in due:
            if timer.fn is not None:
                timer.fn()
        return len(due)


class Rig:
    """An engine in memory with everything under it in the test's hand."""

    def __init__(self, **options: Any) -> None:
        self.clock = StillClock()
        self.options = {
            "limits": None,
            "commit_batch_max": 64,
            "submit_queue_max": 1024,
            "reaper": True,
            **options,
        }
        self.shards: int = self.options.pop("shards", 1)
        self.durability = self.options.pop("durability", "nosync")
        self.marks: list[list[int]] = [[] for _ in range(self.shards)]

    async def __aenter__(self) -> "Rig":
        rng = SeededRng(5)
        opened = open_memory(shards=self.shards, durability=self.durability, rng=rng)
        self.stores = []
        for one in opened.shards:
            store = FaultStore(one.store)
            one.store = store
            one.watermark = _Mark(self.marks[one.index], one.index)  # type: ignore[assignment]
            self.stores.append(store)
        self.store = self.stores[0]
        self.timers = HeldTimers(asyncio.get_running_loop())
        self.engine: lodeq.Engine = await build(
            opened,
            clock=self.clock,
            rng=rng,
            compressor=Compressor(None),
            interval_s=1.0,
            spawner=self.timers,
            **self.options,
        )
        self.state = self.engine._state
        self.queue = self.engine.queue("mail")
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self.stores:
            store.refusals.clear()
            store.is_sync_held = False
            while store.syncs:
                store.release_sync()
        self.timers.fire(0.5)
        await self.engine.close()

    def verify_every_commit(self) -> list[Any]:
        """From now on every single commit must leave a consistent store; the findings."""
        findings: list[Any] = []
        for index, store in enumerate(self.stores):

            def check(store: FaultStore = store, index: int = index) -> None:
                findings.extend(verify(store.inner, index, self.shards))

            store.after_write = check
        return findings


class _Mark:
    """A watermark that remembers what it was told."""

    def __init__(self, told: list[int], shard: int) -> None:
        self.told = told
        self.state = WatermarkState(shard, bytes(16), 1, 0, 0, 0)

    def write(self, incarnation: int, commit_seq: int) -> None:
        self.told.append(commit_seq)

    def close(self) -> None:
        pass


def faulty(**options: Any) -> Rig:
    """``async with faulty(shards=2, durability="fsync") as rig``."""
    return Rig(**options)
