"""Does the gate find known bugs? Each is planted, and the sample of its proof is run.

``python tests/planted_sample.py 11 4242 90001`` takes these first seeds, one run each, and prints a
table: in which of the runs the bug was found. `make proof` has them all in full.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from model import bites, flow_bites, key_bites, pieces
from model.flows import FlowModel
from model.keys import KeyModel
from model.machine import Model
from power import crew
from power.bugs import BUGS as POWER_BUGS
from power.test_power_cuts import IMAGES_A_TRACE, NEEDED
from sim import planted
from tiers import SMALL

FIRSTS = 11, 4242, 90001
Run = Callable[[int], bool]


def simulated(bug: planted.Bug) -> Run:
    """As `make test` does; the compiled build tries twice as many worlds."""
    seeds = int(SMALL["LODEQ_SIM_SEEDS"])
    if bug.name.startswith(("limit: ", "history: ")):
        seeds = max(30, seeds // 10)
    elif bug.name.startswith("keys: "):
        seeds = max(5, seeds // 20)

    def run(first: int) -> bool:
        with tempfile.TemporaryDirectory() as where:
            return planted.hunt(bug, Path(where), first=first, seeds=seeds)[0] is not None

    return run


def cut(bug: str) -> Run:
    images = int(SMALL["LODEQ_POWER_IMAGES"])
    traces = max(2, -(-images // IMAGES_A_TRACE))

    def run(first: int) -> bool:
        told = crew.run(
            "power.campaign",
            crew.shares(
                [first + i for i in range(traces)],
                images=-(-images // traces),
                fixed={**NEEDED.get(bug, {}), "bug": bug},
            ),
            timeout=300,
        )
        return any(one["failed"] for one in told)

    return run


def modelled(
    plant: Callable[..., object], bug: object, machine: type, shape: tuple[int, int]
) -> Run:
    count, steps = shape
    examples = int(SMALL["LODEQ_MODEL_RUNS"])

    def run(first: int) -> bool:
        with plant(bug):  # type: ignore[attr-defined]
            try:
                for piece in range(count):
                    pieces.play(machine, first + piece, examples, steps)
            except (AssertionError, KeyError):
                return True
        return False

    return run


def every() -> Iterator[tuple[str, str, Run]]:
    """Proof, name, and how its sample is run."""
    for bug in planted.bugs():
        yield "simulation", bug.name, simulated(bug)
    for name in POWER_BUGS:
        yield "power", name, cut(name)
    for one in bites.BUGS:
        yield "model", one.__name__, modelled(bites.planted, one, Model, (6, 50))
    for one in flow_bites.BUGS:
        yield "flows", one.__name__, modelled(flow_bites.planted, one, FlowModel, (4, 40))
    for one in (bug for bug in key_bites.BUGS if bug not in key_bites.AT_AN_OPEN):
        yield "keys", one.__name__, modelled(key_bites.planted, one, KeyModel, (1, 40))


def main() -> int:
    firsts = [int(one) for one in sys.argv[1:]] or list(FIRSTS)
    print(f"| proof | bug | {' | '.join(map(str, firsts))} |")
    print("|---|---|" + "---|" * len(firsts))
    total = found = 0
    started = time.monotonic()
    for proof, name, run in every():
        seen = [run(first) for first in firsts]
        total += 1
        found += any(seen)
        print(
            f"| {proof} | {name} | {' | '.join('found' if one else '' for one in seen)} |",
            flush=True,
        )
    took = time.monotonic() - started
    print(f"\n{found} of {total} found in one of {len(firsts)} runs, {took:.0f} s")
    return int(found < 0.9 * total)


if __name__ == "__main__":
    sys.exit(main())
