"""Workers that are replaced under load: three processes on one served store."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

from cases.served import RUN, serving
from results import Bench, Goal, Result

import lodeq

PACE = 1_100.0  # tasks a second that are offered
BURST = 55  # … so many at once
WORKERS = 3
RATE = Goal("median", least=1_000)
IN_TIME_S = 60.0


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


async def work(url: str, name: str) -> Process:
    """``lodeq worker`` in a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        "worker",
        "--quiet",
        "deploy_app:app",
        cwd=Path(__file__).parent,
        env={**os.environ, "LODEQ_STORE": url, "LODEQ_NAME": name},
        stdout=DEVNULL,
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
