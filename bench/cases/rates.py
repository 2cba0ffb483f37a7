"""How much of a rate is used under load: starts of worker processes on one served store.

Then the same while one of them is killed in the middle, with SIGKILL, and another has started for
it: its leases run out, and what it had begun counts as started.
"""

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
from lodeq.repository.model.queue_settings import parse_rate

USED = Goal("median", least=0.9)
NO_MORE = Goal("median", most=1.0)
SECONDS = 5.0  # of load that count
CLOCKS_S = 0.001  # a limit counts by another clock than the one that a result shows
HELD_MAX = 256  # tasks that nobody has ended, before those that nobody has begun
WARM_S = 1.0  # before them, once all workers are there
UP_S = 60.0


async def _starts(
    url: str, rate: str, workers: int, n: int, *, is_killed: bool = False
) -> list[float]:
    """Seconds at which tasks were claimed, in order: for each run of each task.

    With ``is_killed`` one worker is killed in the middle of those that count.
    """
    async with lodeq.connect(url) as client:
        receipts = await client.queue("work").enqueue_many([lodeq.NewTask({}) for _ in range(n)])
        crew = [await _work(url, f"w{i}", rate) for i in range(workers)]
        try:
            async with asyncio.timeout(UP_S):
                while len(await client.workers()) < workers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await asyncio.sleep(WARM_S)
            if is_killed:
                began = asyncio.get_running_loop().time()
                crew.append(await _work(url, "instead", rate))
                async with asyncio.timeout(UP_S):
                    while len(await client.workers()) <= workers:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                up_s = asyncio.get_running_loop().time() - began
                await asyncio.sleep(max(0.0, SECONDS / 2 - up_s))
                crew[0].kill()
                await asyncio.sleep(SECONDS / 2)
            else:
                await asyncio.sleep(SECONDS)
        finally:
            for worker in crew:
                if worker.returncode is None:
                    worker.send_signal(signal.SIGTERM)
            for worker in crew:
                await worker.wait()
        starts, missing = [], 0
        for receipt in receipts:
            result = await client.result(receipt.id)
            if result is None:
                missing += 1
                if missing > HELD_MAX:
                    break  # they start in order, but for the last few, and what the dead one held
            elif result.attempts > 1:
                runs = await client.attempts(receipt.id)
                starts += [one.started_at.timestamp() for one in runs if one.started_at is not None]
            elif result.leased_at is not None:
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


def _used(starts: list[float], per_s: int) -> float:
    """Return the steady starts a second, of n.

    Steady are as many starts as whole seconds allow: bursts at the edges do not count by chance.
    """
    steady = [at for at in starts if at >= starts[-1] - SECONDS]
    seconds = (len(steady) - 1) // per_s
    return seconds / (steady[seconds * per_s] - steady[0]) if seconds else 0.0


def _most(starts: list[float], n: int, period_s: float) -> float:
    """Return the most starts in any window of that length, of n."""
    most, first = 0, 0
    for last, at in enumerate(starts):
        while starts[first] <= at - period_s + CLOCKS_S:
            first += 1
        most = max(most, last - first + 1)
    return most / n


async def rates(bench: Bench) -> None:
    """Steady starts of worker processes, of those that a rate allows."""
    for is_smooth, is_killed in ((False, False), (True, False), (False, True), (True, True)):
        for per_s in (10, 100, 1_000):
            for workers in (1, 2, 4):
                used, most = [], []
                for i in range(min(3, bench.repeats)):
                    folder = bench.folder / f"{per_s}-{workers}-{is_smooth}-{is_killed}-{i}"
                    rate = f"{per_s}/s smooth" if is_smooth else f"{per_s}/s"
                    n = int(per_s * (SECONDS + WARM_S + UP_S / 4))
                    async with serving(folder) as url:
                        starts = await _starts(url, rate, workers, n, is_killed=is_killed)
                    used.append(_used(starts, per_s))
                    count, period_ms = parse_rate(rate)  # of a smooth one that which is stored
                    few = _most(starts, count, period_ms / 1000)
                    most.append(max(few, _most(starts, per_s, 1.0)))
                params = {"rate": rate, "workers": workers}
                if is_killed:
                    params["killed"] = 1
                name = "starts of a rate that is asked for"
                bench.add(Result(name, params, "of n", used, goal=USED))
                name = "starts in the fullest window of a rate"
                bench.add(Result(name, params, "of n", most, goal=NO_MORE))
