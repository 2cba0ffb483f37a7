"""The model test at length, in pieces that add up: ``python tests/model/run.py --examples 500``.

Each piece of 50 examples has a seed, counted on from the last piece in the ledger, so the same
piece is the same examples. A failure prints its steps; ``--seed`` with the piece's number (and
nothing else changed) finds it again.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ledger import Ledger
from model.pieces import MACHINES, PIECE, play


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gate", choices=[*MACHINES], action="append")
    parser.add_argument("--examples", type=int, default=5000, help="up to this many in all")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=8.0, help="stop after the piece in hand")
    parser.add_argument("--seed", type=int, help="this piece only, not for the ledger")
    args = parser.parse_args()
    ledger, until = Ledger.default(), time.monotonic() + 60 * args.minutes
    for gate in args.gate or MACHINES:
        if args.seed is not None:
            play(MACHINES[gate], args.seed, PIECE, args.steps)
            continue
        while (start := ledger.next_start(gate)) < args.examples and time.monotonic() < until:
            began, failed = time.monotonic(), 0
            try:
                play(MACHINES[gate], start // PIECE, PIECE, args.steps)
            except BaseException:
                failed = 1
                raise
            finally:
                if failed or sys.exc_info()[0] is None:
                    ledger.add(
                        gate,
                        start=start,
                        done=PIECE,
                        failed=failed,
                        steps=args.steps,
                        seconds=time.monotonic() - began,
                        seed=start // PIECE,
                    )
            print(f"{gate}: {start + PIECE} of {args.examples}", flush=True)
    print(ledger.report())


if __name__ == "__main__":
    main()
