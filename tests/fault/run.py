"""Every site of every plan, in pieces that add up in the ledger.

python tests/fault/run.py                     # go on where the last piece ended
python tests/fault/run.py --minutes 8         # not longer than that
python tests/fault/run.py --plan 17 --nth 3   # one site again
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crash.nursery import Nursery
from fault import sites
from fault.injector import compiled, preloaded
from fault.judge import BrokenError
from ledger import Ledger

GATE = "faults"
BROKEN_MAX = 5  # of one plan: the rest would say the same
Done = tuple[int, list[str]]  # sites judged, what broke


class Runner:
    """Plans by number, each on a nursery that is free."""

    def __init__(self, library: Path, folder: Path, until: float) -> None:
        self.library = library
        self.folder = folder
        self.until = until
        self.plans = sites.plans()
        self.killed: dict[Nursery, sites.Killed] = {}
        self.free: queue.SimpleQueue[Nursery] = queue.SimpleQueue()

    def run(self, number: int) -> Done | None:
        """All sites of a plan; None if there is no time left to begin it."""
        if time.monotonic() > self.until:
            return None
        nursery = self.free.get()
        try:
            killed = self._killed_by(nursery)
            return self._run(nursery, number, killed)
        finally:
            self.free.put(nursery)

    def _killed_by(self, nursery: Nursery) -> sites.Killed:
        """Each nursery has killed stores of its own."""
        if nursery not in self.killed:
            folder = self.folder / f"killed{len(self.killed)}"
            folder.mkdir()
            self.killed[nursery] = sites.Killed(nursery, self.library, folder)
        return self.killed[nursery]

    def _run(self, nursery: Nursery, number: int, killed: sites.Killed) -> Done:
        broken: list[str] = []
        for nth in itertools.count(1):
            folder = self.folder / f"{number}-{nth}"
            plan = self.plans[number]
            try:
                if not sites.met(nursery, self.library, folder, plan, nth, killed):
                    return nth - 1, broken
            except BrokenError as error:
                broken.append(str(error))
                if len(broken) == BROKEN_MAX:
                    return nth, broken
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        raise AssertionError("unreachable")


@contextlib.contextmanager
def runner(workers: int, seconds: float) -> Iterator[Runner]:
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(dir=sites.scratch(), ignore_cleanup_errors=True)
            )
        )
        library = compiled(folder)
        if library is None:
            sys.exit("no C compiler: the injector cannot be made")
        made = Runner(library, folder, time.monotonic() + seconds)
        for _ in range(workers):
            made.free.put(stack.enter_context(preloaded(library)))
        yield made


def everything(workers: int, seconds: float) -> int:
    """From where the ledger ends; returns how many sites were broken."""
    ledger = Ledger.default()
    first = -(-ledger.next_start(GATE) // sites.STRIDE)
    total = failed = 0
    with runner(workers, seconds) as made, ThreadPoolExecutor(workers) as pool:
        began = time.monotonic()
        for number, done in enumerate(pool.map(made.run, range(first, len(made.plans))), first):
            if done is None:
                break
            count, broken = done
            total, failed = total + count, failed + len(broken)
            for text in broken:
                print(f"BROKEN {text}", flush=True)
            took, began = time.monotonic() - began, time.monotonic()
            # ``start`` and ``done`` say what is covered; a plan ends where the next one begins.
            ledger.add(
                GATE,
                start=number * sites.STRIDE,
                done=count,
                failed=len(broken),
                seconds=took,
                plan=str(made.plans[number]),
            )
    print(f"{total} sites, {failed} broken; {ledger.total(GATE)} in all")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Every place a fault can strike.")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--plan", type=int, help="one plan only, by number")
    parser.add_argument("--nth", type=int, help="with --plan: one site only")
    args = parser.parse_args()
    if args.plan is None:
        return min(1, everything(args.workers, args.minutes * 60))
    with runner(1, 3600) as made:
        print(f"plan {args.plan} of {len(made.plans)}: {made.plans[args.plan]}")
        if args.nth is None:
            count, broken = made.run(args.plan) or (0, [])
        else:
            folder = made.folder / "one"
            nursery, count, broken = made.free.get(), 1, []
            killed = made._killed_by(nursery)
            try:
                sites.met(nursery, made.library, folder, made.plans[args.plan], args.nth, killed)
            except BrokenError as error:
                broken = [str(error)]
    print(f"{count} sites", *broken, sep="\n")
    return min(1, len(broken))


if __name__ == "__main__":
    sys.exit(main())
