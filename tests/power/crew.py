"""Worker processes for ``campaign`` and ``kills``: one a core, watched by the recorder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from power.shim import environment

KEEP = Path(tempfile.gettempdir()) / "lodeq-power-failures"


def cores() -> int:
    """How many may run at once."""
    return len(os.sched_getaffinity(0))


def run(module: str, orders: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
    """Give every order to a process of its own, all at once; the lines they print."""
    files = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in orders]  # noqa: SIM115
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(order)],
            env=environment(),
            stdout=out,
            stderr=err,
        )
        for order, (out, err) in zip(orders, files, strict=True)
    ]
    until = time.monotonic() + timeout
    told = []
    try:
        for process, (out, err) in zip(processes, files, strict=True):
            if process.wait(max(0.0, until - time.monotonic())):
                err.seek(0)
                raise RuntimeError(f"{module} ended with {process.returncode}: {err.read()!r}")
            out.seek(0)
            told += [json.loads(line) for line in out]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for file in (file for pair in files for file in pair):
            file.close()
    return told


def shares(seeds: list[int], **order: Any) -> list[dict[str, Any]]:
    """The seeds dealt out, one hand a core."""
    n = min(cores(), len(seeds))
    return [{**order, "seeds": seeds[i::n]} for i in range(n)]


def describe(told: dict[str, Any]) -> str:
    """A failed trace: what was wrong, and how to see it again."""
    lines = [f"trace {told['seed']}: {told['failed']} of {told['images']} images failed"]
    for failure in told["failures"]:
        at, policy, seed = failure["cut"]
        lines.append(f"  {failure['outcome']} under {policy}: {failure['why']}")
        if told["kept"]:
            again = f"python tests/power/run.py --again {told['kept']} {at} {policy} {seed}"
            lines.append(f"  again: {again}")
    return "\n".join(lines)


def table(all_told: list[dict[str, Any]]) -> str:
    """How the images opened, a line a policy."""
    counts: dict[str, dict[str, int]] = {}
    for told in all_told:
        for name, n in told["counts"].items():
            policy, outcome = name.split()
            row = counts.setdefault(policy, {})
            row[outcome] = row.get(outcome, 0) + n
    return "\n".join(
        f"{policy:<8}" + "".join(f"  {outcome} {n:>6}" for outcome, n in sorted(row.items()))
        for policy, row in sorted(counts.items())
    )
