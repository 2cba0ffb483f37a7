"""Fuzz the decoders at length: ``python tests/fuzz/run.py --inputs 10_000_000 [--target task]``.

In pieces of 100,000 with a seed each; the ledger counts them as ``fuzz-<target>``, so a run goes
on where the last one ended.
``--atheris`` lets libFuzzer look for inputs by coverage instead, from the corpus, for one target.
Whatever is found is written to ``tests/fuzz/corpus/<target>-<digest>`` and tested ever after.
"""

import argparse
import resource
import sys
import time
from pathlib import Path
from types import FunctionType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fuzz.mutate import check
from fuzz.pieces import PIECE, piece
from fuzz.targets import TARGETS
from ledger import Ledger

CODE = ("lodeq.engine", "lodeq.repository", "lodeq.segments")
MEMORY_BYTES = 1 << 30  # more than any decoder may ever want on top of the interpreter


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.RLIM_INFINITY))


def in_pieces(name, inputs, ledger, until):
    gate = f"fuzz-{name}"
    while (start := ledger.next_start(gate)) < inputs and time.monotonic() < until:
        began = time.monotonic()
        size = min(PIECE, inputs - start)
        try:
            taken, slowest = piece(name, start // PIECE, size)
        except Exception as error:
            ledger.add(
                gate,
                start=start,
                done=size,
                failed=1,
                error=repr(error)[:200],
                seconds=time.monotonic() - began,
            )
            raise
        seconds = time.monotonic() - began
        ledger.add(
            gate,
            start=start,
            done=size,
            failed=0,
            seconds=seconds,
            taken=taken,
            slowest_ms=round(slowest * 1000, 1),
        )
        print(f"{gate}: {start + size:,} of {inputs:,}, {size / seconds:,.0f} a second", flush=True)


def by_coverage(name, rest):
    """libFuzzer's mutations, guided by the branches of the pure Python they reach."""
    import atheris

    for module in [m for name, m in sys.modules.items() if name.startswith(CODE)]:
        classes = [vars(thing) for thing in vars(module).values() if isinstance(thing, type)]
        for thing in (thing for names in (vars(module), *classes) for thing in names.values()):
            if isinstance(thing, FunctionType) and thing.__module__ == module.__name__:
                atheris.instrument_func(thing)  # in place
    target = TARGETS[name]

    def one(data):
        check(target, target.fix(data[1:]) if data[:1] > b"\x7f" else data[1:])

    atheris.Setup([sys.argv[0], *rest], one)
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000_000, help="of each target, in all")
    parser.add_argument("--target", choices=[*TARGETS], action="append")
    parser.add_argument("--minutes", type=float, default=8.0, help="stop after the piece in hand")
    parser.add_argument(
        "--atheris", action="store_true", help="one target; what follows is libFuzzer's"
    )
    args, rest = parser.parse_known_args()
    if args.atheris:
        by_coverage(args.target[0], rest)
        return
    limit_memory()
    ledger, until = Ledger.default(), time.monotonic() + 60 * args.minutes
    for name in args.target or TARGETS:
        in_pieces(name, args.inputs, ledger, until)
    print(ledger.report())


if __name__ == "__main__":
    main()
