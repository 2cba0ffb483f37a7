"""A node of a simulated cluster: its disk, its journal, and the process that has them open."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from sim.bodies import BodyDisk, SimBodyFiles
from sim.replica_journal import NodeJournal
from sim.rules import RuleBrokenError

import lodeq
from lodeq.engine.records.compression import Compressor
from lodeq.engine.records.keyspace import APPLIED, BODY_FILES
from lodeq.engine.records.rows import decode_applied, decode_files
from lodeq.engine.runtime.ids import SeededRng, seeded
from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.replication.memory.log import MemoryLogClient
from lodeq.replication.replicator import LogReplicator
from lodeq.replication.waiting import Waiting
from lodeq.repository.api.open import build
from lodeq.repository.background.replica_bodies import use_bodies
from lodeq.repository.model.values import Limits
from lodeq.repository.state.bodies import Bodies
from lodeq.testing.simulation.disk import SimDisk
from lodeq.testing.simulation.processes import GoneError, SimProcess
from lodeq.testing.simulation.world import SimClock

if TYPE_CHECKING:
    from sim.replicas import ClusterWorld


class SimNode:
    """One node of the cluster: a disk, and the process that has it open, if one does."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimClock(world.time)
        self.disk = SimDisk(world.shards, seeded(f"{world.seed} disk {name}"))
        self.bodies = [BodyDisk() for _ in range(world.shards)]
        self.body_bytes_min = world.body_bytes_min[name]
        self.journal = NodeJournal(world.body_draw)
        self.process: SimProcess | None = None
        self.engine: lodeq.Engine | None = None
        self.replicator: LogReplicator | None = None
        self.log: MemoryLogClient | None = None
        self.starts = 0

    @property
    def is_open(self) -> bool:
        return self.engine is not None and self.process is not None and not self.process.is_dead

    def has_session(self) -> bool:
        """Whether it is a member of the cluster."""
        return self.is_open and self.process.look(self.replicator.status).session_s > 0

    def is_behind(self) -> bool:
        """Whether the log no longer reaches it, so that an operator starts it again."""
        if not self.is_open:
            return False
        shards = self.process.look(self.replicator.status).shards
        return any(one.behind_floor for one in shards)

    async def start(self) -> None:
        """A new process on the disk."""
        world = self.world
        self.starts += 1
        process = self.process = SimProcess(world.loop, f"{self.name}{self.starts}")
        self.engine = self.replicator = None

        async def begin() -> tuple[lodeq.Engine, LogReplicator]:
            spawner = AsyncioSpawner(process)
            rng = SeededRng(world.draw.getrandbits(60))
            self._restore_if_behind()
            try:
                opened = self._open(process, rng)
            except lodeq.RecoveryRefusedError:  # a replica is not repaired
                self._wipe()
                opened = self._open(process, rng)
            log = self.log = world.log.client(
                self.name, waiting=Waiting(spawner, self.clock), request_s=world.request_s
            )
            replicator = LogReplicator(
                log,
                node=self.name,
                url=f"http://{self.name}",
                shards=world.shards,
                clock=self.clock,
                rng=rng,
                options=world.options,
            )
            await replicator.prepare(None)
            engine = await build(
                opened,
                clock=self.clock,
                rng=rng,
                limits=Limits(history_s=0),
                compressor=Compressor(None),
                interval_s=world.interval_s,
                commit_batch_max=world.batch_max,
                submit_queue_max=1024,
                reaper=True,
                spawner=spawner,
                replicator=replicator,
                open_files=self._open_bodies if world.has_bodies else None,
                sink=partial(self.journal.open, process=process) if world.has_journals else None,
            )
            engine._runtime.body_gc.quiet_s = 0.5
            return engine, replicator

        try:
            self.engine, self.replicator = await process.ask(begin)
        except (lodeq.LodeqError, GoneError):
            process.die()  # tried again later

    def _open(self, process: SimProcess, rng: SeededRng) -> Any:
        return self.disk.open(
            process,
            durability=self.world.durability,
            rng=rng,
            now_ms=self.clock.wall_us() // 1000,
            is_replica=True,
        )

    def _open_bodies(self, state: Any, shard: Any) -> None:
        files: Any = SimBodyFiles(self.bodies[shard.index], shard.store, file_bytes=3000)
        raw = shard.store.get(BODY_FILES)
        bodies = Bodies(files, 0 if raw is None else decode_files(raw))
        use_bodies(state, shard, bodies, self.body_bytes_min)

    def _wipe(self) -> None:
        self.bodies = [BodyDisk() for _ in range(self.world.shards)]
        self.journal.is_whole = False
        self.disk = SimDisk(
            self.world.shards, seeded(f"{self.world.seed} {self.name} {self.starts}")
        )
        self._restore_if_behind()

    def _restore_if_behind(self) -> None:
        """Take the newest checkpoint where the log has no more what follows, as ``bootstrap``."""
        world = self.world
        floors = [state.floor for state in world.log.service.states()] or [1] * world.shards
        applied = [_applied(platter) for platter in self.disk.platters]
        if all(have + 1 >= floor for have, floor in zip(applied, floors, strict=True)):
            return
        for positions, platters, bodies in reversed(world.checkpoints):
            if all(have + 1 >= floor for have, floor in zip(positions, floors, strict=True)):
                self.disk.platters = copy.deepcopy(platters)
                self.bodies = [one.copy() for one in bodies]
                self.journal.is_whole = False
                return
        raise RuleBrokenError(f"no checkpoint reaches the floors {floors}")

    def stop(self, *, has_power: bool) -> None:
        """End the process, by a kill or with the power."""
        if self.process is not None:
            self.process.die()
        self.journal.crash(has_power=has_power)
        self.engine = self.replicator = None
        if has_power:
            self.disk.kill()
            for one in self.bodies:
                one.harden()  # as the next open does
        else:
            self.disk.cut_power()
            for one in self.bodies:
                one.cut_power(self.world.body_draw)

    def checkpoint(self) -> tuple[tuple[int, ...], Any, list[BodyDisk]]:
        """A copy of everything written, as of one moment."""
        platters = copy.deepcopy(self.disk.platters)
        for platter in platters:
            platter.harden(len(platter.loose))
        bodies = [one.copy() for one in self.bodies]
        return tuple(_applied(platter) for platter in platters), platters, bodies


def _applied(platter: Any) -> int:
    raw = dict(platter.rows).get(APPLIED)
    for batch in platter.loose:
        raw = dict(batch).get(APPLIED, raw)
    return 0 if raw is None else decode_applied(raw).index
