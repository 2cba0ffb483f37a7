"""Run seeds: ``python tests/sim/run.py --seeds 2000``, or one of them: ``--seed 17``.

``--replicas``: seeds of simulated clusters (``replicas.py``), with a ledger of their own.

Seeds go on where the ledger ends. A seed that fails is printed with its reason and with the
command that repeats it; ``--keep`` adds it to ``regressions.txt``, which every test run repeats.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from ledger import Ledger
from sim.replicas import ClusterWorld
from sim.world import World

REGRESSIONS = HERE / "regressions.txt"
CHUNK = 10
GATE, GATE_REPLICAS = "sim", "replicas"
HAS_HISTORY = bool(os.environ.get("LODEQ_SIM_HISTORY"))  # worlds that keep a history
HAS_KEYS = bool(os.environ.get("LODEQ_SIM_KEYS"))  # worlds with a limit of keys
HAS_LIMITS = bool(os.environ.get("LODEQ_SIM_LIMITS"))  # worlds with limits of queues


def drawn(seed: int) -> World:
    """The world of a seed, as the environment says."""
    return World(seed, has_limits=HAS_LIMITS, has_history=HAS_HISTORY, has_keys=HAS_KEYS)


def run_seed(seed: int) -> str | None:
    """What is wrong with this seed; None if nothing is."""
    try:
        drawn(seed).run()
    except Exception as error:
        told = "".join(traceback.format_exception(error)[-12:])
        return f"{type(error).__name__}: {error}\n{told}"
    return None


def run_cluster(seed: int) -> str | None:
    """Run one seed of a cluster; what is wrong with it, or None."""
    try:
        ClusterWorld(seed, has_keys=HAS_KEYS).run()
    except Exception as error:
        told = "".join(traceback.format_exception(error)[-12:])
        return f"{type(error).__name__}: {error}\n{told}"
    return None


def _run_chunk(seeds: range, run_one: Callable[[int], str | None]) -> list[tuple[int, str]]:
    found = [(seed, told) for seed in seeds if (told := run_one(seed)) is not None]
    gc.collect()
    return found


def run_seeds(
    seeds: range,
    *,
    workers: int | None = None,
    run_one: Callable[[int], str | None] = run_seed,
) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """(how many are done, the failures among the last ones), as they come."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    count = workers if workers is not None else os.cpu_count() or 1
    if count == 1:
        for chunk in chunks:
            yield len(chunk), _run_chunk(chunk, run_one)
        return
    context = multiprocessing.get_context("fork")
    gc.collect()
    gc.freeze()  # a whole test session may be in memory: no child has to look through it
    try:
        with context.Pool(count, initializer=gc.disable) as pool:  # each chunk collects once
            done = pool.imap(partial(_run_chunk, run_one=run_one), chunks)
            for chunk, failed in zip(chunks, done, strict=True):
                yield len(chunk), failed
    finally:
        gc.unfreeze()


def regressions() -> list[int]:
    """Seeds that once failed."""
    lines = REGRESSIONS.read_text().splitlines()
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def keep(seeds: Iterable[int]) -> None:
    """Add to the regressions."""
    known = set(regressions())
    with REGRESSIONS.open("a") as file:
        file.writelines(f"{seed}\n" for seed in sorted(set(seeds) - known))


def show_one(seed: int) -> int:
    """One seed, told in full."""
    world = drawn(seed)
    try:
        world.run()
    except Exception:
        for record in world.records[-40:]:
            print(str(record)[:300])
        print(f"{world.profile}\nlife {world.sim.lives}, {len(world.records)} records")
        traceback.print_exc()
        return 1
    print(
        f"seed {seed}: nothing wrong; {world.sim.lives} lives, {world.sim.steps} steps, "
        f"{len(world.records)} records, {world.sim.disk.lost_batches} batches lost to power cuts, "
        f"digest {world.digest}\n{world.profile}\nrecoveries: {world.sim.recoveries}"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--seeds", type=int, default=2000, help="how many more (2000)")
    parser.add_argument("--first", type=int, help="the first; by default where the ledger ends")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--workers", type=int, help="processes (one a core)")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first failure")
    parser.add_argument("--keep", action="store_true", help="keep failed seeds as regressions")
    parser.add_argument("--replicas", action="store_true", help="clusters instead of stores")
    parser.add_argument("--no-ledger", action="store_true", help="do not add to the ledger")
    told = parser.parse_args()
    if told.keep and told.replicas:
        parser.error("regressions are seeds of stores: give one of a cluster a test of its own")
    if told.seed is not None and told.replicas:
        wrong = run_cluster(told.seed)
        print(wrong or f"seed {told.seed}: nothing wrong")
        return 1 if wrong else 0
    if told.seed is not None:
        return show_one(told.seed)
    gate, run_one = (GATE_REPLICAS, run_cluster) if told.replicas else (GATE, run_seed)
    ledger = Ledger.default()
    first = told.first if told.first is not None else ledger.next_start(gate)
    started = time.monotonic()
    done, failed = 0, []
    again = " ARGS=--replicas" if told.replicas else ""
    try:
        seeds = range(first, first + told.seeds)
        for count, found in run_seeds(seeds, workers=told.workers, run_one=run_one):
            done += count
            for seed, why in found:
                failed.append(seed)
                print(f"\nseed {seed}: {why}\nrepeat: make sim SEED={seed}{again}", flush=True)
            took = time.monotonic() - started
            if sys.stderr.isatty():
                print(f"\r{done} seeds, {done / took:.0f}/s", end="", file=sys.stderr)
            if (found and told.until_failure) or took > told.minutes * 60:
                break
    except KeyboardInterrupt:
        pass
    took = time.monotonic() - started
    if not told.no_ledger and done:
        ledger.add(gate, start=first, done=done, failed=len(failed), seconds=took, seeds=failed)
    if told.keep:
        keep(failed)
    print(f"{done} seeds from {first} in {took:.0f} s, {done / took:.1f}/s; failed: {failed}")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
