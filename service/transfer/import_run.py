"""Import of a source's tasks into a queue: once each, however often it is repeated.

Every task gets a dedup key: the source's own where it has one, else one made of what it is (kind of
source, the source where an identity holds in that one alone, and the entry's identity). Its window
is ``WINDOW_S``, so for that long a second import skips what the first one brought, even tasks that
have been completed since. Chunk by chunk: tasks become durable, then the note says so.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from ...engine.runtime.clock import Clock
from ...errors import InvalidNameError, UsageError
from ...repository.api.engine import Engine
from ...repository.api.view import view_of
from ...repository.bulk.imported_tasks import ImportedTask
from ...repository.model.arguments import names_of
from ...repository.model.encoded_tasks import EncodedTask, TaskTemplate
from ...segments.item import Damage
from .entries import Entry, Foreign, Mark, SourceItem, Unreadable, digest
from .progress_note import Note, note_path, read_note, write_note

__all__ = [
    "WINDOW_S",
    "ImportReport",
    "Targets",
    "import_tasks",
    "is_expired",
    "survey",
    "task_of",
]

WINDOW_S: Final = 30 * 86_400.0
_CHUNK_TASKS: Final = 1000
_CHUNK_BYTES: Final = 1 << 20
_UNREADABLE_MAX: Final = 1000
_EXPIRED: Final = "expired already"

OnUnreadable = Callable[[str, Damage], None]
At = Callable[[str, int], None]


@dataclass(slots=True)
class ImportReport:
    """Counts of an import. ``unreadable`` has the first 1,000; ``left_out`` counts by reason.

    ``imported`` counts tasks, dead letters among them; ``keys``, keys without a task whose windows
    go on; ``already``, entries that an earlier import brought.
    """

    imported: int = 0
    dead: int = 0
    keys: int = 0
    already: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    unreadables: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)


def _nothing_said(file: str, damage: Damage) -> None:
    """Ignore damage: the default of ``on_unreadable``."""


def _nowhere(file: str, end: int) -> None:
    """Ignore progress: the default of ``at``."""


def survey(
    source: Foreign, clock: Clock, *, on_unreadable: OnUnreadable = _nothing_said, at: At = _nowhere
) -> ImportReport:
    """Report what an import into a fresh store would do. Nothing is written anywhere.

    Args:
        source: from ``open_source``.
        clock: decides which entries have expired.
        on_unreadable: called with each file and damage that could not be imported, as it is met.
        at: called with the progress: a file, and how many bytes of it were read.

    Raises:
        StorageError: the source cannot be read.
    """
    report = ImportReport()
    for item in source.entries():
        if isinstance(item, Unreadable):
            _count_unreadable(report, item, on_unreadable)
            continue
        at(item.file, item.end)
        if is_expired(item, clock.wall_us() // 1000):
            report.left_out[_EXPIRED] += 1
        else:
            _count(report, item, is_new=True)
    report.left_out += source.left_out
    return report


async def import_tasks(
    engine: Engine,
    source: Foreign,
    *,
    queue: str | None = None,
    tenant: str = "",
    on_unreadable: OnUnreadable = _nothing_said,
    at: At = _nowhere,
) -> ImportReport:
    """Take over all tasks of a source that is not at work, in its order.

    Args:
        engine: where to; ``Limits`` bound payloads and headers as in an enqueue.
        source: from ``open_source``. It is only read.
        queue: one queue for all; None: each of the source's queues into one of its name.
        tenant: of these queues.
        on_unreadable: called with each file and damage that cannot be taken over, as it is met.
        at: called with the progress: a file, and how many bytes of it were read.

    Raises:
        InvalidNameError, UsageError: a queue's name is none here; nothing was written.
        StorageError: the source cannot be read, or the store not written. What was taken over
            stays; repeat the import, and it goes on.

    Durability: on return everything survives a power cut, in either mode. Killed at any instant
        and repeated within 30 days, it takes nothing over twice.
    Cancellation: what was taken over stays; repeat the import.
    """
    taking = _Taking(engine, source, queue, tenant, on_unreadable)
    return await taking.run(at)


class Targets:
    """The queues that a source's tasks go into. ``one``: all go into this.

    Raises:
        InvalidNameError: a name is not allowed for a queue.
    """

    def __init__(self, source: Foreign, queue: str | None, tenant: str) -> None:
        self._tenant = tenant
        self._queues: dict[str, TaskTemplate] = {}
        self.one: TaskTemplate | None = None
        if queue is not None:
            self.one = TaskTemplate(*names_of(queue, tenant))
        elif not source.queues:
            self.one = self.of(os.path.basename(source.path))
        for name in source.queues if queue is None else ():
            self.of(name)

    def of(self, name: str) -> TaskTemplate:
        """The target of the source's queue of that name."""
        if self.one is not None:
            return self.one
        if name not in self._queues:
            try:
                names = names_of(name.lower(), self._tenant)
            except InvalidNameError as exc:
                raise InvalidNameError(f"{exc}: name the queue to import into (--queue)") from exc
            self._queues[name] = TaskTemplate(*names)
        return self._queues[name]


