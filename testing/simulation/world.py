"""A simulation: one disk on which engines open, work and die, all drawn from one seed.

The production coalescer, repository and reaper run unchanged; the loop, the clock, the randomness
and the store under them are simulated::

    world = Simulation(seed=7, shards=4, durability="fsync")
    world.disk.faults.slow_sync = 0.1

    async def life(engine):
        jobs = engine.queue("jobs")
        await jobs.enqueue(b"work")
        ...

    world.live(life, die_at_step=900, crash="power")  # True if it ended by itself before
    world.live(drain)

``disk.py`` describes what a crash may leave, ``loop.py`` how the next callback is chosen. The same
seed gives the same run: no clock, thread, hash order or address has an influence.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal

from ...engine.records.compression import Compressor
from ...engine.runtime.clock import TimerHandle, Timers
from ...engine.runtime.ids import SeededRng, seeded
from ...engine.runtime.on_asyncio import AsyncioSpawner
from ...repository.api.engine import Engine
from ...repository.api.open import build
from ...repository.model.values import Limits
from .disk import SimDisk
from .loop import SimLoop, SimTime

__all__ = ["SimClock", "Simulation"]

START_US = 1_893_456_000_000_000  # 2030-01-01 UTC
Emit = Callable[[list[object]], None]


class SimClock:
    """The clock of one simulated process: wall time may step, monotonic time starts anew."""

    def __init__(self, time: SimTime) -> None:
        self._time = time
        self._wall_us = START_US - int(time.now_s * 1e6)
        self.mono_offset_s = 0.0

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self._wall_us + int(self._time.now_s * 1e6)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone."""
        self._wall_us += int(seconds * 1e6)

    def mono(self) -> float:
        """Seconds that never step."""
        return self._time.now_s + self.mono_offset_s

    def call_at(self, timers: Timers, when_mono: float, fn: Callable[[], None]) -> TimerHandle:
        """Call ``fn`` at ``when_mono``, by a timer of the loop."""
        return timers.call_later(max(0.0, when_mono - self.mono()), fn)


class Simulation:
    """A disk, a clock and a seed, for any number of processes; see the module's docstring.

    Args:
        seed: determines the whole run.
        shards: 1 to 4,096.
        durability: ``nosync`` or ``fsync``.
        order: how loops choose the next callback; see ``SimLoop``.
        emit: called with syncs, kills, power cuts and clock steps, as records of a ``History``.
    """

    def __init__(
        self,
        seed: int,
        *,
        shards: int = 1,
        durability: Literal["nosync", "fsync"] = "nosync",
        order: Literal["random", "fifo"] = "random",
        emit: Emit | None = None,
    ) -> None:
        self.seed = seed
        self.random = seeded(f"{seed} choices")
        self.time = SimTime()
        self.clock = SimClock(self.time)
        self.emit = emit if emit is not None else lambda _: None
        self.disk = SimDisk(shards, seeded(f"{seed} disk"), emit=self.emit)
        self.durability = durability
        self.order = order
        self.lives = 0
        self.steps = 0
        self.complaints: list[str] = []
        self.recoveries: list[str] = []
        self.loop: SimLoop

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock now."""
        self.emit(["wall", self.clock.wall_us()])  # tasks due by now were due
        self.clock.step_wall(seconds)
        self.emit(["wall", self.clock.wall_us()])

    def live(
        self,
        main: Callable[[Engine], Coroutine[Any, Any, object]],
        *,
        die_at_step: int | None = None,
        crash: Literal["kill", "power"] = "kill",
        on_step: Callable[[int], None] | None = None,
        **options: Any,
    ) -> bool:
        """Open the store in a new process, run ``main`` with the engine, close it.

        Args:
            main: called with the engine.
            die_at_step: the loop step at which the process dies; None lets it live.
            crash: ``power`` also cuts the power, when the process dies or has ended.
            on_step: called before every step with its number.
            options: ``interval_s``, ``commit_batch_max``, ``submit_queue_max``, ``limits``,
                ``reaper``, as ``lodeq.open`` takes them; ``sink`` opens a lifecycle journal.

        Returns: whether it ended by itself. Errors of ``main`` are raised.
        """
        self.lives += 1
        loop = self.loop = SimLoop(  # type: ignore[abstract]
            self.time, seeded(f"{self.seed} loop {self.lives}"), order=self.order
        )
        self.clock.mono_offset_s = float(self.random.randrange(1000))

        def step() -> None:
            if on_step is not None:
                on_step(loop.steps)
            if loop.steps == die_at_step:
                loop.die()

        loop.on_step = step
        try:
            loop.run(self._process(loop, main, options))
        finally:
            self.steps += loop.steps
            self.complaints += loop.complaints
            is_dead = loop.is_dead
            loop.close()
            if crash == "power":
                self.disk.cut_power()
            else:
                self.disk.kill()
        self.emit([crash])
        return not is_dead

    async def _process(
        self,
        loop: SimLoop,
        main: Callable[[Engine], Coroutine[Any, Any, object]],
        options: dict[str, Any],
    ) -> None:
        rng = SeededRng(self.random.getrandbits(64))
        opened = self.disk.open(
            loop,
            durability=self.durability,
            rng=rng,
            now_ms=self.clock.wall_us() // 1000,
            has_journal="sink" in options,
        )
        self.recoveries += opened.recoveries
        options = {
            "interval_s": 1.0,
            "commit_batch_max": 64,
            "submit_queue_max": 1024,
            "limits": Limits(history_s=0),  # what is found at a seed does not change with it
            "reaper": True,
            **options,
        }
        engine = await build(
            opened,
            clock=self.clock,
            rng=rng,
            compressor=Compressor(None),
            spawner=AsyncioSpawner(loop),
            **options,
        )
        try:
            await main(engine)
        finally:
            if not loop.is_dead:
                await engine.close()
