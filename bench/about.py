"""Describe what figures were measured on: machine, versions, and the disk's own sync."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import lodeq

__all__ = ["about", "sync_us"]

PACKAGES = ("lodeq", "rocksdict", "msgpack", "xxhash", "fastcrc", "anyio", "uvloop")


def _first(path: str, start: str) -> str:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(start):
                return line.partition(":")[2].strip()
    return "unknown"


def _file_system(folder: Path) -> str:
    best = ("", "unknown")
    with open("/proc/mounts", encoding="utf-8") as lines:
        for line in lines:
            _, at, kind, *_ = line.split()
            if os.path.commonpath([at, folder]) == at and len(at) >= len(best[0]):
                best = (at, kind)
    return best[1]


def _commit() -> str:
    told = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def about(folder: Path, loop: str = "asyncio") -> dict[str, Any]:
    """Collect what a reader needs to judge the figures."""
    sync = sync_us(folder, 200)
    return {
        "machine": platform.machine(),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "file_system": _file_system(folder.resolve()),
        "fdatasync_p50_us": round(statistics.median(sync)),
        "fdatasync_p99_us": round(sync[len(sync) * 99 // 100]),
        "python": platform.python_version(),
        "commit": _commit(),
        "build": "compiled" if lodeq.COMPILED else "interpreted",
        "loop": loop,
        "versions": {name: v for name in PACKAGES if (v := _version(name)) is not None},
    }


def sync_us(folder: Path, n: int, *, write_bytes: int = 512, busy_s: float = 0.0) -> list[float]:
    """Measure how long the disk takes to sync a small append. Returns the times, sorted.

    Between two of them this thread computes for ``busy_s``, as who syncs a queue does: after a gap
    a sync takes longer, and of what happens ten times a second each of fewer syncs meets more.
    """
    took = []
    path = folder / "sync-probe"
    with open(path, "wb", buffering=0) as file:
        for _ in range(n):
            file.write(bytes(write_bytes))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            ended = time.perf_counter()
            took.append((ended - began) * 1e6)
            while time.perf_counter() < ended + busy_s:
                pass
    path.unlink()
    return sorted(took)
