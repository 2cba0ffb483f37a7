"""Positions between keys: for what can be walked, or read, only in pieces.

Nobody knows which keys lie in a stretch that cannot be read, nor where in a stretch of deleted rows
a scan gave up. But keys are numbers, and there is always a position between two of them. So a
stretch is halved, or stepped over by a distance that grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["PROBES_MAX", "halfway", "key_behind", "readable_from", "span_bits"]

WIDTH: Final = 176  # bytes; an index key of two names of 64 has 158
BITS: Final = 8 * WIDTH
_STEPS_MAX: Final = 36
_HALVINGS_MAX: Final = 64
PROBES_MAX: Final = _STEPS_MAX + _HALVINGS_MAX
_KEY_BYTES_MIN: Final = 26  # keys are taken to be that long, where a range begins at a prefix
_STEP_BITS: Final = 6


def _number(key: bytes) -> int:
    return int.from_bytes(key[:WIDTH].ljust(WIDTH, b"\0"), "big")


def _key(number: int) -> bytes:
    if number >> BITS:
        return b"\xff" * (WIDTH + 1)
    return number.to_bytes(WIDTH, "big").rstrip(b"\0")


def key_behind(key: bytes, bits: int) -> bytes:
    """The position ``2 ** bits`` behind ``key``; greater than it, with a zero byte at the end."""
    return _key(_number(key) + (1 << max(0, bits))) + b"\0"


def span_bits(lower: bytes, upper: bytes) -> int:
    """The greatest ``bits`` for which ``key_behind(lower, bits)`` is not above ``upper``."""
    return max(1, _number(upper) - _number(lower)).bit_length() - 1


def halfway(lower: bytes, upper: bytes) -> bytes | None:
    """A position strictly between two, or None where they lie too close together."""
    key = _key((_number(lower) + _number(upper)) // 2)
    return key if lower < key < upper else None


def readable_from(can_read: Callable[[bytes], bool], lower: bytes, upper: bytes) -> bytes:
    """About the first position above ``lower``, which cannot be read, from which one can read on.

    It steps away from ``lower`` by a distance that grows, and then halves the last step: at most
    ``PROBES_MAX`` calls of ``can_read``. ``upper`` if there is no such position below it.
    """
    bits = BITS - 8 * max(len(lower), _KEY_BYTES_MIN)
    bad, good = lower, upper
    for _ in range(_STEPS_MAX):  # the nearest first: there may be more damage behind what is sound
        position = key_behind(lower, bits)
        if position >= upper:
            break
        if can_read(position):
            good = position
            break
        bad, bits = position, bits + _STEP_BITS
    for _ in range(_HALVINGS_MAX):
        middle = halfway(bad, good)
        if middle is None:
            break
        if can_read(middle):
            good = middle
        else:
            bad = middle
    return good
