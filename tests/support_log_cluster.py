"""A cluster of real engines in memory over ``MemoryLog``, on one clock that a test moves."""

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

from support_behaviour import StillClock, settle, sound
from support_replication import rows

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.engine.runtime.ids import SeededRng
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.memory.network import Network
from lodeq.replication.options import LogOptions
from lodeq.replication.replicator import LogReplicator
from lodeq.repository.api.open import open_in_memory

__all__ = ["LogCluster", "LogNode"]

STEP_S = 0.05


def _nothing() -> None:
    """Asked of a store's thread, to know when it has come so far."""


class LogNode:
    """One node: its engine and its replication layer."""

    def __init__(self, name: str, engine: lodeq.Engine, replicator: LogReplicator) -> None:
        self.name = name
        self.engine = engine
        self.replicator = replicator

    def leads(self, shard: int = 0) -> bool:
        """Whether it serves the shard, by its own account."""
        return self.role(shard) == "leading"

    def role(self, shard: int = 0) -> str:
        return self.replicator.status().shards[shard].role


class LogCluster:
    """The log, and the nodes that are open."""

    def __init__(self, clock: StillClock, network: Network | None = None, **options: Any) -> None:
        self.clock = clock
        self.network = Network() if network is None else network
        self.log = MemoryLog(current_spawner(), clock, network=self.network, **options)
        self.nodes: dict[str, LogNode] = {}
        self.shards = 1
        self.has_disks = False  # stores are folders, whose threads take real time
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "LogCluster":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.heal()
        closing = asyncio.ensure_future(self._stack.aclose())
        while not closing.done():
            await settle(25)
            if not closing.done():
                await self.clock.advance(STEP_S, turns=5)
        closing.result()

    def heal(self) -> None:
        """Nothing that lasts is wrong any more."""
        self.network.has_quorum = True
        self.network.splits.clear()
        self.network.muted.clear()
        self.network.dropped_watch.clear()
        for name in self.nodes:
            self.network.thaw(name)

    def replicator(self, name: str, **given: Any) -> LogReplicator:
        """The layer of a new node."""
        given.setdefault("options", LogOptions())
        return LogReplicator(
            self.log.client(name),
            node=name,
            url=f"http://{name}",
            shards=self.shards,
            clock=self.clock,
            rng=SeededRng(sum(name.encode()) + len(self.nodes)),
            **given,
        )

    async def open(self, name: str, **given: Any) -> LogNode:
        """A new node with an empty engine."""
        options = given.pop("options", LogOptions())
        connector = given.pop("connector", None)
        replicator = self.replicator(name, options=options, connector=connector)
        handle = open_in_memory(
            clock=self.clock,
            shards=self.shards,
            rng=SeededRng(sum(name.encode()) + 7 * len(self.nodes)),
            replicator=replicator,
            **given,
        )
        opening = asyncio.ensure_future(handle.__aenter__())
        while not opening.done():
            await settle(25)
            if not opening.done():
                await self.clock.advance(STEP_S, turns=5)
        engine = opening.result()
        self._stack.push_async_exit(handle)
        node = self.nodes[name] = LogNode(name, engine, replicator)
        return node

    async def open_all(self, *names: str, **given: Any) -> list[LogNode]:
        """Nodes of these names, once every shard is led."""
        nodes = [await self.open(name, **given) for name in names]
        await self.until_led()
        return nodes

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in steps that a session outlives."""
        for _ in range(round(seconds / STEP_S)):
            await self.step(turns=25)

    async def step(self, turns: int) -> None:
        """Let a step of time pass; none passes while a store's thread has something to do."""
        await self.clock.advance(STEP_S, turns=turns)
        if not self.has_disks:
            return
        loop = asyncio.get_running_loop()
        for node in list(self.nodes.values()):
            for shard in node.engine._state.hosted:
                done = loop.create_future()

                def note(_: object, done: asyncio.Future[None] = done) -> None:
                    loop.call_soon_threadsafe(done.set_result, None)

                with suppress(lodeq.LodeqError):  # it closes
                    shard.store.run(_nothing, note)
                    await done

    async def until(self, holds: Any, within_s: float = 20.0) -> float:
        """Let time pass until it holds; returns after how long."""
        for step in range(round(within_s / STEP_S)):
            await settle(25)
            if holds():
                return step * STEP_S
            await self.step(turns=5)
        states = {name: node.replicator.status() for name, node in self.nodes.items()}
        raise AssertionError(f"it did not happen within {within_s} s: {states}")

    def leader(self, shard: int = 0) -> LogNode | None:
        """The node that serves the shard and has a session; None: there is none."""
        found = [
            node
            for node in self.nodes.values()
            if node.leads(shard) and node.replicator.holds_session(shard)
        ]
        assert len(found) < 2, [node.name for node in found]
        return found[0] if found else None

    async def until_led(self, within_s: float = 20.0) -> float:
        """Until somebody serves each shard."""
        return await self.until(
            lambda: all(self.leader(shard) for shard in range(self.shards)), within_s
        )

    def tails(self) -> list[int]:
        return [state.last for state in self.log.service.states()]

    async def until_equal(self, *nodes: LogNode, within_s: float = 30.0) -> None:
        """Until these nodes (all, if none is given) have applied everything; rows are the same."""
        these = nodes or tuple(self.nodes.values())

        def is_equal() -> bool:
            return all(
                [shard.applied for shard in node.replicator.status().shards] == self.tails()
                for node in these
            )

        await self.until(is_equal, within_s)
        await settle(50)
        for node in these:
            await sound(node.engine)
        first, *others = [rows(node.engine) for node in these]
        for other in others:
            assert other == first

    async def outcome(self, call: Any, within_s: float = 20.0) -> Any:
        """What a call returns or raises, while time passes."""
        task = asyncio.ensure_future(call)
        await self.until(task.done, within_s)
        error = task.exception()
        return task.result() if error is None else error
