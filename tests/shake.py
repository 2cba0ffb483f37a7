"""The quick tests on a bad day: in random order on a busy machine, on one core, on a slow disk.

No test may measure the machine: what fails here and nowhere else is a bug, mostly of the test. A
run is repeated by the command that is printed for it. ``make shake ONLY="disk"`` runs one kind.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
BUSY = 4
KINDS = {  # of runs: how often
    "busy": 3,
    "core": 1,
    "disk": 1,
}


def spin() -> None:
    """Burn a core."""
    while True:
        pass


@contextlib.contextmanager
def beside_busy_loops() -> Iterator[None]:
    """Keep more processes busy than there are cores."""
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(BUSY)]
    for one in loops:
        one.start()
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.join()


def slow_disk(folder: Path) -> dict[str, str]:
    """The environment in which every sync takes 20 ms longer."""
    library = folder / "slow_sync.so"
    compiler = os.environ.get("CC", "cc")
    source = TESTS / "slow_sync.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def main() -> int:
    """Run them; how many failed is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", choices=[[], *KINDS], help="kinds of runs")
    only = parser.parse_args().only or list(KINDS)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in [name for name in only for _ in range(KINDS[name])]:
            draw = random.SystemRandom()
            options = slow_disk(Path(folder)) if kind == "disk" else {}
            order = str(draw.randrange(1 << 32))
            command = [sys.executable, "-m", "pytest", "--tier=commit", f"--shuffle={order}", "-q"]
            command += ["-n", "1" if kind == "core" else "auto", "--at-least=1000"]
            if kind == "core":
                command = ["taskset", "-c", "0", *command]
            setting = " ".join(f"{key}={value}" for key, value in options.items())
            print(f"== {kind}: {setting} {shlex.join(command)}", flush=True)
            started = time.monotonic()
            with beside_busy_loops() if kind == "busy" else contextlib.nullcontext():
                code = subprocess.run(
                    command, cwd=TESTS.parent, env=os.environ | options, check=False
                ).returncode
            print(f"== {kind}: exit {code}, {time.monotonic() - started:.0f} s", flush=True)
            failed += code != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
