"""A storm over a cluster of processes: kills, freezes and moves under load, judged.

``make storm`` runs it for ten minutes (``MINUTES=1``: another time); ``--seed`` draws the same
faults again (what they hit depends on the machine). Clients write down what they were told.
``Judge`` holds it against what replicas promise, and so does the history checker (``told.Told``).
At the end all is healed, what is left is completed, and all nodes must have the same rows.

``--log-alone``: nodes never count their session as over (``altered_node.py``), so that only the
log keeps a deposed leader from doing harm. It fences what is written: nothing is lost and nothing
happens twice. It cannot fence what is answered from memory: a heartbeat for a task that was
cancelled meanwhile is answered, and the checker has to find that. It comes about in some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cluster.told import ATTEMPTS, Told
from support_etcd import TTL_S, EtcdServers
from support_nodes import Nodes, nodes_of, report, rows_of

import lodeq

QUEUE = "jobs"
LEASE_S = 4.0
CALL_S = 3.0  # until a client gives a call up, whose end is unknown then
UNSURE = (lodeq.CommitUnknownError, lodeq.IncompleteError, asyncio.TimeoutError)
REFUSED = (lodeq.NotLeaderError, lodeq.BusyError, lodeq.ClosedError, lodeq.StorageError)
KINDS = (*("kill", "freeze", "move") * 3, "checkpoint", "etcd kill", "etcd freeze", "no quorum")
KINDS_LOG_ALONE = (*("freeze",) * 5, "kill", "move", "etcd kill", "no quorum")
LASTS_S = (0.3, 1.0, 3.0, 5.0)
HELD_S = 12.0  # the leases of those who keep to one node
BEAT_S = 0.2
SILENT_S = TTL_S + 0.5  # until those take their node for dead
HEAL_S = 120.0
QUOTA_BYTES = 2 << 30  # as nodes take it to be whose address does not say it
CANCELLED = 1 << 63  # in place of the epoch of the newest lease


class WrongError(AssertionError):
    """A rule is broken."""


class Judge:
    """What clients were told, and the rules that it has to keep.

    1. An acknowledged task is there until it has ended, and ends.
    2. Once a later claim of a task was answered, or its cancellation, no call with an earlier lease
       succeeds.
    3. A claim that begins after a task's completion, or cancellation, was acknowledged does not get
       it.
    4. A dedup key gives one task, whoever leads.
    5. A task whose enqueue was refused is never there.

    Args:
        is_log_alone: a heartbeat may break the second rule.
    """

    def __init__(self, *, is_log_alone: bool = False) -> None:
        self.is_log_alone = is_log_alone
        self.acknowledged: dict[Any, bytes] = {}
        self.completed: set[Any] = set()
        self.ended: dict[Any, int] = {}  # completed or cancelled, and when
        self.moment = 0  # grows with every end
        self.cancelled: set[Any] = set()  # or perhaps, where the answer was lost
        self.latest: dict[Any, int] = {}  # epoch of the newest lease
        self.by_key: dict[str, Any] = {}
        self.refused: set[bytes] = set()
        self.claimed_payloads: set[bytes] = set()
        self.claims = 0
        self.counts: Counter[str] = Counter()
        self.last_s = time.monotonic()
        self.longest_s = 0.0

    def enqueued(self, receipt: Any, payload: bytes, key: str | None) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self.last_s)
        self.last_s = now
        self.counts["acknowledged"] += 1
        if key is not None and self.by_key.setdefault(key, receipt.id) != receipt.id:
            raise WrongError(f"rule 4: {key} gave {self.by_key[key]} and {receipt.id}")
        self.acknowledged.setdefault(receipt.id, payload)

    def not_enqueued(self, payload: bytes) -> None:
        self.counts["refused"] += 1
        if payload in self.claimed_payloads:
            raise WrongError(f"rule 5: {payload!r} was refused and had been claimed")
        self.refused.add(payload)

    def claimed(self, lease: Any, began: int) -> int:
        """Take the answer of a claim that began at such a moment; the epoch of the lease."""
        self.claims += 1
        if began > self.ended.get(lease.task_id, began):
            raise WrongError(f"rule 3: {lease.task_id} has ended and is claimed again")
        if lease.payload in self.refused:
            raise WrongError(f"rule 5: {lease.task_id} was refused and is there")
        self.claimed_payloads.add(lease.payload)
        epoch: int = lease.epoch
        self.latest[lease.task_id] = max(epoch, self.latest.get(lease.task_id, 0))
        return epoch

    def over(self, task_id: Any) -> None:
        """Take that its end was acknowledged."""
        self.ended.setdefault(task_id, self.moment)
        self.moment += 1

    def has_ended(self, task_id: Any, result: Any) -> bool:
        """Whether that is how the task may have ended."""
        if result is None:
            return False
        may_be_cancelled = task_id in self.cancelled and task_id not in self.completed
        return result.status == "completed" or (may_be_cancelled and result.status == "cancelled")

    def succeeded(self, lease: Any, call: str, *, was_newest: bool) -> None:
        self.counts[call] += 1
        if not was_newest and self.is_log_alone and call == "heartbeat":
            self.counts["stale heartbeats"] += 1
        elif not was_newest:
            raise WrongError(f"rule 2: {call} of {lease.task_id} succeeds with an earlier lease")
        if call == "complete":
            self.completed.add(lease.task_id)
            self.over(lease.task_id)


class Storm:
    """One run.

    Args:
        nodes: the cluster, all of which are up.
        servers: its etcd, of its own.
        seconds: of load and faults.
        seed: of what is drawn.
        is_log_alone: the nodes do not look at their sessions.
    """

    def __init__(
        self,
        nodes: Nodes,
        servers: EtcdServers,
        seconds: float,
        seed: int,
        *,
        is_log_alone: bool = False,
    ) -> None:
        self.nodes = nodes
        self.servers = servers
        self.seconds = seconds
        self.draw = random.Random(f"{seed} storm")
        self.judge = Judge(is_log_alone=is_log_alone)
        self.told = Told(QUEUE, nodes.shards, may_break=is_log_alone)
        self.is_log_alone = is_log_alone
        self.faults: Counter[str] = Counter()
        self.is_over = False
        self.serial = 0

    # -- clients -----------------------------------------------------------------------

    async def produce(self, engine: Any) -> None:
        draw = self.draw
        self.serial += 1
        is_large = draw.random() < 0.03  # goes to a body file
        size = 40_000 if is_large else draw.choice((10, 10, 300, 2000))
        payload = b"%d " % self.serial + draw.randbytes(size)
        key = f"k{draw.randrange(self.serial + 5) // 3}" if draw.random() < 0.4 else None
        queue = engine.queue(QUEUE, retention=86_400, max_attempts=ATTEMPTS)
        try:
            receipt = await self.told.enqueue(queue, payload, key)
        except UNSURE:
            self.judge.counts["unknown"] += 1
        except (lodeq.NotLeaderError, lodeq.UnreachableError):  # they say that nothing was done
            self.judge.not_enqueued(payload)
        except REFUSED:
            self.judge.counts["busy"] += 1
        else:
            self.judge.enqueued(receipt, payload, key)

    async def work(self, engine: Any) -> None:
        draw = self.draw
        leases = await self.claim(
            engine, draw.choice((1, 3, 10)), LEASE_S, wait_s=draw.choice((0, 0.5))
        )
        await asyncio.gather(*(self.settle(*one) for one in leases))

    async def claim(
        self, engine: Any, limit: int, lease_s: float, *, wait_s: float = 0.0
    ) -> list[tuple[Any, int]]:
        """Leases, each with its epoch; none if it failed."""
        began = self.judge.moment
        try:
            leases = await self.told.claim(
                engine.queue(QUEUE), limit=limit, lease_s=lease_s, wait_s=wait_s
            )
        except (*UNSURE, *REFUSED):
            return []
        return [(lease, self.judge.claimed(lease, began)) for lease in leases]

    async def hold(self, name: str, cluster: Any) -> None:
        """Claim at one node, and ask it to extend the leases, whether it answers or not.

        While it is silent the tasks are cancelled elsewhere. When it wakes from a freeze it finds
        heartbeats that were sent after that.
        """
        async with self.nodes.connect_to(name, timeout=HEAL_S / 2) as engine:
            while not self.is_over:
                held = await self.claim(engine, 2, HELD_S)
                if held:
                    await self.keep(held, cluster)
                    await asyncio.gather(*(self.call(*one, "complete") for one in held))
                await asyncio.sleep(0.5)

    async def keep(self, held: list[tuple[Any, int]], cluster: Any) -> None:
        """Send heartbeats for leases, until one is refused or it has been long enough."""
        beats: list[asyncio.Future[bool]] = []
        cancels: list[asyncio.Future[None]] = []
        began = heard = time.monotonic()
        while time.monotonic() < began + HELD_S and not self.is_over:
            await asyncio.sleep(BEAT_S)
            answers = [beat.result() for beat in beats if beat.done()]
            if not all(answers):
                break
            if len(answers) == len(beats):
                heard = time.monotonic()
            if time.monotonic() > heard + SILENT_S and not cancels:
                cancels = [asyncio.ensure_future(self.cancel(cluster, one)) for one, _ in held]
            beats += [asyncio.ensure_future(self.call(*one, "heartbeat")) for one in held]
        await asyncio.gather(*beats, *cancels)

    async def cancel(self, engine: Any, lease: Any) -> None:
        """Cancel the task of a lease."""
        self.judge.cancelled.add(lease.task_id)
        try:
            is_done = await self.told.cancel(engine, lease)
        except (*UNSURE, *REFUSED):
            return
        if is_done:
            self.judge.counts["cancelled"] += 1
            self.judge.latest[lease.task_id] = CANCELLED
            self.judge.over(lease.task_id)

    async def settle(self, lease: Any, epoch: int) -> None:
        """Hold a lease for a while, and end it."""
        draw = self.draw
        while draw.random() < 0.2:
            await asyncio.sleep(draw.random() * 2)
            if not await self.call(lease, epoch, "heartbeat"):
                break
        if draw.random() < 0.05:
            await asyncio.sleep(draw.random() * 2 * LEASE_S)  # and the lease runs out
        name = draw.choice(("complete",) * 6 + ("nack", "release"))
        await self.call(lease, epoch, name)

    async def call(self, lease: Any, epoch: int, name: str) -> bool:
        was_newest = self.judge.latest[lease.task_id] == epoch
        try:
            await self.told.call(lease, name)
        except lodeq.LeaseLostError:
            self.judge.counts["lost leases"] += 1
            return False
        except (*UNSURE, *REFUSED):
            return False
        self.judge.succeeded(lease, name, was_newest=was_newest)
        return True

    async def often(self, one: Callable[[Any], Awaitable[None]], engine: Any) -> None:
        while not self.is_over:
            await one(engine)
            await asyncio.sleep(self.draw.random() * 0.02)

    # -- faults ------------------------------------------------------------------------

    async def fault(self) -> None:
        draw, nodes, servers = self.draw, self.nodes, self.servers
        kind = draw.choice(KINDS_LOG_ALONE if self.is_log_alone else KINDS)
        leaders = [one for one in await nodes.leaders() or () if nodes.is_up(one)]
        name = draw.choice(leaders if leaders and draw.random() < 0.7 else nodes.names)
        at, lasts_s = draw.randrange(3), draw.choice(LASTS_S) * draw.random()
        if self.is_log_alone and kind == "freeze":
            lasts_s = SILENT_S + 1 + draw.random() * 4  # its leases have been ended by then
        self.faults[kind] += 1
        if kind == "kill":
            nodes.kill(name)
            await asyncio.sleep(lasts_s)
            nodes.start(name)
        elif kind == "freeze":
            nodes.freeze(name)
            await asyncio.sleep(lasts_s)
            nodes.thaw(name)
        elif kind == "move":
            await self._asked(name, "/cluster/drain", {"drain": True})
            await asyncio.sleep(lasts_s)
            await self._asked(name, "/cluster/drain", {"drain": False})
        elif kind == "checkpoint":
            await self._asked(name, "/cluster/checkpoint", {})
        elif kind == "etcd kill":
            servers.kill(at)
            await asyncio.sleep(lasts_s)
            servers.start(at)
        else:
            frozen = [at] if kind == "etcd freeze" else [at, (at + 1) % 3]
            for one in frozen:
                servers.send(one, signal.SIGSTOP)
            await asyncio.sleep(lasts_s)
            for one in frozen:
                servers.send(one, signal.SIGCONT)

    async def _asked(self, name: str, path: str, document: Any) -> None:
        try:
            await asyncio.wait_for(self.nodes.post(name, path, document), 10)
        except (AssertionError, OSError, TimeoutError):
            self.faults["not answered"] += 1
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore"):
                raise
            self.faults["not answered"] += 1

    async def blow(self) -> None:
        """Fault after fault, until it is over; then all is well again."""
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.5 + self.draw.random() * 3)
            await self.fault()
        self.is_over = True

    # -- the run -----------------------------------------------------------------------

    async def run(self) -> None:
        """All of it. Raises what is wrong."""
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(self.nodes.connect(timeout=CALL_S))
                for _ in range(4)
            ]
            self.judge.last_s = time.monotonic()
            busy = [asyncio.ensure_future(self.blow())]
            for engine in engines:
                busy += [
                    asyncio.ensure_future(self.often(one, engine))
                    for one in (self.produce, self.produce, self.work, self.work)
                ]
            busy += [
                asyncio.ensure_future(self.hold(name, engines[0])) for name in self.nodes.names
            ]
            done, left = await asyncio.wait(
                busy, timeout=self.seconds + HEAL_S, return_when="FIRST_EXCEPTION"
            )
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for task in done:
                task.result()
            if left:
                raise WrongError(f"{len(left)} clients wait for ever")
        await self.settle_all()
        await self.compare()
        await self.told.look(self.nodes.path(self.nodes.names[0]))
        if self.is_log_alone and self.told.broken is None:
            raise WrongError("no session was looked at, and the checker has not found it")

    async def settle_all(self) -> None:
        """Complete what is left; then every acknowledged task has ended."""
        for name in self.nodes.names:
            if not self.nodes.is_running(name):
                raise WrongError(f"{name} has ended: {self.nodes.output(name)[-1000:]}")
            await self._asked(name, "/cluster/drain", {"drain": False})
        await asyncio.to_thread(self.servers.wait_ready)
        await self.nodes.led(HEAL_S)
        await self.nodes.level(seconds=HEAL_S)
        judge, idle, end = self.judge, 0, time.monotonic() + HEAL_S
        async with self.nodes.connect(timeout=30) as engine:
            while idle < 2:
                if time.monotonic() > end:
                    raise WrongError("it does not end")
                leases = await self.claim(engine, 100, LEASE_S, wait_s=HELD_S + TTL_S + 1)
                idle = 0 if leases else idle + 1
                await asyncio.gather(*(self.call(*one, "complete") for one in leases))
            lost = [
                task_id
                for task_id in judge.acknowledged
                if not judge.has_ended(task_id, await engine.result(task_id))
            ]
        judge.counts["lost"] = len(lost)
        if lost:
            raise WrongError(f"rule 1: {len(lost)} were acknowledged and are lost: {lost[:5]}")

    async def compare(self) -> None:
        """All nodes have the same rows."""
        nodes = self.nodes
        await nodes.level(seconds=HEAL_S)
        nodes.end()  # at once: nobody takes over meanwhile, which would be an entry
        first, *others = [rows_of(nodes.path(name)) for name in nodes.names]
        for other in others:
            for shard, (one, two) in enumerate(zip(first, other, strict=True)):
                differ = [key for key in {*one, *two} if one.get(key) != two.get(key)]
                if differ:
                    key = min(differ)
                    raise WrongError(
                        f"shard {shard}: {len(differ)} rows differ, {key!r}: "
                        f"{one.get(key)!r} and {two.get(key)!r}"
                    )

    def table(self) -> str:
        """What happened, in numbers."""
        judge = self.judge
        rows = {
            "seconds": f"{self.seconds:g}",
            "faults": sum(self.faults.values()) - self.faults["not answered"],
            **{f"  {name}": count for name, count in sorted(self.faults.items())},
            "tasks acknowledged": len(judge.acknowledged),
            **dict(sorted(judge.counts.items())),
            "claimed": judge.claims,
            "longest gap between writes, s": f"{judge.longest_s:.2f}",
            "records judged": self.told.records,
            "broken": str(self.told.broken).partition("\n")[0],
        }
        return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


async def storm(seconds: float, seed: int, *, is_log_alone: bool = False) -> Storm:
    """Run one, on an etcd of its own; what is wrong is raised after the table is printed.

    Args:
        seconds: of load and faults.
        seed: of what is drawn.
        is_log_alone: the nodes do not look at their sessions.
    """
    altered = dict.fromkeys("abc", ("--no-session-check",)) if is_log_alone else {}
    with tempfile.TemporaryDirectory(prefix="ls-") as folder:
        servers = EtcdServers(Path(folder), quota_bytes=QUOTA_BYTES)
        try:
            async with nodes_of(servers, flags=("--journal", "tasks"), altered=altered) as nodes:
                found = Storm(nodes, servers, seconds, seed, is_log_alone=is_log_alone)
                try:
                    await found.run()
                except BaseException:
                    for name in nodes.names:
                        report(f"-- {name}\n{nodes.output(name)[-1500:]}")
                    raise
                finally:
                    report(f"seed {seed}\n{found.table()}")
                return found
        finally:
            servers.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of load and faults (10)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; drawn if not given")
    parser.add_argument("--log-alone", action="store_true", help="nodes look at no session")
    told = parser.parse_args()
    seed = random.randrange(1 << 31) if told.seed is None else told.seed
    try:
        asyncio.run(storm(60 * told.minutes, seed, is_log_alone=told.log_alone))
    except AssertionError as error:
        report(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
