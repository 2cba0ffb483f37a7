"""Simulated clusters: three nodes over the log in memory; each may die, freeze or be cut off.

All processes share one seeded loop, so the seed also picks whose callback runs next. Clients ask a
node as over a socket: where it dies first, nobody knows what became of the call. The judge keeps
what was acknowledged, and holds it against the rules of ``Judge``; at the end everything is healed,
what is left is drained, and all nodes must have the same rows.

In a *contended* world leaders change all the time, and campaigns are slow: who wins one has looked
at the log long before.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

from sim.bodies import BodyDisk
from sim.replica_judge import Claimed, Judge, JudgedService
from sim.replica_keys import ReplicaKeys
from sim.replica_node import SimNode
from sim.replica_variety import Variety
from sim.rules import RuleBrokenError
from sim.slices import Slices
from support_replication import whole_pairs

import lodeq
from lodeq.engine.records.keyspace import (
    ALL_TENANTS_MARK,
    EVENTS,
    EVENTS_END,
    PAUSE,
    PAUSE_END,
    QUEUE_SETTINGS,
    QUEUE_SETTINGS_END,
    TASK,
    TASK_END,
    decode_pause_key,
    decode_queue_settings_key,
)
from lodeq.engine.records.queues.queue_settings import decode_queue_settings
from lodeq.engine.runtime.ids import seeded
from lodeq.engine.runtime.on_asyncio import AsyncioSpawner
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.memory.network import Rates, Route, SeededNetwork
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Checkpoint
from lodeq.replication.record import decode_record
from lodeq.repository.state.caches import dedup_filter
from lodeq.testing.simulation.loop import SimLoop, SimTime
from lodeq.testing.simulation.processes import GoneError, SimProcess
from lodeq.testing.simulation.world import SimClock

NAMES = ("a", "b", "c")
LEASE_S = 4.0
UNSURE = (GoneError, lodeq.CommitUnknownError)
REFUSED = (lodeq.NotLeaderError, lodeq.ClosedError, lodeq.BusyError, lodeq.StorageError)
QUEUE = "jobs"
KINDS = (
    *("kill", "freeze", "split", "checkpoint") * 2,
    *("power", "quorum", "expire", "hand over"),
)
KINDS_CONTENDED = (*("hand over", "expire") * 5, "kill", "freeze", "split", "checkpoint")
SLOW_S = 3.0
IDLE_MAX = 5  # looks, two seconds apart: longer than a lease and the fence of a term
LOOK_S = 0.4  # between two looks at a session that is over when that is noticed
FILTER_BYTES = 1 << 14  # the filter of dedup keys, which replicas do not ask


class ContendedNetwork(SeededNetwork):
    """A network on which many campaigns take long."""

    def route(self, node: str, kind: str) -> Route:
        """See ``Network.route``."""
        if kind == "campaign" and self._is(0.5):
            return Route((self._dice.random() * SLOW_S,), 0.0)
        return super().route(node, kind)


class ClusterWorld:
    """Runs one seed.

    Args:
        seed: draws everything.
        is_contended: see the module; None: every fourth seed.
        has_keys: whether a limit of keys holds from the beginning.
    """

    def __init__(
        self, seed: int, *, is_contended: bool | None = None, has_keys: bool = False
    ) -> None:
        self.seed = seed
        self.is_contended = seed % 4 == 3 if is_contended is None else is_contended
        self.request_s = SLOW_S + 1 if self.is_contended else 0.5
        self.draw = draw = random.Random(f"{seed} cluster")
        self.time = SimTime()
        order = draw.choice(("random", "random", "fifo"))
        self.loop = SimLoop(self.time, seeded(f"{seed} loop"), order=order)
        self.clock = SimClock(self.time)
        self.shards = draw.choice((1, 1, 2))
        self.durability = draw.choice(("nosync", "fsync"))
        self.interval_s = draw.choice((0.05, 0.3))
        self.batch_max = draw.choice((1, 4, 64))
        network = ContendedNetwork if self.is_contended else SeededNetwork
        self.network = network(seeded(f"{seed} network"), self._rates())
        self.options = LogOptions(
            poll_s=draw.choice((0.5, 2.0)),
            balance_s=draw.choice((None, 3.0)),
            truncate_s=2.0,
            copies_min=1,
            entries_max=draw.choice((50, 1_000_000)),
            merge_bytes_max=draw.choice((200, 256 << 10)),
        )
        self.record_bytes_max = draw.choice((400, 1 << 20))
        # Drawn apart, so that worlds without bodies are what they were.
        self.body_draw = draw = random.Random(f"{seed} bodies")
        self.has_bodies = draw.random() < 0.5
        self.has_journals = draw.random() < 0.5
        self.body_bytes_min = {name: draw.choice((1, 200, 1000, 1 << 30)) for name in NAMES}
        self.judge = Judge()
        one = self.shards == 1
        self.keys = ReplicaKeys(seed, QUEUE, has_one_shard=one) if has_keys else None
        is_various = random.Random(f"{seed} is various").random() < 0.5
        self.variety = Variety(seed) if is_various else None
        self.slices = Slices(seed)
        # Of all tenants; a limit of keys holds for each of them apart, so there is but one then.
        self.has_tenants = self.slices.is_on and not has_keys
        self.of_all = {"tenant": lodeq.ALL_TENANTS} if self.has_tenants else {}
        self.checkpoints: list[tuple[tuple[int, ...], Any, list[BodyDisk]]] = []
        self.faults = 0
        self.log: MemoryLog
        self.nodes: list[SimNode] = []

    def _rates(self) -> Rates:
        draw = self.draw
        if draw.random() < 0.3:
            return Rates(0, 0, 0, 0, 0, 0, 0)
        return Rates(delay_s_max=draw.choice((0.05, 0.5, 2.0)))

    # -- clients ---------------------------------------------------------------------------

    def pick(self) -> SimNode | None:
        found = [node for node in self.nodes if node.is_open]
        return self.draw.choice(found) if found else None

    async def produce(self) -> None:
        draw, node = self.draw, self.pick()
        if node is None:
            return
        key = f"k{draw.randrange(30)}" if draw.random() < 0.3 else None
        payload = draw.randbytes(draw.choice((10, 10, 300, 2000)))
        engine, process = node.engine, node.process
        labels = None if self.keys is None else self.keys.labels()
        # A key is of one tenant.
        tenant = self.slices.tenant() if self.has_tenants and key is None else ""
        options = {"delay": self.slices.delay()}
        if self.variety is not None:
            options |= self.variety.enqueue_options()
        try:
            receipt = await process.ask(
                lambda: engine.queue(
                    QUEUE, tenant=tenant, retention=86_400, max_attempts=1000
                ).enqueue(
                    payload,
                    dedup_key=key,
                    dedup_window=86_400 if key else None,
                    labels=labels,
                    **options,
                )
            )
        except lodeq.NotLeaderError:
            self.judge.refused.add(payload)
            return
        except (*UNSURE, *REFUSED):
            return
        self.judge.enqueued(receipt, key, payload)
        if options["delay"] or self.keys is not None:
            self.judge.ready.discard(receipt.id)  # its key may be full, for all that is known

    async def work(self) -> None:
        draw, node, judge = self.draw, self.pick(), self.judge
        if node is None:
            return
        engine, process, began = node.engine, node.process, self.clock.mono()
        before = set(judge.ready)
        is_alone, judge.in_flight = judge.in_flight == 0, judge.in_flight + 1
        serial, moment = judge.claims, judge.moment
        try:
            leases = await process.ask(
                lambda: engine.queue(QUEUE, **self.of_all).claim(
                    limit=draw.choice((1, 3)), lease=LEASE_S, exported=self.keys is not None
                )
            )
        except (*UNSURE, *REFUSED):
            judge.blind_until = self.clock.mono() + 3 * LEASE_S
            judge.ready.clear()  # any of them may be leased to nobody
            return
        finally:
            judge.in_flight -= 1
        if not leases and self.shards == 1 and is_alone and serial == judge.claims:
            left = before & judge.ready
            if left and began > judge.blind_until:
                raise RuleBrokenError(
                    f"rule 4: {process.name} found nothing, and there was {min(left)}"
                )
        held = [self.claimed(lease, moment) for lease in leases]
        for lease in leases if self.keys is not None else ():
            wrong = self.keys.claimed(lease, began + LEASE_S, self.clock.mono())
            if wrong:
                raise RuleBrokenError(f"rule 7: {process.name} has answered with {wrong}")
        await self.settle(process, held)

    def claimed(self, lease: Any, began: int) -> Claimed:
        """Take the answer of a claim that began at such a moment."""
        if self.variety is not None:
            self.variety.check_claim(lease.task_id, began)
        return self.judge.claimed(lease, began)

    async def various(self) -> None:
        """A cancel, or a wait for a result."""
        variety, node, judge = self.variety, self.pick(), self.judge
        if node is None:
            return
        engine, process = node.engine, node.process
        if variety.draw.random() < 0.7:
            variety.wait(judge, process, engine)
            return
        task_id = variety.begin_cancel(judge)
        if task_id is None:
            return
        if self.keys is not None:
            self.keys.cancelling(task_id)
        try:
            was_there = await process.ask(lambda: engine.cancel(task_id))
        except (*UNSURE, *REFUSED):
            return
        variety.cancel_answered(judge, task_id, was_there=was_there)

    async def settle(self, process: SimProcess, held: list[Claimed]) -> None:
        """Hold the leases for a while, and end them."""
        draw = self.draw
        for one in held:
            while draw.random() < 0.4:
                await asyncio.sleep(draw.random() * 2)
                if not await self.call(process, one, "heartbeat"):
                    break
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() * 6)
            if not one.is_over:
                await self.call(
                    process, one, draw.choice(("complete", "complete", "nack", "release"))
                )

    async def call(self, process: SimProcess, one: Claimed, name: str) -> bool:
        """One call with a lease; whether it succeeded."""
        judge, lease = self.judge, one.lease
        was_newest, variety = judge.newest(one), self.variety
        was_cancelled = variety is not None and lease.task_id in variety.cancelled
        if self.keys is not None and name != "heartbeat":
            self.keys.ending(lease)
        given = {}
        if name == "nack":
            given["delay"] = 0 if variety is None else variety.nack_delay_s()
        try:
            await process.ask(lambda: getattr(lease, name)(**given))
        except UNSURE:
            one.is_over = True
            judge.unsure.add(lease.task_id)
            return False
        except lodeq.NotLeaderError:
            return False
        except (lodeq.LeaseLostError, *REFUSED):
            one.is_over = True
            return False
        if was_cancelled:
            raise RuleBrokenError(f"rule 9: {name} of {lease.task_id} succeeds, it was cancelled")
        judge.succeeded(one, name, was_newest=was_newest)
        one.is_over = name != "heartbeat"
        return True

    async def operate(self) -> None:
        """Pause, resume or configure what has no tasks: who leads is all that it may depend on."""
        draw = self.slices.draw
        there = [node for node in self.nodes if node.is_open]
        if not there:
            return
        node, most = draw.choice(there), draw.choice((None, 1, 2, 3))
        engine, process, queue = node.engine, node.process, draw.choice(("x", "y"))
        act = draw.choice(
            (
                engine.queue(queue).pause,
                engine.queue(queue).resume,
                lambda: engine.configure(queue, dead_max=most),
            )
        )
        try:
            await process.ask(act)
        except (*UNSURE, *REFUSED):
            pass

    async def often(self, one: Any, pause_s: float) -> None:
        while True:
            await one()
            await asyncio.sleep(self.draw.random() * pause_s)

    # -- faults ----------------------------------------------------------------------------

    async def fault(self) -> None:
        """One fault, for a while."""
        draw = self.draw
        node = draw.choice(self.nodes)
        kind = draw.choice(KINDS_CONTENDED if self.is_contended else KINDS)
        self.faults += 1
        lasts_s = draw.choice((0.2, 1.0, 4.0, 8.0)) * draw.random()
        process = node.process
        if kind in ("kill", "power"):
            node.stop(has_power=kind == "kill")
            await asyncio.sleep(lasts_s)
            await node.start()
        elif kind == "freeze" and process is not None:
            process.freeze()
            await asyncio.sleep(lasts_s)
            process.thaw()
        elif kind == "split":
            self.network.splits.add(node.name)
            await asyncio.sleep(lasts_s)
            self.network.splits.discard(node.name)
        elif kind == "quorum":
            self.network.has_quorum = False
            await asyncio.sleep(lasts_s)
            self.network.has_quorum = True
        elif kind == "expire":
            if node.log is not None:
                node.log.lose_session()  # never later than the log's service, as both count
            self.log.expire(node.name)
        elif kind == "checkpoint" and node.is_open:
            await self.publish(node)
        elif kind == "hand over" and node.is_open:
            replicator, shard = node.replicator, draw.randrange(self.shards)
            try:
                await node.process.ask(lambda: replicator.hand_over(shard))
            except lodeq.LodeqError:
                pass

    async def publish(self, node: SimNode) -> None:
        """Take a checkpoint, and tell of it."""
        positions, platters, bodies = node.checkpoint()
        found = Checkpoint(node.name, f"sim:{node.name}", "", positions)
        replicator = node.replicator
        self.checkpoints.append((positions, platters, bodies))
        try:
            await node.process.ask(lambda: replicator.publish(found))
        except lodeq.LodeqError:
            pass

    # -- the run ---------------------------------------------------------------------------

    def run(self) -> None:
        """All of it. Raises what is wrong."""
        try:
            with (
                patch.object(dedup_filter, "FILTER_BYTES", FILTER_BYTES),
                patch("lodeq.replication.replicator.SESSION_LOOK_S", LOOK_S),
                self.slices.turned(),
                nullcontext() if self.keys is None else self.keys.turned(),
            ):
                if self.keys is not None:
                    self.loop.on_step = self.look_at_keys
                self.loop.run(self.main())
        finally:
            for node in self.nodes:
                if node.process is not None:
                    node.process.close()
            self.loop.close()
        if self.loop.complaints:
            raise RuleBrokenError(f"complaints: {self.loop.complaints[:5]}")

    async def main(self) -> None:
        draw = self.draw
        self.log = MemoryLog(
            AsyncioSpawner(self.loop),
            self.clock,
            ttl_s=3.0,
            network=self.network,
            record_bytes_max=self.record_bytes_max,
        )
        service = self.log.service
        self.service = self.log.service = JudgedService(service.ttl_s, service.quota_bytes)
        self.nodes = [SimNode(self, name) for name in NAMES]
        for node in self.nodes:
            await node.start()
        if self.keys is not None:
            await self.set_keys(self.keys)
        busy = [
            asyncio.ensure_future(self.often(one, pause_s))
            for one, pause_s in (
                *[(self.produce, 0.3)] * 2,
                *[(self.work, 0.3)] * 3,
                (self.fault, 1.0 if self.is_contended else 3.0),
                *([(self.various, 0.8)] if self.variety is not None else []),
                *[(self.operate, 0.5)] * self.slices.is_on,
            )
        ]
        await asyncio.wait(busy, timeout=draw.choice((10.0, 25.0)), return_when="FIRST_EXCEPTION")
        for one in busy:
            one.cancel()
        for answer in await asyncio.gather(*busy, return_exceptions=True):
            if isinstance(answer, Exception):
                raise answer
        await self.heal()
        await self.drain()
        if self.variety is not None:
            await self.variety.over()
        await self.compare()

    async def set_keys(self, keys: ReplicaKeys) -> None:
        """Before anything is enqueued: over a network that loses some answers."""
        for _ in range(120):
            for node in self.nodes:
                if not node.is_open:
                    await node.start()
                    continue
                engine = node.engine
                try:
                    await node.process.ask(lambda e=engine: keys.set(e))
                except (*UNSURE, *REFUSED):
                    continue
                return
            await asyncio.sleep(0.5)
        raise RuleBrokenError("no node takes a setting")

    def look_at_keys(self) -> None:
        for node in self.nodes:
            if node.engine is not None and node.is_open:
                self.keys.look(node.engine)
        if self.keys.broken:
            raise RuleBrokenError(f"rule 7: {self.keys.broken}")

    async def heal(self) -> None:
        """Nothing is wrong any more."""
        self.network.is_calm = self.network.has_quorum = True
        self.network.splits.clear()
        for node in self.nodes:
            if node.process is not None:
                node.process.thaw()
        for _ in range(60):
            for node in self.nodes:
                if not node.is_open or node.is_behind():
                    node.stop(has_power=True)
                    await node.start()
            await asyncio.sleep(1)
            is_well = all(node.is_open and not node.is_behind() for node in self.nodes)
            if self.leaders() is not None and is_well:
                return
        raise RuleBrokenError(f"no leaders after a minute: {[n.is_open for n in self.nodes]}")

    def leaders(self) -> list[SimNode] | None:
        """Who serves each shard; None if one is not served."""
        found = []
        for shard in range(self.shards):
            here = [n for n in self.nodes if n.is_open and _role(n, shard) == "leading"]
            if len(here) != 1:
                return None
            found += here
        return found

    async def drain(self) -> None:
        """Complete what is left; then every acknowledged task has ended.

        It is over when leaders have no task left. Every fourth world goes on looking for a while,
        for a task that comes back.
        """
        idle, looks_on = 0, random.Random(f"{self.seed} looks on").random() < 0.25
        for _ in range(300):
            found, leaders = 0, self.leaders() or ()
            for node in leaders:
                engine, process = node.engine, node.process
                try:
                    moment = self.judge.moment
                    leases = await process.ask(
                        lambda e=engine: e.queue(QUEUE, **self.of_all).claim(limit=64)
                    )
                    for lease in leases:
                        one = self.claimed(lease, moment)
                        found += await self.call(process, one, "complete")
                except (*UNSURE, *REFUSED):
                    found += 1
            idle = 0 if found else idle + 1
            is_empty = bool(leaders) and not any(map(self.has_tasks, leaders, count()))
            if is_empty and (idle > IDLE_MAX or not looks_on):
                break
            await asyncio.sleep(2)
        else:
            raise RuleBrokenError("it does not end")
        await self.check_ended()

    def has_tasks(self, node: SimNode, shard: int) -> bool:
        return bool(node.engine._state.shards[shard].store.scan(TASK, TASK_END, 1))

    async def check_ended(self) -> None:
        """The leader of its shard knows that each is completed, and no follower says it is missing.

        A follower may have less, or be behind the floor; it says who leads then.
        """
        left = set(self.judge.acknowledged)
        for _ in range(10):
            asked = sorted(left)
            for node in self.nodes:
                left -= await node.process.ask(partial(self.known_ends, node, asked))
            if not left:
                return
            await asyncio.sleep(1)
        raise RuleBrokenError(f"rule 1: acknowledged and lost are {sorted(left)}")

    async def known_ends(self, node: SimNode, task_ids: list[lodeq.TaskId]) -> set[lodeq.TaskId]:
        """In the process of a node: those whose end it knows, and that it is a right one."""
        found = set()
        for task_id in task_ids:
            try:
                result = await node.engine.result(task_id)
            except lodeq.NotLeaderError:
                continue
            except lodeq.TaskNotFoundError as error:
                raise RuleBrokenError(f"rule 1: {node.name} says {error}") from error
            if result is None:
                continue
            found.add(task_id)
            if self.variety is not None:
                self.variety.check_end(self.judge, task_id, result.status)
            elif result.status != "completed":
                raise RuleBrokenError(f"rule 1: {task_id} is {result.status}")
        return found

    async def compare(self) -> None:
        """All nodes have the same rows and no problem, and the log has no gap."""
        for _ in range(40):
            await asyncio.sleep(1)
            for node in self.nodes:
                if node.is_behind():  # since before all was healed, and it has noticed late
                    node.stop(has_power=True)
                    await node.start()
            tails = [state.last for state in self.log.service.states()]
            if all(node.has_session() and self.positions(node) == tails for node in self.nodes):
                break
        else:
            raise RuleBrokenError(f"behind {tails}: {[self.positions(n) for n in self.nodes]}")
        first, *others = [self.rows(node) for node in self.nodes]
        for other in others:
            if other != first:
                raise RuleBrokenError(f"rows differ: {_difference(first, other)}")
        for node in self.nodes:
            engine = node.engine
            report = await node.process.ask(lambda e=engine: e.verify())
            if not report.ok:
                raise RuleBrokenError(f"{node.name}: {report.findings[:3]}")
            if problems := node.process.look(node.replicator.problems):
                raise RuleBrokenError(f"{node.name}: {problems}")
            self.compare_memory(node)
        await self.compare_journals()
        self.check_log()

    def positions(self, node: SimNode) -> list[int]:
        return [one.applied for one in node.process.look(node.replicator.status).shards]

    def rows(self, node: SimNode) -> list[dict[bytes, bytes]]:
        found = []
        for shard in node.engine._state.shards:
            pairs = dict(shard.store.scan(b"", b"\xff", 1 << 30))
            found.append(whole_pairs(pairs, shard.whole_record))
        return found

    def compare_memory(self, node: SimNode) -> None:
        """Pauses and settings hold in memory as the rows say, and no others do."""
        state = node.engine._state
        store = state.shards[0].store
        paused = {decode_pause_key(key) for key, _ in store.scan(PAUSE, PAUSE_END, 1 << 20)}
        holds = {
            (queue, tenant)
            for queue, one in state.queue_states.items()
            for tenant in (*one.paused, *([ALL_TENANTS_MARK] * one.is_paused))
        }
        if paused != holds:
            raise RuleBrokenError(f"{node.name}: paused are {holds}, and by rows {paused}")
        rows = store.scan(QUEUE_SETTINGS, QUEUE_SETTINGS_END, 1 << 20)
        settings = {decode_queue_settings_key(key): decode_queue_settings(raw) for key, raw in rows}
        known = {queue: dict(rules.stored) for queue, rules in state.rules.items()}
        if settings != known:
            raise RuleBrokenError(f"{node.name}: set are {known}, and by rows {settings}")

    async def compare_journals(self) -> None:
        """All journals have the same events, by shard and commit."""
        for _ in range(40):
            if not any(self.has_events(node) for node in self.nodes):
                break
            await asyncio.sleep(1)
        else:
            raise RuleBrokenError("events are left in a store")
        found = [node.journal.commits() for node in self.nodes]
        every = {at: raw for commits in found for at, raw in commits.items()}
        for node, commits in zip(self.nodes, found, strict=True):
            if any(every[at] != raw for at, raw in commits.items()):
                raise RuleBrokenError(f"{node.name} has other events of a commit")
            if node.journal.is_whole and len(commits) != len(every):
                missing = sorted(every.keys() - commits.keys())
                raise RuleBrokenError(f"{node.name} has not had the events of {missing[:5]}")
        if self.has_journals and self.judge.acknowledged and not every:
            raise RuleBrokenError("no journal has any event")

    def has_events(self, node: SimNode) -> bool:
        shards = node.engine._state.shards
        return any(shard.store.scan(EVENTS, EVENTS_END, 1) for shard in shards)

    def check_log(self) -> None:
        """Records tile the log without gaps, in terms that never fall, each in its own."""
        if self.service.wrong:
            raise RuleBrokenError(f"not fenced: {self.service.wrong[:3]}")
        for shard, state in enumerate(self.log.service.states()):
            at, term = state.floor, 0
            records = self.log.service.read(shard, state.floor - 1, 1 << 40)
            for stored in records:
                if stored.fragments:
                    first, its_term = stored.last, term  # its head says no more
                    at = max(at, stored.last + 1)
                    continue
                record = decode_record(stored.raw)
                first, its_term = record.first, record.term
                if first > at or its_term < term:
                    raise RuleBrokenError(
                        f"shard {shard}: entry {at} is followed by {first}, term {its_term}"
                    )
                at, term = record.last + 1, its_term
            if at != state.last + 1:
                raise RuleBrokenError(
                    f"shard {shard}: the log ends at {at - 1}, not at {state.last}"
                )


def _role(node: SimNode, shard: int) -> str:
    return node.process.look(node.replicator.status).shards[shard].role


def _difference(one: list[dict[bytes, bytes]], two: list[dict[bytes, bytes]]) -> str:
    for shard, (a, b) in enumerate(zip(one, two, strict=True)):
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key):
                return f"shard {shard} {key!r}: {a.get(key)!r} and {b.get(key)!r}"
    return "nothing"
