"""One piece of fuzzing: so many inputs of a seed, for one decoder."""

import random
import time
from pathlib import Path

import xxhash
from fuzz.mutate import check, mutated
from fuzz.targets import TARGETS

__all__ = ["CORPUS", "PIECE", "corpus", "found", "piece"]

CORPUS = Path(__file__).resolve().parent / "corpus"
PIECE = 100_000
INPUT_S = 1.0  # of processor: no single input may take longer


def corpus(name):
    """What was found before, and is worth starting from."""
    return [path.read_bytes() for path in sorted(CORPUS.glob(f"{name}-*"))]


def piece(name, seed, inputs=PIECE):
    """(inputs taken for records, slowest in seconds); raises at what no decoder may do."""
    target, rng = TARGETS[name], random.Random(seed)
    seeds = [target.example(rng) for _ in range(64)] + corpus(name)
    taken, slowest, last = 0, 0.0, time.process_time()
    for _ in range(inputs):
        raw = mutated(rng, target, seeds)
        try:
            taken += check(target, raw)
        except BaseException:
            found(name, raw)
            raise
        now = time.process_time()
        slowest, last = max(slowest, now - last), now
        if slowest > INPUT_S:
            found(name, raw)
            raise TimeoutError(f"{name}: {slowest:.1f} s for {raw.hex()}")
    return taken, slowest


def found(name, raw):
    path = CORPUS / f"{name}-{xxhash.xxh3_64_hexdigest(raw)}"
    path.write_bytes(raw)
