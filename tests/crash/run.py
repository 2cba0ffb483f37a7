"""Kills on demand, in pieces: ``python tests/crash/run.py --kills 10000``.

So many in each durability mode, half of them over one shard and half over four, one mode a core.
The ledger (gates ``kill-nosync`` and ``kill-fsync``) knows where to go on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from crash.nursery import Nursery
from crash.rounds import ROUND_CYCLES, Round
from ledger import Ledger

from lodeq.testing import BrokenError

PIECE_ROUNDS = 10


def piece(mode: str, start: int, cycles: int) -> tuple[int, list[str], int]:
    """(kills, what is wrong, acknowledged operations) of the rounds from ``start`` on."""
    broken: list[str] = []
    done = acked = 0
    with Nursery() as nursery, tempfile.TemporaryDirectory(prefix="lodeq-kills-") as folder:
        while done < cycles:
            number = (start + done) // ROUND_CYCLES
            path = Path(folder) / str(number)
            one = Round(nursery, path, mode, (1, 4)[number % 2], seed=number)
            try:
                one.run(min(ROUND_CYCLES, cycles - done))
            except BrokenError as error:
                broken.append(f"{mode}, round {number}: {error}")
            acked += one.history.acked
            done += ROUND_CYCLES
            shutil.rmtree(path)
    return done, broken, acked


def run(mode: str, kills: int, seconds: float) -> int:
    """Pieces until so many kills are in the ledger or the time is over; how many failed."""
    ledger, gate, failed = Ledger.default(), f"kill-{mode}", 0
    until, parent = time.monotonic() + seconds, os.getppid()
    while (start := ledger.next_start(gate)) < kills and time.monotonic() < until:
        if os.getppid() != parent:
            break  # interrupted: nobody is there to be told
        begun = time.monotonic()
        done, broken, acked = piece(mode, start, min(kills - start, PIECE_ROUNDS * ROUND_CYCLES))
        took = time.monotonic() - begun
        failed += len(broken)
        ledger.add(gate, start=start, done=done, failed=len(broken), seconds=took, acked=acked)
        print(
            f"{mode}: {start + done:,} kills, {done / took * 60:.0f} a minute, {acked:,} "
            "acknowledged operations in this piece",
            *broken,
            sep="\n",
            flush=True,
        )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10_000, help="in each mode (10,000)")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no piece after so long")
    told = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        jobs = [(mode, told.kills, told.seconds) for mode in ("nosync", "fsync")]
        failed = sum(pool.starmap(run, jobs))
    print(Ledger.default().report())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
