"""Claims and opens by how many tasks wait, and how many there were: neither may slow a claim."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from results import Bench, Goal, Result

CHILD = Path(__file__).parents[1] / "backlog.py"
SLOWER = Goal("ratio", least=0.9)
RSS_AT_10M = Goal("median", most=600)
OPEN = Goal("median", most=2.0)


async def _child(*args: str) -> dict[str, Any]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(CHILD), *args],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    if not done.stdout.strip():
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return {}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _clear(path: Path) -> None:
    for folder in (path, Path(f"{path}-few")):
        shutil.rmtree(folder, ignore_errors=True)


async def backlogs(bench: Bench) -> None:
    """Claims at 100,000, 1 M (and, in the full run, 10 M) pending, and after as many consumed."""
    sizes = [100_000, 1_000_000, *([10_000_000] if bench.scale >= 1 else [])]
    for n in sizes:
        path = bench.folder / f"backlog-{n}"
        found = await _child("fill", str(path), str(n), "drain")
        _clear(path)
        for case, name in (("claims at a backlog", "backlog"), ("claims after a history", "after")):
            bench.add(
                Result(
                    case,
                    {"tasks": n, "durability": "nosync"},
                    "claims/s",
                    found[name],
                    "1,000 pending, fresh",
                    found[f"{name}_few"],
                    goal=SLOWER if n >= 1_000_000 else None,
                    more={"enqueued/s": found["enqueue_rate"], "drained/s": found["drain_rate"]},
                )
            )
        bench.add(
            Result(
                "resident memory",
                {"pending": n},
                "MiB",
                [found["pending_rss_mib"]],
                goal=RSS_AT_10M if n == 10_000_000 else None,
                more={"after_consuming_mib": round(found["after_rss_mib"], 1)},
            )
        )


async def opening(bench: Bench) -> None:
    """Open with 1 M pending: after a clean close, and after SIGKILL."""
    n = 1_000_000 if bench.scale >= 1 else 300_000
    for end in ("clean close", "SIGKILL"):
        path = bench.folder / "opening"
        await _child("fill", str(path), str(n), *(["close"] if end == "clean close" else []))
        found = await _child("reopen", str(path))
        again = [await _child("reopen", str(path)) for _ in range(bench.repeats - 1)]
        _clear(path)
        # After SIGKILL only the first open replays; the ones after it follow a clean close.
        runs = [found["open_s"], *([one["open_s"] for one in again] if end != "SIGKILL" else [])]
        bench.add(
            Result(
                "open",
                {"after": end, "pending": int(found["pending"])},
                "s",
                runs,
                goal=OPEN,
                more={"first_claim_s": round(found["first_claim_s"], 3)},
            )
        )


def written_bytes() -> int:
    """Count the bytes this process has written so far, as the kernel counts the block layer's."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def disk_bytes(top: Path | str) -> int:
    """The bytes of a folder."""
    total = 0
    for folder, _, names in os.walk(top):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:  # compacted away meanwhile
                continue
    return total
