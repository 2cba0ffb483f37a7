"""``make bench``: what the engine promises about speed, against raw rocksdict in the same process.

Medians over repeats that alternate with the ceiling, so that a slow minute hits both. Absolute
figures are this machine's, the ratios travel. ``--json FILE`` keeps everything; ``--quick`` runs
fewer repeats and a smaller backlog; ``--only NAME`` runs one measure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import load
import raw
from looplag import LoopLag

import lodeq
from lodeq import NewTask

Row = tuple[str, str, str, str]


class Report:
    """The table being filled."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.data: dict[str, Any] = {}

    def add(self, what: str, figure: str, target: str, good: bool, **data: Any) -> None:
        """One line, shown at once."""
        self.rows.append((what, figure, target, "yes" if good else "NO"))
        self.data[what] = data
        print(f"{'  ok' if good else 'MISS'}  {what}: {figure}   (target {target})", flush=True)


def median(values: list[float]) -> float:
    """Middle value."""
    return statistics.median(values)


def spread(values: list[float]) -> str:
    """Least and greatest."""
    return f"{min(values):,.0f} to {max(values):,.0f}"


async def cycles(report: Report, folder: str, repeats: int, scale: float) -> None:
    """Single calls, batches and a lone caller against the ceiling."""
    db = raw.open_raw(f"{folder}/raw")
    in_64s = raw.cycles(db, int(64_000 * scale), 64)
    one_by_one = raw.cycles(db, int(20_000 * scale), 1)
    figures: dict[str, list[float]] = {k: [] for k in ("raw64", "raw1", "single", "batch", "solo")}
    async with lodeq.open(f"{folder}/cycles") as engine:
        await load.single_calls(engine, 1.0)
        for _ in range(repeats):
            figures["raw64"].append(next(in_64s))
            figures["single"].append(await load.single_calls(engine, 3.0 * scale))
            figures["raw64"].append(next(in_64s))
            figures["batch"].append(await load.batches(engine, int(100_000 * scale)))
            figures["raw1"].append(next(one_by_one))
            figures["solo"].append(await load.one_caller(engine, int(20_000 * scale)))
    db.close()
    m = {name: median(values) for name, values in figures.items()}
    for what, name, base, target in (
        ("full cycles, single calls (32 producers, 128 workers)", "single", "raw64", 0.25),
        ("full cycles, batches of 64", "batch", "raw64", 0.4),
        ("full cycles, one caller alone", "solo", "raw1", 0.25),
    ):
        ratio = m[name] / m[base]
        report.add(
            what,
            f"{m[name]:,.0f}/s = {ratio:.3f} of raw {m[base]:,.0f}/s ({spread(figures[name])})",
            f">= {target} of raw",
            ratio >= target,
            median=m[name], raw=m[base], ratio=ratio, runs=figures[name], raw_runs=figures[base],
        )  # fmt: skip


async def fsync(report: Report, folder: str, repeats: int, scale: float) -> None:
    """256 callers, every acknowledgement synced, against synced writes one after another."""
    db = raw.open_raw(f"{folder}/raw-sync")
    rates: dict[str, list[float]] = {"one": [], "fsync": [], "nosync": []}
    async with (
        lodeq.open(f"{folder}/fsync", durability="fsync") as durable,
        lodeq.open(f"{folder}/nosync") as fast,
    ):
        for _ in range(repeats):
            rates["one"].append(raw.synced_writes(db, 1.5 * scale))
            rates["fsync"].append(await load.operations(durable, 3.0 * scale, 256))
            rates["nosync"].append(await load.operations(fast, 3.0 * scale, 256))
        latency = (await durable.stats()).shards[0].fsync
    db.close()
    m = {name: median(values) for name, values in rates.items()}
    times, share = m["fsync"] / m["one"], m["fsync"] / m["nosync"]
    report.add(
        "fsync, 256 callers, acknowledged operations",
        f"{m['fsync']:,.0f}/s = {times:.1f} x one synced write after another ({m['one']:,.0f}/s); "
        f"fsync p50 {latency.p50_us} us, p99 {latency.p99_us} us",
        ">= 12 x",
        times >= 12,
        **rates,
    )
    report.add(
        "fsync against NoSync, 256 callers", f"{share:.2f} of {m['nosync']:,.0f}/s", ">= 0.5",
        share >= 0.5,
    )  # fmt: skip


async def loop(report: Report, folder: str, repeats: int, scale: float) -> None:
    """The longest the loop is away under the single-call load."""
    async with lodeq.open(f"{folder}/loop") as engine:
        await load.single_calls(engine, 1.0)
        with LoopLag() as lag:
            await load.single_calls(engine, 10.0 * scale)
        s = lag.summary()
    report.add(
        "longest loop iteration under the single-call load",
        f"{s['wall_max_ms']} ms wall, {s['cpu_max_ms']} ms CPU (99.9 %: {s['wall_p999_ms']} ms)",
        "< 20 ms",
        s["wall_max_ms"] < 20,
        **s,
    )


