"""``make rot``: damage closed stores in 10,000 ways, and mix their files; see what comes back."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from crash.nursery import Nursery
from fault.judge import BrokenError
from fault.sites import scratch
from ledger import Ledger
from rot import mixed
from rot.cases import STORES, Rig

PIECE = 100


def piece(first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Cases ``first`` and on, each of one of the stores in turn."""
    outcomes: Counter[str] = Counter()
    broken = []
    with Nursery() as nursery, tempfile.TemporaryDirectory(dir=scratch()) as folder:
        rig = Rig(nursery, Path(folder))
        for number in range(first, first + count):
            try:
                outcomes += rig.run(STORES[number % len(STORES)], [number])
            except BrokenError as error:
                broken.append(f"case {number}: {error}")
    return outcomes, broken


def mixed_files() -> int:
    """Put files together that do not belong together; the number of cases that are broken."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        outcomes, broken = mixed.run_all(Path(folder))
    print(f"mixed files: {dict(sorted(outcomes.items()))}", *broken, sep="\n", flush=True)
    return len(broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no piece after so long")
    parser.add_argument("--case", type=int, help="this one only, not for the ledger")
    given = parser.parse_args()
    if given.case is not None:
        outcomes, broken = piece(given.case, 1)
        print(dict(outcomes), *broken, sep="\n")
        return 1 if broken else 0
    ledger, begun, total = Ledger.default(), time.monotonic(), 0
    first = ledger.next_start("rot")
    failed = mixed_files()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        while total < given.cases and time.monotonic() - begun < given.minutes * 60:
            start = time.monotonic()
            size = min(PIECE, -(-(given.cases - total) // 2))
            jobs = [(first + total, size), (first + total + size, size)]
            seen = pool.starmap(piece, jobs)
            outcomes = sum((one for one, _ in seen), Counter())
            broken = [line for _, lines in seen for line in lines]
            failed += len(broken)
            ledger.add(
                "rot",
                start=first + total,
                done=2 * size,
                failed=len(broken),
                seconds=time.monotonic() - start,
            )
            total += 2 * size
            print(
                f"{total:,} cases, {failed} broken: {dict(sorted(outcomes.items()))}",
                *broken,
                sep="\n",
                flush=True,
            )
    print(ledger.report())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
