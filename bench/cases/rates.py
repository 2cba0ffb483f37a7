"""How much of a rate is used under load: starts of worker processes on one served store."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

from cases.served import RUN, serving
from results import Bench, Goal, Result

import lodeq

USED = Goal("median", least=0.9)
SECONDS = 5.0  # of load that count
WARM_S = 1.0  # before them, once all workers are there
UP_S = 60.0


async def _starts(url: str, rate: str, workers: int, n: int) -> list[float]:
    """Seconds at which tasks were claimed, in order."""
    async with lodeq.connect(url) as client:
        receipts = await client.queue("work").enqueue_many([lodeq.NewTask({}) for _ in range(n)])
        crew = [await _work(url, f"w{i}", rate) for i in range(workers)]
        try:
            async with asyncio.timeout(UP_S):
                while len(await client.workers()) < workers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.sleep(WARM_S + SECONDS)
        finally:
            for worker in crew:
                worker.send_signal(signal.SIGTERM)
            for worker in crew:
                await worker.wait()
        starts = []
        for receipt in receipts:
            result = await client.result(receipt.id)
            if result is None:
                break  # they start in order, but for the last few
            if result.leased_at is not None:
                starts.append(result.leased_at.timestamp())
        return sorted(starts)


async def _work(url: str, name: str, rate: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        "worker",
        "--quiet",
        "rate_app:app",
        cwd=Path(__file__).parent,
        env={**os.environ, "LODEQ_STORE": url, "LODEQ_NAME": name, "LODEQ_RATE": rate},
        stdout=DEVNULL,
    )


def _used(starts: list[float], per_s: int) -> tuple[float, float]:
    """Return the steady starts a second, and the most in any window of a second, both of n.

    Steady are as many starts as whole seconds allow: bursts at the edges do not count by chance.
    """
    steady = [at for at in starts if at >= starts[-1] - SECONDS]
    seconds = (len(steady) - 1) // per_s
    used = seconds / (steady[seconds * per_s] - steady[0]) if seconds else 0.0
    most, first = 0, 0
    for last, at in enumerate(starts):
        while starts[first] <= at - 1.0:
            first += 1
        most = max(most, last - first + 1)
    return used, most / per_s


async def rates(bench: Bench) -> None:
    """Steady starts of worker processes, of those that a rate allows."""
    for is_smooth in (False, True):
        for per_s in (10, 100, 1_000):
            for workers in (1, 2, 4):
                used, most = [], []
                for i in range(min(3, bench.repeats)):
                    folder = bench.folder / f"{per_s}-{workers}-{is_smooth}-{i}"
                    rate = f"{per_s}/s smooth" if is_smooth else f"{per_s}/s"
                    async with serving(folder) as url:
                        n = int(per_s * (SECONDS + WARM_S + UP_S / 4))
                        one = _used(await _starts(url, rate, workers, n), per_s)
                    used.append(one[0])
                    most.append(one[1])
                bench.add(
                    Result(
                        "starts of a rate that is asked for",
                        {"rate": rate, "workers": workers},
                        "of n",
                        used,
                        goal=USED,
                        more={"most_in_a_window_of_n": max(most)},
                    )
                )
