"""Values that an engine returns and a remote client builds again: marks, findings, summaries.

They know no bytes and no store, so a client imports them without RocksDB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "AFTER_MAX",
    "BY_BYTES_MAX",
    "FUNCTION_BYTES_MAX",
    "FUNCTION_NAME_BYTES_MAX",
    "NOTE_BYTES_MAX",
    "Finding",
    "Health",
    "LatencySummary",
    "Setting",
    "SettingValue",
    "ShardMark",
    "Snapshot",
    "spelled",
]

AFTER_MAX: Final = 255  # tasks that one waits for: each end of a task touches 256 joins at most
BY_BYTES_MAX: Final = 512  # of who has set a queue's setting
FUNCTION_BYTES_MAX: Final = 2048  # of what is published of a function, packed
FUNCTION_NAME_BYTES_MAX: Final = 256
NOTE_BYTES_MAX: Final = 256  # of a run's status text
SettingValue: TypeAlias = "int | bool | tuple[int, ...]"


class Setting(NamedTuple):
    """One setting of a queue: its value, who has set it, and when (wall microseconds)."""

    value: SettingValue
    by: str
    set_us: int


@dataclass(frozen=True, slots=True)
class Health:
    """``ok``, or the reasons why not, in words for an operator."""

    ok: bool
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, *reasons: str) -> Health:
        """Healthy if there is no reason not to be."""
        return cls(not reasons, reasons)

    def __and__(self, other: Health) -> Health:
        return Health.of(*self.reasons, *other.reasons)


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule. ``kind`` is a short fixed word, ``detail`` is for people."""

    shard: int
    kind: str
    detail: str
    task_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """A histogram in four numbers; times are microseconds."""

    count: int
    p50_us: int
    p99_us: int
    max_us: int


class ShardMark(NamedTuple):
    """How far a copy of a shard goes: it holds every commit up to ``commit_seq``."""

    shard: int
    incarnation: int
    commit_seq: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot. Times are milliseconds since 1970-01-01 UTC.

    ``shards``: in order, each with the commit up to which everything is in it. ``journals``: name
    of a lifecycle journal → the first sequence number that may be newer than the snapshot.
    ``bodies``: how many body files each shard has. ``expires_ms``: until when it is kept, as of
    this reading.
    """

    id: str
    path: str
    store_id: bytes
    store_format: int
    created_ms: int
    expires_ms: int
    shards: tuple[ShardMark, ...]
    journals: Mapping[str, int] = field(default_factory=dict)
    bodies: tuple[int, ...] = ()


def spelled(value: object) -> str:
    """``repr(value)``; of a number with more digits than Python writes, that it has so many."""
    try:
        return repr(value)
    except ValueError:
        return f"<{type(value).__name__} of too many digits>"
