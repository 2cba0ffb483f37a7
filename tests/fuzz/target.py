"""What a target is, and the random parts that examples are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from lodeq.errors import RecordCorruptError

__all__ = ["Example", "Target"]

Example = Callable[[random.Random], bytes]


class Target(NamedTuple):
    """One decoder. ``covers``: the functions of the package it stands for."""

    covers: tuple[str, ...]
    example: Example
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes] | None = None
    errors: tuple[type[Exception], ...] = (RecordCorruptError,)
    is_canonical: bool = False
    fix: Callable[[bytes], bytes] = bytes  # what makes a mutated checksum right again
    rate: float = 1.0  # of its share of inputs: opening a file costs more than a function


def _b(rng: random.Random, most: int) -> bytes:
    return rng.randbytes(rng.randrange(most))


def _q(rng: random.Random) -> int:
    return rng.choice((0, 1, 1_700_000_000_000_000, (1 << 63) - 1, rng.getrandbits(63)))


def _id(rng: random.Random) -> bytes:
    return rng.randbytes(16)