async def stall(report: Report, folder: str, repeats: int, scale: float) -> None:
    """The same while RocksDB refuses writes for half a second, as a stalled store does."""
    async with lodeq.open(f"{folder}/stall") as engine:
        co: Any = engine._core.shards[0].co
        store = co.store
        until = 0.0

        class Refusing:
            @staticmethod
            def write(ops: Any) -> None:
                if time.perf_counter() < until:
                    raise lodeq.StoreStalledError("stalled by the benchmark")
                store.write(ops)

        co.store = Refusing
        running = asyncio.create_task(load.single_calls(engine, 5.0 * max(scale, 0.5)))
        await asyncio.sleep(1.0)
        with LoopLag() as lag:
            until = time.perf_counter() + 0.5
            await asyncio.sleep(1.0)
        rate = await running
        stalls = (await engine.stats()).shards[0].stalls
        co.store = store
    s = lag.summary()
    report.add(
        "longest loop iteration while the store stalls for 0.5 s",
        f"{s['wall_max_ms']} ms wall, {s['cpu_max_ms']} ms CPU; {stalls} refused writes, "
        f"{rate:,.0f} cycles/s all in all",
        "< 20 ms",
        s["wall_max_ms"] < 20 and stalls > 0,
        **s,
    )


async def reaper(report: Report, folder: str, repeats: int, scale: float) -> None:
    """100,000 leases that expire together."""
    n = int(100_000 * scale)
    async with lodeq.open(f"{folder}/reaper") as engine:
        queue = engine.queue("reaper")
        for _ in range(n // 1000):
            await queue.enqueue_many([NewTask(load.PAYLOAD)] * 1000)
        length = 6.0
        claimed = 0
        started = time.perf_counter()
        while claimed < n:
            left = max(0.05, length - (time.perf_counter() - started))
            claimed += len(await queue.claim(limit=1000, lease=left))
        expiry = started + length
        await asyncio.sleep(max(0.0, expiry - 0.2 - time.perf_counter()))
        with LoopLag() as lag:
            while (await queue.stats()).leased:  # noqa: ASYNC110 - polling is the measurement
                await asyncio.sleep(0.01)
        took = time.perf_counter() - expiry
        ready = (await queue.stats()).ready
    s = lag.summary()
    report.add(
        f"{n:,} leases expire together",
        f"back in {took:.2f} s ({ready:,} ready), longest loop iteration {s['wall_max_ms']} ms",
        "seconds, < 20 ms",
        took < 10 and s["wall_max_ms"] < 20 and ready == n,
        seconds=took, **s,
    )  # fmt: skip


KINDS = ("rate", "empty", "ratio")


async def backlog(report: Report, folder: str, repeats: int, scale: float) -> None:
    """A million pending, a million consumed, open after SIGKILL: in processes of their own."""
    n = int(1_000_000 * scale)
    script, path = Path(__file__).with_name("backlog.py"), f"{folder}/backlog"

    def child(*args: str) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, str(script), *args], capture_output=True, text=True, timeout=900
        )
        if not done.stdout.strip():
            raise RuntimeError(done.stderr[-2000:])
        figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return figures

    a = await asyncio.to_thread(child, "fill", path, str(n))
    b = await asyncio.to_thread(child, "reopen", path)
    shutil.rmtree(path)
    shutil.rmtree(f"{path}-empty")
    c = await asyncio.to_thread(child, "fill", path, str(n), "drain")
    pending = {of: median([a[f"backlog_{of}"], c[f"backlog_{of}"]]) for of in KINDS}
    consumed = {of: c[f"after_{of}"] for of in KINDS}
    for what, of in (
        (f"claims at {n:,} pending", pending),
        (f"claims after {n:,} consumed", consumed),
    ):
        report.add(
            what, f"{of['rate']:,.0f}/s = {of['ratio']:.2f} of an empty queue's "
            f"{of['empty']:,.0f}/s beside it", ">= 0.8", of["ratio"] >= 0.8, **of,
        )  # fmt: skip
    rss = max(a["pending_rss_mib"], c["pending_rss_mib"])
    report.add(
        f"resident memory at {n:,} pending", f"{rss:.0f} MiB (after consuming: "
        f"{c['after_rss_mib']:.0f} MiB)", "< 400 MiB", rss < 400, first=a, second=c,
    )  # fmt: skip
    report.add(
        f"open after SIGKILL at {b['pending']:,.0f} pending",
        f"{b['open_s']:.2f} s, first claim after {b['first_claim_s']:.2f} s", "< 2 s",
        b["open_s"] < 2, **b,
    )  # fmt: skip


MEASURES: dict[str, Callable[[Report, str, int, float], Awaitable[None]]] = {
    "cycles": cycles,
    "fsync": fsync,
    "loop": loop,
    "stall": stall,
    "reaper": reaper,
    "backlog": backlog,
}


def main() -> int:
    """Run the measures, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(MEASURES), action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", help="where the stores go (default: a temporary folder)")
    args = parser.parse_args()
    repeats, scale = (2, 0.3) if args.quick else (args.repeats, 1.0)
    report = Report()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name in args.only or MEASURES:
        folder = tempfile.mkdtemp(prefix="lodeq-bench-", dir=args.dir)
        try:
            asyncio.run(MEASURES[name](report, folder, repeats, scale))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n| measure | figure | target | met |\n|---|---|---|---|")
    for row in report.rows:
        print("| " + " | ".join(row) + " |")
    if args.json:
        about = {"machine": platform.platform(), "cores": os.cpu_count(),
                 "python": platform.python_version(), "lodeq": lodeq.__version__}  # fmt: skip
        args.json.write_text(json.dumps({"about": about, "measures": report.data}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