class _Taking:
    """One import."""

    def __init__(
        self,
        engine: Engine,
        source: Foreign,
        queue: str | None,
        tenant: str,
        on_unreadable: OnUnreadable,
    ) -> None:
        self._view = view_of(engine)
        self._source = source
        self._on_unreadable = on_unreadable
        self._report = ImportReport()
        self._seen = 0
        # Up to the last entry that was looked at:
        self._mark: Mark | None = None
        self._left_out: Counter[str] = Counter()
        self._targets = Targets(source, queue, tenant)
        self._note = ""
        if engine.path is not None and (one := self._targets.one) is not None:
            who = source.source_id or source.path
            self._note = note_path(engine.path, source.kind, who, one.queue.decode(), tenant)

    async def run(self, at: At) -> ImportReport:
        """See ``import_tasks``."""
        report, source = self._report, self._source
        chunk: list[tuple[Entry, ImportedTask, EncodedTask]] = []
        size = 0
        with closing(self._items()) as found:
            for item in found:
                if isinstance(item, Unreadable):
                    _count_unreadable(report, item, self._on_unreadable)
                    continue
                at(item.file, item.end)
                if (ready := self._prepared(item)) is not None:
                    cost = _cost(ready[2])
                    if size + cost > _CHUNK_BYTES:
                        await self._take(chunk)
                        chunk, size = [], 0
                    chunk.append(ready)
                    size += cost
                    self._seen += 1
                self._mark = source.mark
                if self._note:  # else nobody asks for it, and it is a copy for every entry
                    self._left_out = Counter(source.left_out)
                if len(chunk) >= _CHUNK_TASKS:
                    await self._take(chunk)
                    chunk, size = [], 0
        await self._take(chunk)
        report.left_out += source.left_out
        return report

    def _items(self) -> Generator[SourceItem, None, None]:
        """The entries behind the note, if its mark holds; the report starts with its counts."""
        note = read_note(self._note) if self._note else None
        if note is None or not self._source.holds(note.mark):
            yield from self._source.entries()
            return
        report = self._report
        report.already = self._seen = note.entries
        report.left_out += Counter(note.left_out)
        for one in note.unreadable:
            _count_unreadable(report, one, self._on_unreadable)
        report.unreadables = note.unreadables
        known = {(one.file, one.damage.offset) for one in note.unreadable}
        for item in self._source.entries(note.mark):
            if isinstance(item, Entry) or (item.file, item.damage.offset) not in known:
                yield item

    def _prepared(self, entry: Entry) -> tuple[Entry, ImportedTask, EncodedTask] | None:
        """Validate an entry and encode it; None if it is not imported."""
        now_us = self._view.clock.wall_us()
        if is_expired(entry, now_us // 1000):
            self._report.left_out[_EXPIRED] += 1
            return None
        shared = self._targets.of(entry.queue)
        task = task_of(self._source, entry, now_us // 1000)
        try:
            return entry, task, self._view.encode_imported(shared, task, now_us)
        except UsageError as exc:
            damage = Damage(entry.offset, 0, f"not imported: {exc}")
            _count_unreadable(self._report, Unreadable(entry.file, damage), self._on_unreadable)
            return None

    async def _take(self, chunk: list[tuple[Entry, ImportedTask, EncodedTask]]) -> None:
        """Make a chunk durable, then the note up to the last entry that was looked at."""
        if chunk:
            taken = await self._view.enqueue_imported([(task, item) for _, task, item in chunk])
            for (entry, _, _), is_new in zip(chunk, taken, strict=True):
                _count(self._report, entry, is_new=is_new)
        if self._note and self._mark is not None:
            self._write_note(self._mark)

    def _write_note(self, mark: Mark) -> None:
        report = self._report
        left_out = dict(report.left_out + self._left_out)
        note = Note(mark, self._seen, left_out, report.unreadables, report.unreadable)
        write_note(self._note, note)


def task_of(source: Foreign, entry: Entry, now_ms: int) -> ImportedTask:
    """The task that an entry of this source becomes."""
    has_key = bool(entry.dedup_key) and entry.dedup_until_ms > now_ms
    who = source.source_id
    within = f"{digest(who.encode('utf-8', 'surrogateescape'))}:" if who else ""
    own = f"lodeq.import:{source.kind}:{within}{entry.identity}"
    return ImportedTask(
        payload=entry.payload,
        dedup_key=entry.dedup_key if has_key else own,
        dedup_until_ms=entry.dedup_until_ms if has_key else now_ms + round(WINDOW_S * 1000),
        kind=entry.kind,
        headers=entry.headers,
        priority=entry.priority,
        created_us=entry.created_us,
        due_ms=entry.due_ms,
        expires_ms=entry.expires_ms,
        attempts=entry.attempts,
        reason=entry.reason,
        died_ms=entry.died_ms,
        is_over=entry.is_over,
        face=entry.face,
    )


def _cost(item: EncodedTask) -> int:
    """Bytes that are written for a task."""
    return item.row_bytes + len(item.body or b"")


def is_expired(entry: Entry, now_ms: int) -> bool:
    """Whether nothing of an entry is left to import: the task, or its key, has expired."""
    if entry.is_over:
        return entry.dedup_until_ms <= now_ms
    return entry.died_ms is None and 0 < entry.expires_ms <= now_ms


def _count(report: ImportReport, entry: Entry, *, is_new: bool) -> None:
    if not is_new:
        report.already += 1
    elif entry.is_over:
        report.keys += 1
    else:
        report.imported += 1
        report.dead += entry.died_ms is not None


def _count_unreadable(report: ImportReport, one: Unreadable, on_unreadable: OnUnreadable) -> None:
    report.unreadables += 1
    if len(report.unreadable) < _UNREADABLE_MAX:
        report.unreadable.append(one)
    on_unreadable(one.file, one.damage)
