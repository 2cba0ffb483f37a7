"""Damage that looks like data: valid bytes with flips, splices, cuts and changed lengths.

Half of the time the checksum is made right again, else it would hide everything behind it.
"""

from __future__ import annotations

import random

from fuzz.target import Target

__all__ = ["check", "mutated"]

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)


def _damage(rng: random.Random, raw: bytearray, other: bytes) -> None:
    at, how = rng.randrange(len(raw) + 1), rng.randrange(7)
    if how == 0 and at < len(raw):
        raw[at] ^= 1 << rng.randrange(8)
    elif how == 1 and at < len(raw):
        raw[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xDF, 0xFF, rng.randrange(256)))
    elif how == 2:
        del raw[at:]
    elif how == 3:
        raw[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif how == 4:
        del raw[at : at + rng.randrange(1, 17)]
    elif how == 5:
        start = rng.randrange(len(other) + 1)
        raw[at : at + rng.randrange(24)] = other[start : start + rng.randrange(24)]
    else:  # a length, an offset, a time at its bounds
        size = rng.choice((1, 2, 4, 8))
        order = rng.choice(("little", "big"))
        number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
        raw[at : at + size] = number.to_bytes(size, order)


def mutated(rng: random.Random, target: Target, seeds: list[bytes]) -> bytes:
    """One input."""
    raw = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _damage(rng, raw, rng.choice(seeds))
    out = bytes(raw)
    return target.fix(out) if rng.random() < 0.5 else out


def check(target: Target, raw: bytes) -> bool:
    """The oracle. Returns whether it was taken for a record."""
    try:
        value = target.decode(raw)
    except target.errors:
        return False
    if target.encode is not None:
        again = target.encode(value)
        assert repr(target.decode(again)) == repr(value), raw.hex()  # repr: NaN is not NaN
        assert not target.is_canonical or again == raw, raw.hex()
    return True
