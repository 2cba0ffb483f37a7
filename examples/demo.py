"""Kill a working queue twice, and prove that every task was done exactly once.

    python examples/demo.py [nosync|fsync] [--files 3000] [--shards 2]

The input is on every machine: the source of Python's own standard library. A child process opens
a store, walks those files and enqueues one task each, while its workers take them under leases,
hash each file and count its lines and definitions. This process watches, kills the child with
SIGKILL twice on the way, starts it again, and in the end opens the store itself and checks every
result against the files. It leaves with 1 if anything is missing, repeated or wrong.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import hashlib
import json
import select
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lodeq

KILL_AT = (0.3, 0.65)  # of all files
WORKERS = 8
REPORT_S = 0.02
QUIET_S_MAX = 60.0  # a child that says nothing for so long has failed
ROOT = Path(sysconfig.get_path("stdlib"))


def files(bound: int) -> list[str]:
    """The names of the input, at most ``bound``."""
    found = (path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py")))
    return [str(name) for name in found if "site-packages" not in name.parts][:bound]


def digest(name: str) -> str:
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


# -- the child: the service with the queue inside ----------------------------------------------


def examine(name: str) -> dict[str, Any]:
    """The work: what is in one file."""
    source = (ROOT / name).read_bytes()
    definitions = 0
    try:
        for node in ast.walk(ast.parse(source)):
            definitions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    except (SyntaxError, ValueError, RecursionError):  # the library has bad files to test with
        definitions = -1
    return {
        "file": name,
        "sha256": hashlib.sha256(source).hexdigest(),
        "lines": source.count(b"\n"),
        "definitions": definitions,
    }


async def enqueue_all(queue: lodeq.Queue, bound: int) -> None:
    """One task a file. The dedup key outlives the task: a restart enqueues nothing twice."""
    names = files(bound)
    for at in range(0, len(names), 32):
        await queue.enqueue_many(
            [
                lodeq.NewTask(name, dedup_key=name, dedup_window=3600.0)
                for name in names[at : at + 32]
            ]
        )
        await asyncio.sleep(0)


async def work(queue: lodeq.Queue, name: str) -> None:
    """Claim, examine, complete, until cancelled."""
    async with queue.leases(limit=4, wait=1.0, worker=name) as stream:
        async for lease in stream:
            async with lease:
                await lease.complete(await asyncio.to_thread(examine, lease.payload))


async def report(engine: lodeq.Engine, queue: lodeq.Queue) -> None:
    """One line to the parent: where things stand, and what the commit loops measured."""
    counts, stats = await queue.stats(), await engine.stats()
    shards = stats.shards
    line = {
        "done": counts.results,
        "open": counts.pending + counts.leased,
        "recoveries": list(stats.recoveries),
        "submissions": sum(shard.submissions for shard in shards),
        "commits": sum(shard.commits for shard in shards),
        "fsyncs": sum(shard.syncs for shard in shards),
        "merges": [pair for shard in shards for pair in shard.merge_sizes],
        "commit_us": [max(x.commit.p50_us for x in shards), max(x.commit.p99_us for x in shards)],
        "fsync_us": [max(x.fsync.p50_us for x in shards), max(x.fsync.p99_us for x in shards)],
    }
    print(json.dumps(line), flush=True)


async def child(path: str, mode: Any, bound: int, shards: int) -> None:
    """One life of the service."""
    warnings.simplefilter("ignore")  # of the files that are parsed
    async with lodeq.open(path, durability=mode, shards=shards) as engine:
        queue = engine.queue("files")
        enqueuing = asyncio.create_task(enqueue_all(queue, bound))
        workers = [asyncio.create_task(work(queue, f"w{i}")) for i in range(WORKERS)]
        while not enqueuing.done() or (await queue.stats()).pending + (await queue.stats()).leased:
            await report(engine, queue)
            await asyncio.sleep(REPORT_S)
            for task in workers:
                if task.done():
                    task.result()
        await enqueuing
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await engine.fsync()
        await report(engine, queue)


# -- the parent: watches, kills, proves --------------------------------------------------------


class Screen:
    """Progress: one line that is rewritten on a terminal, a line per tenth elsewhere."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.last = -1

    def show(self, done: int, total: int, life: int) -> None:
        tenth = done * 10 // total
        text = f"{done:>6,} of {total:,} files done, {done * 100 // total:>3} %, life {life}"
        if self.is_terminal:
            print(f"\r{text}", end="", flush=True)
        elif tenth > self.last:
            self.last = tenth
            print(text, flush=True)

    def say(self, text: str) -> None:
        print(f"\n{text}" if self.is_terminal else text, flush=True)


