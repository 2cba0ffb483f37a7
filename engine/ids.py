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
import uuid
from collections.abc import Callable
from functools import partial
from typing import Protocol

import xxhash

from ..errors import UsageError

__all__ = [
    "SLOTS",
    "UUID",
    "Dice",
    "IdSource",
    "Rng",
    "SeededRng",
    "SystemRng",
    "TaskId",
    "as_task_id",
    "seeded",
    "shard_of",
    "slot_of",
]

UUID = uuid.UUID

SLOTS = 4096
_PAIR = struct.Struct(">QQ")
_POOL = 512
_WORDS = struct.Struct(f">{_POOL}Q")
_TOKENS = struct.Struct("16s" * _POOL)
_VARIANT = 1 << 63
_RAND = (1 << 62) - 1


class TaskId(bytes):
    """A task's id: sixteen bytes that print as a UUID (version 7).

    Every call that takes an id takes a ``TaskId``, a ``uuid.UUID``, its string, or the bytes.
    """

    __slots__ = ()

    def __new__(cls, value: bytes | str | uuid.UUID) -> TaskId:
        """Make one of sixteen bytes, a UUID or its string; anything else raises ``UsageError``."""
        if isinstance(value, bytes):
            raw = value
        elif isinstance(value, uuid.UUID):
            raw = value.bytes
        elif isinstance(value, str):
            try:
                raw = uuid.UUID(value).bytes
            except ValueError:
                raise UsageError(f"not a task id: {value!r} is not a UUID") from None
        else:
            raise UsageError(f"not a task id: {type(value).__name__}; give a TaskId, UUID or str")
        if len(raw) != 16:
            raise UsageError(f"not a task id: {len(raw)} bytes, not 16")
        return bytes.__new__(cls, raw)

    def __str__(self) -> str:
        return str(uuid.UUID(bytes=bytes(self)))

    def __repr__(self) -> str:
        return f"TaskId('{self}')"

    @property
    def uuid(self) -> uuid.UUID:
        """The same id as a ``uuid.UUID``."""
        return uuid.UUID(bytes=bytes(self))

    @property
    def slot(self) -> int:
        """The routing slot, 0 to 4095."""
        return int.from_bytes(self[6:8], "big") & 0xFFF

    @property
    def created_ms(self) -> int:
        """Wall milliseconds at which the id was drawn."""
        return int.from_bytes(self[:6], "big")


# ``TaskId(raw)`` for sixteen bytes already known to be an id: no checks, no Python frame.
as_task_id: Callable[[bytes], TaskId] = partial(bytes.__new__, TaskId)


def slot_of(routing_key: bytes) -> int:
    """The slot of a dedup or shard key."""
    return xxhash.xxh64_intdigest(routing_key, 42) & (SLOTS - 1)


def shard_of(task_id: bytes, shards: int) -> int:
    """The shard that holds a task, out of ``shards`` (1 to 4096)."""
    return ((((task_id[6] & 0xF) << 8) | task_id[7]) * shards) >> 12


class Rng(Protocol):
    """The randomness port."""

    def bytes(self, n: int) -> bytes:
        """``n`` random bytes, fit for tokens."""

    def uniform(self) -> float:
        """A float in [0, 1), for jitter."""


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


class SeededRng:
    """A repeatable sequence, for simulation and tests only."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def bytes(self, n: int) -> bytes:
        """The next ``n`` bytes of the sequence."""
        return self._random.randbytes(n)

    def uniform(self) -> float:
        """The next float of the sequence."""
        return self._random.random()


Dice = random.Random


def seeded(seed: str) -> Dice:
    """Repeatable choices, the same wherever and whenever they are made: for simulation only."""
    return Dice(seed)


class IdSource:
    """Draws ids and tokens; reads randomness 4 or 8 KiB at a time, a system call per 512."""

    __slots__ = ("_pool", "_rng", "tokens")

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._pool: list[int] = []
        self.tokens: list[bytes] = []  # drawn ahead; take one, or call ``token`` when it is empty

    def _word(self) -> int:
        if not self._pool:
            self._pool = list(_WORDS.unpack(self._rng.bytes(8 * _POOL)))
        return self._pool.pop()

    def slot(self) -> int:
        """A random slot, for work that asks for no place of its own."""
        return self._word() >> 52

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
        high = wall_ms << 16 | 0x7000 | slot
        low = _VARIANT | min(self._word() & _RAND, _RAND - count)
        pack = _PAIR.pack
        return [as_task_id(pack(high, low + i)) for i in range(count)]

    def new_unkeyed(self, wall_ms: int) -> TaskId:
        """``new(ms, slot())`` in one go."""
        pool = self._pool
        if len(pool) < 2:
            if pool:  # drawn in the same order as by the two calls
                return as_task_id(self.new(wall_ms, self.slot()))
            pool = self._pool = list(_WORDS.unpack(self._rng.bytes(8 * _POOL)))
        return as_task_id(
            _PAIR.pack(wall_ms << 16 | 0x7000 | pool.pop() >> 52, _VARIANT | pool.pop() & _RAND)
        )

    def token(self) -> bytes:
        """128 random bits."""
        if not self.tokens:
            self.tokens = list(_TOKENS.unpack(self._rng.bytes(16 * _POOL)))
        return self.tokens.pop()

    def uniform(self) -> float:
        """A float in [0, 1), for jitter."""
        return self._rng.uniform()
