"""One seed, one world: what goes wrong in it, who works in it, and the judge of its history.

A world is a few lives of a process on one disk, each ended by a kill, a power cut or a close, and
a last one without faults that drains what is left. How big, how broken and how it is configured
is drawn from the seed; see ``Profile``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from sim.actors import TENANT_QUEUES, Actors
from sim.journal import SimJournal
from sim.keys import SimKeys
from sim.knobs import turned
from sim.slices import Slices

import lodeq
from lodeq.testing import BrokenError, History, Recorder
from lodeq.testing.simulation.world import Simulation

DRAIN_S = 4 * 3600.0  # leases of 900 s that died with their process, clocks stepped back, …
HOUR_S, DAY_S = 3600.0, 86_400.0
HISTORY_S = (3, 60, 7200)  # shorter and longer than retentions


@dataclass(slots=True)
class Profile:
    """What one seed is about."""

    shards: int
    durability: str
    order: str
    lives: int
    has_faults: bool
    has_power: bool
    has_steps: bool
    has_ttl: bool
    has_purge: bool
    knobs: float
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, draw: random.Random) -> Profile:
        """Drawn. A third of the worlds have no fault but death: there everything is judged."""
        return cls(
            shards=draw.choice((1, 1, 2, 4)),
            durability=draw.choice(("nosync", "fsync")),
            order=draw.choice(("random", "random", "fifo")),
            lives=draw.choice((1, 2, 2, 3)),
            has_faults=draw.random() < 0.4,
            has_power=draw.random() < 0.6,
            has_steps=draw.random() < 0.2,
            has_ttl=draw.random() < 0.4,
            has_purge=draw.random() < 0.2,
            knobs=draw.choice((0.0, 0.2, 0.6)),
            options={
                "commit_batch_max": draw.choice((1, 2, 8, 64)),
                "submit_queue_max": draw.choice((2, 8, 1024)),
                "interval_s": draw.choice((0.05, 0.3, 1.0)),
            },
        )


class World:
    """Runs one seed. ``records`` is the history, ``digest`` tells two runs apart."""

    def __init__(
        self,
        seed: int,
        *,
        has_limits: bool = False,
        has_history: bool = False,
        has_keys: bool = False,
    ) -> None:
        self.seed = seed
        self.keys = SimKeys(seed) if has_keys else None  # with draws of its own, as all of these
        # Of its own, as well.
        self.kept = random.Random(f"{seed} history") if has_history else None
        self.history_s = self.kept.choice(HISTORY_S) if self.kept is not None else 0
        # Of its own: a world without limits draws what it always drew.
        self.limits = random.Random(f"{seed} limits") if has_limits else None
        self.slices = Slices(seed)  # likewise
        self.draw = random.Random(f"{seed} world")
        self.profile = Profile.of(self.draw)
        self.records: list[list] = []
        profile = self.profile
        self.history = History(
            profile.shards,
            durability=profile.durability,
            tracks_power=profile.has_power,
            history_s=self.history_s,
        )
        self.sim = Simulation(
            seed,
            shards=profile.shards,
            durability=profile.durability,
            order=profile.order,
            emit=self.tell,
        )
        # Of its own: what else is drawn stays what it was.
        draw = random.Random(f"{seed} journal")
        self.journal = SimJournal(self.sim, draw) if draw.random() < 0.5 else None
        self.options = dict(profile.options)
        if self.journal is not None:
            self.options["sink"] = self.journal.open
        if self.history_s:
            self.options["limits"] = lodeq.Limits(history_s=self.history_s)
        self.knobs: set[str] = set()
        self.latest_us = 0  # the latest wall time that was ever shown

    def tell(self, record: list) -> None:
        """A record of the living; what a dead process would still have said is not heard."""
        self.records.append(record)
        self.history.take(record)

    @property
    def digest(self) -> str:
        """Of all that was asked and answered."""
        told = json.dumps(self.records).encode()
        return hashlib.sha256(told).hexdigest()[:16]

    # -- a life ----------------------------------------------------------------------------

    def set_faults(self, *, is_on: bool) -> None:
        faults, draw = self.sim.disk.faults, self.draw
        if self.journal is not None:
            self.journal.has_faults = is_on
        faults.slow_write = faults.slow_sync = faults.stall = faults.full = 0.0
        faults.write_error = faults.sync_error = faults.read_error = 0.0
        faults.sync_s = draw.choice((0.0, 0.005, 0.05))
        if not is_on:
            return
        for name, likely, rate in (
            ("slow_write", 0.3, 0.02),
            ("slow_sync", 0.4, 0.2),
            ("stall", 0.3, 0.01),
            ("full", 0.3, 0.01),
            ("write_error", 0.2, 0.005),
            ("sync_error", 0.2, 0.02),
            ("read_error", 0.2, 0.002),
        ):
            if draw.random() < likely:
                setattr(faults, name, rate)

    def disturb(self, step: int) -> None:
        """Before every step: now and then the process stands still, or its clock is stepped."""
        if self.keys is not None:
            self.keys.check()
        draw = self.draw
        if draw.random() < 0.0005:
            self.sim.loop.pause(draw.choice((0.05, 0.5, 5.0)))
        if self.profile.has_steps and draw.random() < 0.0005:
            self.latest_us = max(self.latest_us, self.sim.clock.wall_us())
            self.sim.step_wall(draw.choice((-DAY_S, -HOUR_S, -1.0, 1.0, HOUR_S)))

    def start(self, engine: lodeq.Engine, *, has_faults: bool) -> Actors:
        loop, profile = self.sim.loop, self.profile

        def tell(record: list) -> None:
            if loop.is_dead:
                return
            if record[:3:2] == ["i", "enqueue_many"] and "CHUNK_TASKS_MAX" in self.knobs:
                record[3]["split"] = True  # so few would be one batch in production
            self.tell(record)

        recorder = Recorder(
            engine, tell, first_op=self.history.next_op, first_number=self.history.next_number
        )
        return Actors(
            engine,
            recorder,
            self.draw,
            has_faults=has_faults,
            has_ttl=profile.has_ttl,
            has_purge=profile.has_purge,
            keys=self.keys,
        )

    def live(self) -> None:
        draw, profile, disk = self.draw, self.profile, self.sim.disk
        has_faults = profile.has_faults and draw.random() < 0.7
        self.set_faults(is_on=False)

        async def life(engine: lodeq.Engine) -> None:
            actors = self.start(engine, has_faults=has_faults)
            await actors.rec.look()
            if self.limits is not None and self.limits.random() < 0.7:
                await actors.limit(self.limits)
            if self.keys is not None:
                await self.keys.begin(engine)
                if (settings := self.keys.opening()) is not None:
                    await actors.limit_keys(settings)
            if self.kept is not None and self.kept.random() < 0.4:
                await actors.fail_often(self.kept)
            self.set_faults(is_on=has_faults)
            await actors.run(for_s=draw.choice((0.5, 2.0, 5.0)))

        crash = "power" if profile.has_power and draw.random() < 0.6 else "kill"
        disk.die_at_write = disk.writes + draw.randrange(1, 12) if draw.random() < 0.15 else -1
        dies = None if draw.random() < 0.2 else int(10 ** draw.uniform(1.5, 3.6))
        self.sim.live(life, die_at_step=dies, crash=crash, on_step=self.disturb, **self.options)
        self.life_is_over()
        if self.journal is not None:
            self.journal.crash(is_power=crash == "power")

    def life_is_over(self) -> None:
        if self.keys is not None:
            self.keys.over(self.sim.disk)

    def drain(self) -> None:
        self.set_faults(is_on=False)
        self.sim.disk.die_at_write = -1
        # What falls due by the wall clock waits until that has caught up with itself.
        behind_us = self.latest_us - self.sim.clock.wall_us()
        if behind_us > 0:
            self.sim.step_wall(behind_us / 1e6)

        async def last(engine: lodeq.Engine) -> None:
            actors = self.start(engine, has_faults=False)
            await actors.rec.look()
            if self.limits is not None:
                for name in dict(TENANT_QUEUES):
                    await actors.rec.configure(name)
            if self.keys is not None:
                await self.keys.begin(engine)
                if (settings := self.keys.opening()) is not None:
                    await actors.limit_keys(settings)
                await actors.run(for_s=1.0)
            await actors.drain(DRAIN_S)
            if self.kept is not None:
                for _ in range(2):  # the sweep has seen what is over by now, and nothing else
                    await asyncio.sleep(self.kept.choice((70.0, 200.0, 2500.0, 4000.0)))
                    await actors.rec.look()

        on_step = None if self.keys is None else lambda _: self.keys.check()
        self.sim.live(last, on_step=on_step, **self.options)
        self.life_is_over()
        if self.journal is not None:
            self.journal.crash(is_power=False)
            self.journal.judge(is_whole=not self.profile.has_power)

    def run(self) -> None:
        """All of it. Raises what is wrong."""
        hears = nullcontext() if self.journal is None else self.journal.overhear()
        keys = nullcontext() if self.keys is None else self.keys.turned()
        slices = self.slices.turned()
        with hears, slices, keys, turned(self.draw, self.profile.knobs) as self.knobs:
            for _ in range(self.profile.lives):
                self.live()
            self.drain()
        if self.sim.complaints:
            raise BrokenError(f"the loop was told: {self.sim.complaints[:5]}")
