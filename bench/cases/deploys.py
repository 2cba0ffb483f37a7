"""Workers that are replaced under load: three processes on one served store.

A second deploy changes functions as well: a quarter of the tasks is for one that only the new
workers know, or only the old ones do, as where producers are deployed before the workers, or after.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

from cases.served import RUN, serving
from results import Bench, Goal, Result, percentiles

import lodeq

PACE = 1_100.0  # tasks a second that are offered
BURST = 55  # … so many at once
WORKERS = 3
RATE = Goal("median", least=1_000)
IN_TIME_S = 60.0
OWN_EVERY = 4  # of so many tasks one is for a function of one version alone
PRODUCERS_FIRST, WORKERS_FIRST = "producers first", "workers first"


class Load:
    """Offers tasks at a pace, and knows when all of them are done."""

    def __init__(self, engine: lodeq.Engine) -> None:
        self._engine = engine
        self._queue = engine.queue("work")
        self.receipts: list[lodeq.Receipt] = []

    async def offer(self, n: int) -> float:
        """Offer ``n`` more tasks. Returns tasks/s from the first of them to the end of the last."""
        started = time.perf_counter()
        for at in range(0, n, BURST):
            await asyncio.sleep(max(0.0, started + at / PACE - time.perf_counter()))
            first = len(self.receipts)
            tasks = [lodeq.NewTask({"n": first + i}) for i in range(min(BURST, n - at))]
            self.receipts += await self._queue.enqueue_many(tasks)
        async with asyncio.timeout(IN_TIME_S):
            while (await self._engine.stats()).completed_total < len(self.receipts):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return n / (time.perf_counter() - started)

    async def attempts(self, first: int, count: int) -> list[int]:
        """List the attempts of those tasks; each must have completed with its own value."""
        found = []
        for n, receipt in enumerate(self.receipts[first : first + count], first):
            result = await self._engine.result(receipt.id)
            if result is None or (result.status, result.value) != ("completed", n):
                raise RuntimeError(f"task {n}: {result}")
            found.append(result.attempts)
        return found


async def work(url: str, name: str, version: str = "") -> Process:
    """``lodeq worker`` in a process of its own; with a version it has a function of that name."""
    env = {**os.environ, "LODEQ_STORE": url, "LODEQ_NAME": name}
    if version:
        env["LODEQ_VERSION"] = version
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        "worker",
        "--quiet",
        "deploy_app:app",
        cwd=Path(__file__).parent,
        env=env,
        stdout=DEVNULL,
        stderr=DEVNULL if version else None,  # each function that is not known is logged
    )


async def replaced(url: str, old: list[Process], pause_s: float) -> list[Process]:
    """Replace the workers one by one: a new one starts, then the old one is told to stop."""
    new = []
    for i, worker in enumerate(old):
        await asyncio.sleep(pause_s)
        new.append(await work(url, f"new{i}"))
        worker.send_signal(signal.SIGTERM)
        if await worker.wait():
            raise RuntimeError(f"worker {i} ended with {worker.returncode}")
    return new


async def drill(path: Path, n: int) -> tuple[float, float, dict[str, float]]:
    """Tasks/s without a deploy and with one; then one worker is killed."""
    async with serving(path) as url, lodeq.connect(url) as client:
        load = Load(client)
        workers = [await work(url, f"old{i}") for i in range(WORKERS)]
        try:
            await load.offer(BURST)  # they are up
            steady = await load.offer(n)
            deploy = asyncio.create_task(replaced(url, workers, n / PACE / (WORKERS + 1)))
            rolling = await load.offer(n)
            workers = await deploy
            burned = sum(a > 1 for a in await load.attempts(0, len(load.receipts)))
            if burned:
                raise RuntimeError(f"{burned} attempts were burned by SIGTERM")
            first = len(load.receipts)
            offering = asyncio.create_task(load.offer(n))
            await asyncio.sleep(n / PACE / 2)
            workers[0].kill()
            await offering
            again = sum(a > 1 for a in await load.attempts(first, n))
            done = (await client.stats()).completed_total
            if done != len(load.receipts):
                raise RuntimeError(f"{done} completions of {len(load.receipts)} tasks")
            return rolling, steady, {"again_after_a_kill": again}
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.wait()


class Mixed:
    """Offers tasks for functions by name, at a pace, until told otherwise.

    Args:
        client: of the store.
        own: the function that one version alone has.
    """

    def __init__(self, client: lodeq.Engine, own: str) -> None:
        self._queue = client.queue("work")
        self._names = ("work",) * (OWN_EVERY - 1) + (own,)
        self.receipts: dict[str, list[lodeq.Receipt]] = {"work": [], own: []}
        self.has_own = True

    async def offer(self) -> None:
        """Offer until cancelled; without tasks of its own once ``has_own`` is false."""
        started, n = time.perf_counter(), 0
        while True:
            names = [self._names[i % OWN_EVERY] if self.has_own else "work" for i in range(BURST)]
            tasks = [
                lodeq.NewTask({"n": n + i}, headers={"lodeq.task": name}, function=name)
                for i, name in enumerate(names)
            ]
            for name, receipt in zip(names, await self._queue.enqueue_many(tasks), strict=True):
                self.receipts[name].append(receipt)
            n += BURST
            await asyncio.sleep(max(0.0, started + n / PACE - time.perf_counter()))


async def are_up(client: lodeq.Engine, names: set[str]) -> None:
    """Wait until those workers have reported themselves."""
    async with asyncio.timeout(IN_TIME_S):
        while not names <= {one.name for one in await client.workers()}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def changed(path: Path, order: str, pause_s: float) -> tuple[dict[str, list[float]], float]:
    """Replace all workers by others that have another function.

    Returns delays in milliseconds of tasks that all versions know, and of the others, and how often
    a task was claimed by a worker that does not know its function, for each of the others. A delay
    is from the enqueue to the claim by who ran it; where nobody knew the function yet, it counts
    from the moment when somebody did.
    """
    own = "new" if order == PRODUCERS_FIRST else "old"
    async with serving(path) as url, lodeq.connect(url) as client:
        old = [await work(url, f"old{i}", "old") for i in range(WORKERS)]
        workers, known_at = list(old), 0.0
        try:
            await are_up(client, {f"old{i}" for i in range(WORKERS)})
            load = Mixed(client, own)
            offering = asyncio.create_task(load.offer())
            for i, worker in enumerate(old):
                await asyncio.sleep(pause_s)
                workers.append(await work(url, f"new{i}", "new"))
                await are_up(client, {f"new{i}"})
                known_at = known_at or time.time()
                if worker is old[-1] and order == WORKERS_FIRST:
                    load.has_own = False  # its producers are deployed; the last one works them off
                    await _all_done(client, load.receipts[own])
                worker.send_signal(signal.SIGTERM)
                await worker.wait()
            await asyncio.sleep(pause_s)
            offering.cancel()
            await asyncio.wait([offering])
            delays: dict[str, list[float]] = {}
            for name, receipts in load.receipts.items():
                await _all_done(client, receipts)
                least = known_at if name == "new" else 0.0
                delays[name] = [await _delay_ms(client, one, least) for one in receipts]
            stats = await client.stats()
            draws = (stats.claimed_total - stats.completed_total) / max(1, len(delays[own]))
            return {"both": delays["work"], "one": delays[own]}, draws
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.wait()


async def _all_done(client: lodeq.Engine, receipts: list[lodeq.Receipt]) -> None:
    async with asyncio.timeout(IN_TIME_S):
        for receipt in receipts:
            while await client.result(receipt.id, wait=5.0) is None:
                pass


async def _delay_ms(client: lodeq.Engine, receipt: lodeq.Receipt, least: float) -> float:
    result = await client.result(receipt.id)
    if result is None or result.status != "completed" or result.leased_at is None:
        raise RuntimeError(f"task {receipt.id}: {result}")
    since = max(least, result.enqueued_at.timestamp())
    return 1e3 * max(0.0, result.leased_at.timestamp() - since)


async def deploys(bench: Bench) -> None:
    """Tasks a second while workers are replaced one by one, beside a quiet minute."""
    n = max(10 * BURST, int(22_000 * bench.scale))
    runs = [await drill(bench.folder / f"drill{i}", n) for i in range(min(3, bench.repeats))]
    bench.add(
        Result(
            "workers are replaced",
            {"workers": WORKERS, "offered": PACE, "tasks": n},
            "tasks/s",
            [one[0] for one in runs],
            "no deploy",
            [one[1] for one in runs],
            goal=RATE,
            more={"again_after_a_kill": max(one[2]["again_after_a_kill"] for one in runs)},
        )
    )
    pause_s = max(0.3, 5.0 * bench.scale)
    for order in (PRODUCERS_FIRST, WORKERS_FIRST):
        p99: dict[str, list[float]] = {"both": [], "one": []}
        draws, worst, every = [], 0.0, []
        for i in range(min(3, bench.repeats)):
            delays, drawn = await changed(
                bench.folder / order.replace(" ", "-") / str(i), order, pause_s
            )
            for kind, found in delays.items():
                p99[kind].append(percentiles(found)["p99"])
            draws.append(drawn)
            worst = max(worst, *delays["one"])
            every += delays["one"]
        bench.add(
            Result(
                "delay of tasks that one version knows",
                {"order": order, "workers": WORKERS, "offered": PACE},
                "ms (p99)",
                p99["one"],
                "of tasks that both know",
                p99["both"],
                latency_us=percentiles(1e3 * one for one in every),
                more={"max_ms": round(worst), "vain_claims_a_task": round(max(draws), 2)},
            )
        )