def lines(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What a child reports, until it ends."""
    pipe = process.stdout
    while pipe is not None:
        if not select.select([pipe], [], [], QUIET_S_MAX)[0]:
            raise TimeoutError("the child says nothing")
        line = pipe.readline()
        if not line.endswith(b"\n"):  # the end, or a line that was cut off by the kill
            return
        yield json.loads(line)


def live(command: list[str], screen: Screen, total: int, number: int) -> tuple[dict[str, Any], int]:
    """One life of the child: its last report, and how it ended."""
    kill_at = KILL_AT[number - 1] * total if number <= len(KILL_AT) else total + 1
    last: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            for last in lines(process):
                screen.show(last["done"], total, number)
                if last["done"] >= kill_at and last["open"]:
                    process.kill()
                    break
        except BaseException:
            process.kill()
            raise
    return last, process.returncode


async def prove(path: str, expected: list[str]) -> tuple[list[lodeq.Result], list[str]]:
    """Every result, and everything that is wrong."""
    wrong: list[str] = []
    results: list[lodeq.Result] = []
    async with lodeq.open(path) as engine:
        queue = engine.queue("files")
        checked = await engine.verify()
        wrong += [f"verify: {finding}" for finding in checked.findings]
        counts = await queue.stats()
        if left := counts.pending + counts.leased + counts.dead:
            wrong.append(f"{left} tasks are not completed: {counts}")
        page: list[lodeq.Task] = []
        while page := await queue.list("completed", limit=500, after=page[-1] if page else None):
            found = [await engine.result(task.id) for task in page]
            results += [result for result in found if result is not None]
    times = Counter(result.value["file"] for result in results)
    wrong += [f"{name} has no result" for name in expected if name not in times]
    wrong += [f"{name} was completed {n} times" for name, n in times.items() if n > 1]
    wrong += [f"{name} was never asked for" for name in times.keys() - set(expected)]
    wrong += [
        f"{result.value['file']} has the wrong hash"
        for result in results
        if result.value["sha256"] != digest(result.value["file"])
    ]
    return results, wrong


def percentiles(values: list[float]) -> str:
    ordered = sorted(values) or [0.0]
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"p50 {p50 * 1e3:,.1f} ms, p99 {p99 * 1e3:,.1f} ms"


def tell(lives: list[dict[str, Any]], results: list[lodeq.Result], took_s: float) -> None:
    """What happened."""
    merges: Counter[int] = Counter()
    for life in lives:
        for size, commits in life["merges"]:
            merges[size] += commits
    commits, submissions = (sum(x[key] for x in lives) for key in ("commits", "submissions"))
    recoveries = [text for life in lives for text in life["recoveries"]]
    again = sum(result.attempts > 1 for result in results)
    work = [(r.finished_at - r.leased_at).total_seconds() for r in results if r.leased_at]
    wait = [(r.leased_at - r.enqueued_at).total_seconds() for r in results if r.leased_at]
    print(f"tasks        {len(results):,} in {took_s:.1f} s, {len(results) / took_s:,.0f} a second")
    print(
        f"content      {sum(r.value['lines'] for r in results):,} lines, "
        f"{sum(max(0, r.value['definitions']) for r in results):,} definitions"
    )
    print(f"run again    {again} tasks that a killed worker held (attempt 2 or 3)")
    per = submissions / commits
    print(f"commits      {commits:,} for {submissions:,} calls, {per:.1f} a commit")
    print("merge sizes  " + ", ".join(f"{size}: {n:,}" for size, n in sorted(merges.items())))
    print(f"fsyncs       {sum(life['fsyncs'] for life in lives):,}")
    for name in ("commit", "fsync"):
        p50, p99 = (max(life[f"{name}_us"][i] for life in lives) for i in (0, 1))
        print(f"{name:<12} p50 {p50 / 1e3:,.2f} ms, p99 {p99 / 1e3:,.2f} ms (worst life)")
    print(f"waited       {percentiles(wait)} from enqueue to lease")
    print(f"worked       {percentiles(work)} from lease to complete")
    print(f"recoveries   {len(lives)} lives; repairs: {'; '.join(recoveries) or 'none needed'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("durability", nargs="?", choices=("nosync", "fsync"), default="nosync")
    parser.add_argument("--files", type=int, default=3000, help="at most so many (3000)")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        asyncio.run(child(args.child, args.durability, args.files, args.shards))
        return 0
    expected = files(args.files)
    if not expected:
        parser.error(f"there is nothing to do: no files (of {ROOT})")
    screen = Screen()
    print(f"{len(expected):,} files of {ROOT}, {args.durability}, {args.shards} shards", flush=True)
    with tempfile.TemporaryDirectory(prefix="lodeq-demo-") as folder:
        path = str(Path(folder) / "store")
        command = [
            sys.executable,
            __file__,
            args.durability,
            f"--files={args.files}",
            f"--shards={args.shards}",
            f"--child={path}",
        ]
        lives: list[dict[str, Any]] = []
        started, status = time.monotonic(), -1
        while status and len(lives) <= len(KILL_AT):
            last, status = live(command, screen, len(expected), len(lives) + 1)
            if not last:
                sys.exit(f"life {len(lives) + 1} ended with {status} before it could report")
            lives.append(last)
            if status:
                screen.say(f"life {len(lives)} ended with {status}; {last['open']} tasks were open")
        took_s = time.monotonic() - started
        results, wrong = asyncio.run(prove(path, expected))
    screen.say("")
    if status:
        wrong.append(f"the last life ended with {status}")
    tell(lives, results, took_s)
    for text in wrong[:20]:
        print(f"WRONG        {text}")
    if not wrong:
        print(
            f"proved       each of {len(expected):,} files completed exactly once, "
            f"after {len(lives) - 1} kills"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
