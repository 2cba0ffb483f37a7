"""Task ids, routing slots and tokens. The only module of lodeq that reads randomness.

An id is a UUID version 7 (RFC 9562 §5.7)::

    48 bits  Unix milliseconds
     4 bits  version, 7
    12 bits  slot: where the task's keys live (rand_a)
     2 bits  variant, 0b10
    62 bits  random (rand_b); tasks of one enqueue_many count up from one random value

``slot = xxh64(routing key, seed 42) mod 4096`` (floor-mod of the signed value, which for a
power of two is the low twelve bits; Spark SQL's ``pmod(xxhash64(k), 4096)`` is the same), and
``shard = slot * N // 4096``. So an id alone says its shard, and resharding moves slot ranges.
Nothing depends on ids being ordered; that they are roughly so gives RocksDB locality.
"""

from __future__ import annotations

import os
import random
import struct
from typing import Final, Protocol

import xxhash

from .task_id import TaskId, as_task_id

__all__ = [
    "SLOTS",
    "SLOT_BITS",
    "Dice",
    "IdSource",
    "Rng",
    "SeededRng",
    "SystemRng",
    "first_slot_of",
    "is_task_id",
    "seeded",
    "shard_of",
    "shard_of_slot",
    "slot_of",
    "slot_of_id",
]

SLOTS: Final = 4096
SLOT_BITS: Final = 12  # of them: 2 ** 12 slots
_PAIR: Final = struct.Struct(">QQ")
_LOW: Final = struct.Struct(">I")
Bytes = bytes  # where a method has that name
_POOL: Final = 512
_WORDS: Final = struct.Struct(f">{_POOL}Q")
_TOKENS: Final = struct.Struct("16s" * _POOL)
_as_task_id: Final = as_task_id
_VARIANT: Final = 1 << 63
_RAND: Final = (1 << 62) - 1
# What follows the milliseconds, 512 at a time: which bits are random, and what the others are.
_TAILS: Final = struct.Struct("10s" * _POOL)
_TAIL_MASK: Final = int.from_bytes(b"\x0f\xff\x3f\xff\xff\xff\xff\xff\xff\xff" * _POOL, "big")
_TAIL_BITS: Final = int.from_bytes(b"\x70\x00\x80\x00\x00\x00\x00\x00\x00\x00" * _POOL, "big")
# The same for an id whose slot is scaled: the bits that choose it, and how it is put together.
_unpack_drawn: Final = struct.Struct(">HH6x").unpack
_pack_id: Final = struct.Struct(">6sH8s").pack


def slot_of(routing_key: bytes) -> int:
    """The slot of a dedup or shard key."""
    return xxhash.xxh64_intdigest(routing_key, 42) & (SLOTS - 1)


def shard_of_slot(slot: int, shards: int) -> int:
    """The shard that a slot belongs to, out of ``shards`` (1 to 4096)."""
    return slot * shards >> SLOT_BITS


