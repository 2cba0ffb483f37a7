"""History: ended tasks of all queues by what is known of them, and the attempts of one task.

Rows of ``r/`` are in the order of their ids, which is that of enqueueing. There is no index by
queue or end, so a page is a bounded search: windows of ids, the newest first or upwards from an id,
each read in one go and so small that it holds few rows and bytes. What does not match costs a look
at its row. A page that has looked at ``LOOKS_MAX`` rows, or read ``BYTES_MAX``, ends there, and its
cursor goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ....engine.records.attempts import AttemptRecord, Outcome, decode_attempts
from ....engine.records.face import unpack_face
from ....engine.records.frame import attempt
from ....engine.records.keyspace import ATTEMPTS, RESULT, ROW_ID, TASK, check_name
from ....engine.records.result import HAS_VALUE, ResultRecord, Status, decode_result, is_history
from ....engine.records.result_glance import ANY_TIME, ResultGlance
from ....engine.runtime.task_id import TaskId
from ....engine.values import spelled
from ....errors import TaskNotFoundError, UsageError
from ...model.arguments import check_unicode, moment_us
from ...model.encoded_tasks import to_datetime
from ...model.filters import TEXT_MAX, check_start, has_text, start_of
from ...model.preview_cuts import is_cut
from ...model.values import Attempt, HistoryPage, Result
from ...state.engine_state import EngineState
from ...state.shard_scope import shards_meant
from ..lookup import Payloads, result_of
from .id_search import IDS, IdSearch, RisingIdSearch

__all__ = [
    "HISTORY_STATES",
    "PAGE_MAX",
    "HistoryFilter",
    "attempts",
    "history",
    "tenant_or_all",
]

HISTORY_STATES: Final = {status.name.lower(): status for status in Status}
PAGE_MAX: Final = 1000
LOOKS_MAX: Final = 20_000  # rows of one page that are looked at
BYTES_MAX: Final = 32 << 20
_MS: Final = 1 << 80  # ids of one millisecond
# A cursor: where it goes on; of the oldest first, before that the id behind which it began.
_CURSOR: Final = re.compile(r"(?:([0-9a-fA-F]{32})\.)?([0-9a-fA-F]{32})", re.ASCII)


def tenant_or_all(tenant: object) -> bytes | None:
    """Name of a tenant as bytes; None stands for all, empty for the default one."""
    if tenant is None or tenant == "":
        return None if tenant is None else b""
    return check_name(tenant, "tenant")


class HistoryFilter:
    """Which ended tasks a page of the history shows.

    Args:
        queue: None for all.
        tenant: None for all.
        function: name of the task function; None for all.
        state: one of ``HISTORY_STATES``; None for all.
        since: ended then or later.
        until: ended before.
        text: part of its function, preview, error or of a label, in any case; None for all.
    """

    __slots__ = ("_function", "_queue", "_since_us", "_status", "_tenant", "_text", "_until_us")

    def __init__(
        self,
        *,
        queue: bytes | None,
        tenant: bytes | None,
        function: object,
        state: object,
        since: object,
        until: object,
        text: object,
    ) -> None:
        if function is not None and not isinstance(function, str):
            raise UsageError(f"function must be a str or None, not {type(function).__name__}")
        if state is not None and not (isinstance(state, str) and state in HISTORY_STATES):
            known = ", ".join(HISTORY_STATES)
            raise UsageError(f"state {spelled(state)} is not one of {known}, or None for all")
        if text is not None and (not isinstance(text, str) or not 0 < len(text) <= TEXT_MAX):
            raise UsageError(
                f"text must be a str of 1 to {TEXT_MAX} characters: {spelled(text):.80}"
            )
        check_unicode("function", function or "")
        check_unicode("text", text or "")
        self._queue, self._tenant, self._text = queue, tenant, text
        self._function = function
        self._status = HISTORY_STATES[state] if isinstance(state, str) else None
        self._since_us = moment_us(since, "since")
        self._until_us = None if until is None else moment_us(until, "until")
        if since is not None and self._until_us is not None and self._until_us <= self._since_us:
            raise UsageError("until must be after since: nothing ended between them")

    @property
    def before(self) -> int:
        """Above every id that may match: nothing ends before it is enqueued."""
        return IDS if self._until_us is None else min(IDS, (self._until_us // 1000 + 1) * _MS)

    def glance(self) -> ResultGlance:
        """The questions that a record is asked before it is decoded."""
        return ResultGlance(
            statuses=frozenset(Status) if self._status is None else frozenset((self._status,)),
            queue=self._queue,
            tenant=self._tenant,
            needles=() if self._function is None else (self._function.encode(),),
            finished=(
                self._since_us,
                ANY_TIME[1] if self._until_us is None else self._until_us - 1,
            ),
            text=self._text,
        )

    def holds(self, record: ResultRecord) -> bool:
        """Whether the task is one of those."""
        return self._holds_rest(record) and (
            self._text is None or has_text(self._text, _texts_of(record))
        )

    def may_hold(self, record: ResultRecord) -> bool:
        """Whether only what was cut from its preview could make it one of those."""
        return (
            self._text is not None
            and is_cut(unpack_face(record.face).preview)
            and self._holds_rest(record)
        )

    def _holds_rest(self, record: ResultRecord) -> bool:
        return (
            (self._queue is None or record.queue == self._queue)
            and (self._tenant is None or record.tenant == self._tenant)
            and (self._status is None or record.status == self._status)
            and record.finished_us >= self._since_us
            and (self._until_us is None or record.finished_us < self._until_us)
            and (self._function is None or unpack_face(record.face).function == self._function)
        )


def _texts_of(record: ResultRecord) -> Iterator[str]:
    face = unpack_face(record.face)
    yield from (face.function, face.preview, *face.labels)
    yield record.error.decode("utf-8", "replace")


def _position(cursor: object, start: bytes) -> int:
    """Ids below it are still to be looked at; of the oldest first those above it."""
    if cursor is None:
        return int.from_bytes(start, "big") if start else IDS
    named = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if named is None:
        raise UsageError(
            f"cursor {spelled(cursor):.80} is not one: take HistoryPage.cursor of the page before"
        )
    check_start(bytes.fromhex(named[1] or ""), start)
    return int(named[2], 16)


async def history(
    state: EngineState,
    meant: HistoryFilter,
    *,
    limit: object,
    cursor: object,
    oldest_first: object = False,
    after: object = None,
    payloads: Payloads = "decoded",
    bytes_max: int = BYTES_MAX,
) -> HistoryPage:
    """See ``Engine.history``.

    Args:
        state: of the engine.
        meant: what the page shows.
        limit: results, 1 to 1,000.
        cursor: of the page before; None begins.
        oldest_first: by rising ids.
        after: the id behind which that begins, or None.
        payloads: what is shown of values that are still there.
        bytes_max: of rows; the page ends when it has read so many.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit {spelled(limit)} is not between 1 and {PAGE_MAX}")
    start = start_of(after, oldest_first)
    step = 1 if start else 0  # a cursor of the oldest first has the last id that was looked at
    at = _position(cursor, start)
    for shard in shards_meant(state.hosted):  # what was queued before this call is in the store
        await state.commit_barrier(shard)
    state.check()
    scan = _Scan(meant)
    search: IdSearch[tuple[TaskId, ResultRecord]]
    if start:
        search = RisingIdSearch(
            state,
            at + 1,
            scan,
            bytes_max=bytes_max,
            looks_max=LOOKS_MAX,
            high=meant.before,
            found_max=limit,
        )
    else:
        at = min(at, meant.before)
        search = IdSearch(state, at, scan, bytes_max=bytes_max, looks_max=LOOKS_MAX)
    found: list[Result] = []
    now_ms = state.clock.wall_us() // 1000
    while len(found) < limit and not search.is_over and search.may_go_on:
        for task_id, record in await search.window():
            shown = payloads
            if record.flags & HAS_VALUE and is_history(record, now_ms):
                shown = "none"
            found.append(result_of(state, task_id, record, shown))
            if len(found) == limit:
                search.at = int.from_bytes(task_id, "big") + step
                break
        state.check()
    for shard in shards_meant(state.hosted):
        await state.commit_barrier(shard)
    is_last = search.is_over
    return HistoryPage(
        tuple(found),
        None if is_last else _cursor(search.at - step, start),
        not is_last and len(found) < limit,
        scan.has_cut_previews,
    )


