"""Everything that a change has to pass in the end: what `.ci/run` samples, in full, and the rest.

``make proof`` runs all steps, ``make proof ONLY="spark power"`` those. A step that fails does not
stop the others. The output of each is in ``build/proof``; the table in the end is what they came
to. Each step adds a line to the ledger; ``make ledger`` writes docs/proof-ledger.md from it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ledger import Ledger, commit

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "proof"
LAST_LINES = 40
REST = "--tier=rest --numprocesses auto --dist worksteal -q -rs --durations=10"

# Folders of the suite that are steps of their own; everything else is the step `slow`.
FOLDERS = {
    "sim": ("tests/sim",),
    "model": ("tests/model",),
    "crash": ("tests/crash",),
    "power": ("tests/power",),
    "faults": ("tests/fault",),
    "rot": ("tests/rot",),
    "fuzz": ("tests/fuzz",),
    "cluster": ("tests/cluster", "tests/etcd"),
    "spark": ("tests/pipeline",),
    "browser": ("tests/service/dashboard",),
    "worker": ("tests/service/worker",),
    "pages": ("tests/pages",),
}
SIZES = {"LODEQ_SIM_SEEDS": "1500", "LODEQ_CRASH_CYCLES": "500", "LODEQ_POWER_IMAGES": "2500"}
COMPILED = "tests/unit tests/behaviour tests/conformance tests/sim/test_sim.py"


class Result(NamedTuple):
    """What a step came to: exit code, how long it took, tests that passed and failed."""

    code: int
    seconds: float
    passed: int
    failed: int


def steps() -> dict[str, str]:
    """Each step's command, the cheap ones first."""
    folders = " ".join(f"--ignore={one}" for some in FOLDERS.values() for one in some)
    return {
        "check": "make check docs",
        "coverage": "make coverage",
        "slow": f".venv/bin/pytest {REST} {folders}",
        **{name: f".venv/bin/pytest {REST} {' '.join(some)}" for name, some in FOLDERS.items()},
        "compiled": f'make test-compiled ARGS="--dist worksteal -q {COMPILED}"',
        "wheels": "make wheels ARGS=--here",
        "targets": ".ci/targets",
    }


def run(name: str, command: str) -> Result:
    """One step, its output in a file; the end of it is shown if it fails."""
    log, started = LOGS / f"{name}.log", time.monotonic()
    print(f"{name:<10} {command[:100]}", flush=True)
    with log.open("wb") as file:
        code = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=SIZES | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    text = log.read_text("utf-8", "replace")
    counts = {"passed": 0, "failed": 0, "error": 0}
    for number, word in re.findall(r"\b(\d+) (passed|failed|error)s?\b(?=.* in [\d.:]+)", text):
        counts[word] += int(number)
    result = Result(
        code, time.monotonic() - started, counts["passed"], counts["failed"] + counts["error"]
    )
    if code:
        print("\n".join(text.splitlines()[-LAST_LINES:]))
    said = "ok" if code == 0 else f"FAILED, exit {code}"
    print(f"{name:<10} {said}, {result.passed} passed, {result.seconds:.0f} s", flush=True)
    return result


def table(results: dict[str, Result]) -> str:
    """The results as a table in Markdown."""
    rows = [
        f"| {name} | {'ok' if one.code == 0 else f'exit {one.code}'} | {one.passed} | "
        f"{one.failed} | {one.seconds / 60:.1f} |"
        for name, one in results.items()
    ]
    head = ["| step | result | passed | failed | minutes |", "|---|---|---:|---:|---:|"]
    return "\n".join([f"proof of {commit()}", *head, *rows])


def main() -> int:
    """Run what was asked for."""
    known = steps()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", metavar="STEP", help=" ".join(known))
    only = parser.parse_args().only
    if unknown := set(only) - known.keys():
        parser.error(f"no such step: {' '.join(sorted(unknown))}; there are {' '.join(known)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    results: dict[str, Result] = {}
    ledger = Ledger.default()
    for name in only or known:
        if name == "compiled" and shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
            print("no C compiler: the compiled build is left out")
            continue
        results[name] = one = run(name, known[name])
        ledger.add(
            f"proof: {name}",
            start=0,
            done=one.passed,
            failed=max(one.failed, one.code != 0),
            seconds=one.seconds,
        )
    print(table(results))
    return any(one.code for one in results.values())


if __name__ == "__main__":
    sys.exit(main())