def first_slot_of(shard: int, shards: int) -> int:
    """The first slot of a shard; of ``shards``, the end of them all: 4096."""
    return -(-shard * SLOTS // shards)


def shard_of(task_id: bytes, shards: int) -> int:
    """The shard that holds a task, out of ``shards`` (1 to 4096)."""
    return ((task_id[6] & 0xF) << 8 | task_id[7]) * shards >> SLOT_BITS


def slot_of_id(task_id: bytes) -> int:
    """The slot that an id names."""
    return (task_id[6] & 0xF) << 8 | task_id[7]


def is_task_id(raw: bytes) -> bool:
    """Whether these bytes may be an id of ours: sixteen, a UUID of version 7."""
    return len(raw) == 16 and raw[6] >> 4 == 7 and raw[8] >> 6 == 2


class Rng(Protocol):
    """The randomness port."""

    def bytes(self, n: int) -> bytes:
        """``n`` random bytes, fit for tokens."""

    def uniform(self) -> float:
        """A float in [0, 1), for jitter."""

    def secret(self) -> Bytes:
        """32 bytes that nobody can guess; drawn apart: ``bytes`` goes on as if it had not been."""


class SystemRng:
    """The operating system's randomness."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def bytes(self, n: int) -> bytes:
        """``n`` bytes from the kernel."""
        return os.urandom(n)

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return self._random.random()

    def secret(self) -> Bytes:
        """From the kernel."""
        return os.urandom(32)


class SeededRng:
    """A repeatable sequence, for simulation and tests only."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._seed = seed

    def bytes(self, n: int) -> bytes:
        """The next ``n`` bytes of the sequence."""
        return self._random.randbytes(n)

    def uniform(self) -> float:
        """The next float of the sequence."""
        return self._random.random()

    def secret(self) -> Bytes:
        """Derived from the seed alone: the sequence stays as it is."""
        return random.Random(f"secret {self._seed}").randbytes(32)  # noqa: S311 - the same


Dice = random.Random


def seeded(seed: str) -> Dice:
    """Repeatable choices, the same wherever and whenever they are made: for simulation only."""
    return Dice(seed)


class IdSource:
    """Draws ids and tokens; reads randomness 4 to 8 KiB at a time, a system call per 512."""

    __slots__ = ("_head", "_head_ms", "_pool", "_rng", "_tails", "tokens")

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._pool: list[int] = []
        self._tails: list[bytes] = []
        self._head_ms = 0
        self._head = bytes(6)
        self.tokens: list[bytes] = []  # drawn ahead; take one, or call ``token`` when it is empty

    def _word(self) -> int:
        if not self._pool:
            self._pool = list(_WORDS.unpack(self._rng.bytes(8 * _POOL)))
        return self._pool.pop()

    def slot(self) -> int:
        """A random slot, for tasks without a key."""
        return self._word() >> 52

    def slot_within(self, first_slot: int, slots: int) -> int:
        """One of ``slots`` slots from ``first_slot`` on; of all of them, what ``slot`` returns."""
        return first_slot + ((self._word() >> 32) * slots >> 32)

    def new(self, wall_ms: int, slot: int) -> bytes:
        """A fresh id in ``slot``."""
        pool = self._pool
        if not pool:
            pool = self._pool = list(_WORDS.unpack(self._rng.bytes(8 * _POOL)))
        return _PAIR.pack(wall_ms << 16 | 0x7000 | slot, _VARIANT | pool.pop() & _RAND)

    def run(self, wall_ms: int, slot: int, count: int) -> list[TaskId]:
        """``count`` fresh ids that follow one another (RFC 9562 §6.2, method 2).

        Tasks of one call lie side by side on disk, in the order they will be claimed.
        """
        word = self._word()
        low = min(word & 0xFFFF_FFFF, (1 << 32) - count)
        head = _PAIR.pack(wall_ms << 16 | 0x7000 | slot, _VARIANT | word & _RAND)[:12]
        pack = _LOW.pack
        return [_as_task_id(head + pack(n)) for n in range(low, low + count)]

    def new_unkeyed(self, wall_ms: int) -> TaskId:
        """A fresh id in a random slot: most ids, so it is two byte strings put together."""
        if wall_ms != self._head_ms:
            self._head_ms, self._head = wall_ms, wall_ms.to_bytes(6, "big")
        if not self._tails:
            self._draw_tails()
        return _as_task_id(self._head + self._tails.pop())

    def new_within(self, wall_ms: int, first_slot: int, slots: int) -> TaskId:
        """A fresh id in one of ``slots`` slots from ``first_slot`` on, each as likely.

        It draws what ``new_unkeyed`` draws, and of all 4,096 slots it makes the same id: the slot
        drawn, with the bits behind it, is scaled to the range. So no draw is thrown away.

        Args:
            wall_ms: Unix milliseconds.
            first_slot: 0 to 4,095.
            slots: how many, 1 to 4,096.
        """
        if wall_ms != self._head_ms:
            self._head_ms, self._head = wall_ms, wall_ms.to_bytes(6, "big")
        if not self._tails:
            self._draw_tails()
        tail = self._tails.pop()
        high, low = _unpack_drawn(tail)
        fraction = (high & 0xFFF) << 14 | low & 0x3FFF  # 26 bits: the variant's are left out
        slot = first_slot + (fraction * slots >> 26)
        return _as_task_id(_pack_id(self._head, 0x7000 + slot, tail[2:]))

    def _draw_tails(self) -> None:
        drawn = int.from_bytes(self._rng.bytes(10 * _POOL), "big")
        self._tails = list(
            _TAILS.unpack((drawn & _TAIL_MASK | _TAIL_BITS).to_bytes(10 * _POOL, "big"))
        )

    def token(self) -> bytes:
        """128 random bits."""
        if not self.tokens:
            self.tokens = list(_TOKENS.unpack(self._rng.bytes(16 * _POOL)))
        return self.tokens.pop()

    def uniform(self) -> float:
        """A float in [0, 1), for jitter."""
        return self._rng.uniform()

    def secret(self) -> bytes:
        """32 bytes, drawn apart from ids and tokens."""
        return self._rng.secret()