def _cursor(at: int, start: bytes) -> str:
    return f"{start.hex()}{'.' if start else ''}{min(at, IDS - 1):032x}"


class _Scan:
    """The test of each row that is read, in the thread that reads it."""

    __slots__ = ("_glance", "_meant", "has_cut_previews")

    def __init__(self, meant: HistoryFilter) -> None:
        self._meant = meant
        self._glance = meant.glance()
        self.has_cut_previews = False

    def __call__(self, key: bytes, raw: bytes) -> tuple[TaskId, ResultRecord] | None:
        if not self._glance.passes(raw):
            return None
        record = attempt(decode_result, raw)
        if record is None:
            return None
        if self._meant.holds(record):
            return TaskId(key[ROW_ID]), record
        if not self.has_cut_previews and self._meant.may_hold(record):
            self.has_cut_previews = self._glance.skips_cut = True
        return None


# -- one task ---------------------------------------------------------------------------------


async def attempts(state: EngineState, task_id: TaskId) -> list[Attempt]:
    """See ``Engine.attempts``."""
    shard = state.shard_of(task_id)
    overlay = shard.overlay
    raw = overlay.get(ATTEMPTS + task_id)
    result = overlay.get(RESULT + task_id)
    if raw is None and result is None and not overlay.has(TASK + task_id):
        shard.coalescer.check_absence()
        await state.commit_barrier(shard)
        raise TaskNotFoundError(
            f"no task and no history of {task_id}: it never existed, or was forgotten after its "
            "history",
            task_id=task_id,
        )
    found = [_attempt(one) for one in (decode_attempts(raw) if raw is not None else ())]
    if result is not None:
        found += _last(decode_result(result))
    await state.commit_barrier(shard)
    return found


def _attempt(one: AttemptRecord) -> Attempt:
    return Attempt(
        number=one.number,
        outcome=Outcome(one.outcome).name.lower(),
        started_at=to_datetime(one.started_us) if one.started_us else None,
        ended_at=to_datetime(one.ended_us),
        worker=one.worker.decode("utf-8", "replace"),
        reason=one.reason.decode("utf-8", "replace"),
    )


def _last(r: ResultRecord) -> Iterable[Attempt]:
    """The run that ended the task, which only its result knows: not that of a dead letter."""
    if r.status == Status.DEAD or not r.leased_us:
        return
    yield Attempt(
        number=r.attempts,
        outcome=Status(r.status).name.lower(),
        started_at=to_datetime(r.leased_us),
        ended_at=to_datetime(r.finished_us),
        worker=r.worker.decode("utf-8", "replace"),
        reason=r.error.decode("utf-8", "replace"),
    )
