"""Reading a lifecycle journal: ``lodeq.lifecycle``.

::

    tailer = lodeq.lifecycle.open_tailer("var/jobs", "tasks", name="audit")
    reader = lodeq.lifecycle.Reader()
    async for record in tailer:
        for event in reader.read(record):
            ...

An engine that was opened with ``journal="tasks"`` writes one record for each commit that changed
tasks. Every durable transition arrives at least once; a ``Reader`` drops what arrives again.
``docs/lifecycle.md`` is the guide, ``docs/formats.md`` has the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ..engine.files.paths import journal_path, normal_path
from ..engine.records import events as packed
from ..engine.records.events import Run, decode_begin_row, decode_event_row, decode_start_row
from ..engine.runtime.clock import Clock
from ..engine.runtime.task_id import TaskId
from ..errors import InvalidNameError, RecordCorruptError
from .journal.layout import is_tailer
from .journal.log_format import LogRecord
from .journal.open import open_tailer as open_journal_tailer
from .journal.tailer import Tailer

__all__ = ["Event", "EventKind", "Missed", "Reader", "RolledBack", "events", "open_tailer"]

EventKind = packed.EventKind
_NUMBER_BITS: Final = 40  # commit = incarnation << 40 | number
_NUMBER: Final = (1 << _NUMBER_BITS) - 1
_NONE: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({})


class Event(NamedTuple):
    """Something happened to a task.

    ``shard``, ``incarnation`` and ``number`` say in which commit; all events of one commit have
    happened together. ``attempts`` is what the task has after it; ``worker`` is there for claimed
    and completed, ``reason`` for the others, where one was given.
    """

    kind: EventKind
    task_id: TaskId
    queue: str
    tenant: str
    attempts: int
    priority: int
    time_us: int
    worker: str
    reason: str
    shard: int
    incarnation: int
    number: int


class RolledBack(NamedTuple):
    """The shard went on from commit ``to`` of ``incarnation``; later ones of it are taken back.

    ``missing``: numbers before it that are not there either, (first, last) of each range. Written
    at every open; where it takes nothing back that was reported, a ``Reader`` leaves it out.
    """

    shard: int
    incarnation: int
    to: int
    missing: tuple[tuple[int, int], ...]


class Missed(NamedTuple):
    """The journal of a replica goes on here behind commit ``number`` of ``incarnation``.

    Events of the shard up to there, beyond what the reader has seen, may be in other replicas'
    journals only: this one was copied from another, or begins here. A ``Reader`` that has seen all
    up to there, or nothing, leaves it out.
    """

    shard: int
    incarnation: int
    number: int


def events(record: LogRecord | bytes) -> list[Event | RolledBack | Missed]:
    """Events of one record, in the order in which they happened; repeats and all.

    Raises:
        RecordCorruptError: it is no record of a lifecycle journal, or of a newer lodeq.

    **Durability.** What it says survives a power cut.
    **Cancellation.** It does not wait.
    """
    return _decode(record)[2]


def _decode(record: LogRecord | bytes) -> tuple[int, int, list[Event | RolledBack | Missed]]:
    """(shard, commit, what it says)."""
    raw = record if isinstance(record, bytes) else record.payload
    if raw[:1] == b"m":
        shard, commit_seq = decode_begin_row(raw)
        begun = Missed(shard, commit_seq >> _NUMBER_BITS, commit_seq & _NUMBER)
        return shard, commit_seq, [begun]
    if raw[:1] == b"N":
        start = decode_start_row(raw)
        missing = tuple((first & _NUMBER, last & _NUMBER) for first, last in start.missing)
        mark = RolledBack(start.shard, start.last >> _NUMBER_BITS, start.last & _NUMBER, missing)
        return start.shard, start.commit_seq, [mark]
    row = decode_event_row(raw)
    out: list[Event | RolledBack | Missed] = []
    for run in row.runs:
        out += _events_of(run, row.shard, row.commit_seq)
    return row.shard, row.commit_seq, out


def _events_of(run: Run, shard: int, commit_seq: int) -> list[Event]:
    try:
        kind, text = EventKind(run.kind), run.text.decode()
        queue, tenant = run.queue.decode("ascii"), run.tenant.decode("ascii")
    except UnicodeDecodeError as exc:
        raise RecordCorruptError(f"events: a name or a text is none: {exc}") from exc
    has_worker = kind in (EventKind.CLAIMED, EventKind.COMPLETED)
    worker, reason = (text, "") if has_worker else ("", text)
    incarnation, number = commit_seq >> _NUMBER_BITS, commit_seq & _NUMBER
    return [
        Event(
            kind,
            TaskId(task_id),
            queue,
            tenant,
            run.attempts,
            run.priority,
            run.time_us,
            worker,
            reason,
            shard,
            incarnation,
            number,
        )
        for task_id in run.ids
    ]


class Reader:
    """Drops repeats: it knows the last commit of each shard that it has seen.

    Attributes:
        seen: shard to (incarnation, number) of that commit. Store it with what you make of the
            events, and begin with it again.
    """

    def __init__(self, seen: Mapping[int, tuple[int, int]] = _NONE) -> None:
        self._last = {shard: at[0] << _NUMBER_BITS | at[1] for shard, at in seen.items()}

    @property
    def seen(self) -> dict[int, tuple[int, int]]:
        """See the class."""
        return {shard: (last >> _NUMBER_BITS, last & _NUMBER) for shard, last in self._last.items()}

    def read(self, record: LogRecord | bytes) -> list[Event | RolledBack | Missed]:
        """Events of the record that have not been seen before.

        Raises:
            RecordCorruptError: as ``events``; what was seen stays as it was.

        **Durability.** As ``events``.
        **Cancellation.** It does not wait.
        """
        shard, commit_seq, said = _decode(record)
        before = self._last.get(shard, 0)
        if commit_seq <= before:
            return []
        self._last[shard] = commit_seq
        return [one for one in said if _matters(one, before)]


def _matters(one: Event | RolledBack | Missed, before: int) -> bool:
    """Whether it says anything to who has read up to ``before``."""
    if isinstance(one, RolledBack):  # whether it takes back what may matter
        return bool(one.missing) or before > (one.incarnation << _NUMBER_BITS | one.to)
    return before > 0 or isinstance(one, Event)


def open_tailer(
    store: str | os.PathLike[str],
    journal: str,
    name: str | None = None,
    *,
    start: Literal["start", "end"] | int = "start",
    clock: Clock | None = None,
) -> Tailer:
    """Read the lifecycle journal of a store, beside its engine: in this process or another.

    Args:
        store: what the engine was opened with.
        journal: the same.
        name: of the tailer, see ``lodeq.journal.open_tailer``.
        start: see there.
        clock: see there.

    Raises:
        StorePathError: there is no such journal.
        InvalidNameError, CorruptionError: of a name, or of the place stored under it.

    **Durability.** What it gives survives a power cut.
    **Cancellation.** It does not wait.
    """
    if not isinstance(journal, str) or not is_tailer(journal):
        raise InvalidNameError(f"{journal!r} is no name of a journal: [a-z0-9][a-z0-9._-]{{0,63}}")
    path = journal_path(normal_path(store), journal)
    return open_journal_tailer(path, name, start=start, clock=clock)
