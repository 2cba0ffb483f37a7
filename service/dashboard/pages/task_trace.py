"""The events of a task, from the lifecycle journal of a store that has one.

The journal is no index: it is read from the moment the task was enqueued, in a thread, for a
bounded number of records, and then a shorter way back from its end. Between the two there may be
more; the page says so. A record that does not hold the id's bytes is not decoded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from ....engine.files.paths import journal_path
from ....errors import LodeqError
from ....repository.model.values import Task
from ....segments.journal.log_format import LogRecord
from ....segments.journal.tailer import Tailer
from ....segments.lifecycle import Event, Reader, open_tailer
from ..source import AnyEngine, source_of

__all__ = ["TaskEvents", "Trace"]

FORWARD_MAX: Final = 50_000  # records
BACK_MAX: Final = 10_000
SLICE: Final = 1024
EVENTS_MAX: Final = 200  # on a page: the first hundred and the last
FRESH_S: Final = 3.0
_CACHED: Final = 128
_EARLY_US: Final = 2_000_000  # margin: the wall clock may have been set back


class TaskEvents(NamedTuple):
    """Events of one task."""

    events: tuple[Event, ...]
    is_whole: bool  # no event of the task was left out
    problem: str = ""  # why the journal could not be read


class Trace:
    """Finds the events of tasks in an engine's journal. On the engine's loop."""

    def __init__(self, engine: AnyEngine) -> None:
        self._view = source_of(engine)
        self._cache: OrderedDict[tuple[object, ...], tuple[float, TaskEvents]] = OrderedDict()

    async def events_of(self, task: Task) -> TaskEvents | None:
        """The events of a task, a few seconds old at most; None without a journal."""
        name, path = self._view.journal_name, self._view.path
        if name is None or path is None:
            return None
        now, key = self._view.clock.mono(), (task.id, task.state, task.attempts)
        cached = self._cache.get(key)
        if cached is not None and now - cached[0] < FRESH_S:
            return cached[1]
        folder = journal_path(path, name)
        try:
            tailer = open_tailer(path, name, clock=self._view.clock)
            found: TaskEvents = await self._view.spawner.run_in_thread(
                lambda: _search(tailer, task)
            )
        except (LodeqError, OSError) as error:
            found = TaskEvents((), False, f"{folder} cannot be read: {error}")
        self._cache[key] = now, found
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return found


def _search(tailer: Tailer, task: Task) -> TaskEvents:
    """Read the journal. In a thread."""
    try:
        tailer.seek_time(task.id.created_ms * 1000 - _EARLY_US)
        reader, events, last = Reader(), [], -1
        read = 0
        while read < FORWARD_MAX and (records := tailer.read_now(SLICE)):
            read += len(records)
            events += _events(reader, records, task)
            last = records[-1].sequence
        is_whole = read < FORWARD_MAX
        if not is_whole:
            tailer.seek("end")
            late: list[LogRecord] = []
            while len(late) < BACK_MAX and (records := tailer.read_back(SLICE)):
                late = [*reversed(records), *late]
            events += _events(reader, [one for one in late if one.sequence > last], task)
            is_whole = bool(late) and late[0].sequence <= last + 1
    finally:
        tailer.close()
    if len(events) > EVENTS_MAX:
        events, is_whole = events[: EVENTS_MAX // 2] + events[-EVENTS_MAX // 2 :], False
    return TaskEvents(tuple(events), is_whole)


def _events(reader: Reader, records: list[LogRecord], task: Task) -> list[Event]:
    return [
        event
        for record in records
        if bytes(task.id) in record.payload
        for event in reader.read(record)
        if isinstance(event, Event) and event.task_id == task.id
    ]
