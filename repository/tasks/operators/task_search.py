"""Search for the tasks that a filter means, page by page, within a budget.

Queues one after another, of each its states, of each the tasks in the order of their rows; then, in
one pass over the results of all queues, those that have ended: the newest id first, or upwards from
an id. Nothing is indexed but what the queue needs itself, so a call looks at a bounded number of
rows and hands back a cursor. The cursor knows the moment the search began: what comes later is not
meant, so an end is reached whatever others add meanwhile.

Rows are read, decoded and compared in a thread (``row_search``, ``lease_search``, ``id_search``).
The loop knows which queues have rows and which leases there are, and looks again at what was found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from heapq import merge
from typing import Final

from ....engine.records.frame import attempt
from ....engine.records.keyspace import (
    DEAD,
    DELAYED,
    ID_AT,
    READY,
    ROW_ID,
    SEQ_AT,
    prefix_end,
)
from ....engine.records.result import decode_result
from ....engine.records.result_glance import ANY_TIME, ResultGlance
from ....engine.records.rows import IndexRow, decode_index_row
from ....engine.records.task import TaskRecord
from ....engine.records.workflow import HELD_MS
from ....engine.runtime.task_id import TaskId
from ....errors import UsageError
from ...model.arguments import duration_s
from ...model.encoded_tasks import to_datetime
from ...model.filters import (
    FILTER_STATES,
    FINAL,
    PENDING,
    Cursor,
    TaskFilter,
    check_start,
    id_range,
    ordered,
)
from ...model.preview_arguments import plain_piece
from ...model.values import Duration, Task, payload_bytes
from ...state.engine_state import EngineState
from ...state.queue_state import ShardQueue, TenantQueue
from ...state.shard_scope import is_meant, shard_queues_meant, shards_meant
from ...state.turns import Turns
from ..lookup import Payloads, find_task, finished_task, indexed_task, row_task
from ..task_list import UNREADABLE, leased_now
from .history import HISTORY_STATES
from .id_search import IdSearch, RisingIdSearch
from .lease_search import leased_pages
from .row_search import FOUND_MAX, Place, RowRange, RowSearch, RowTest

__all__ = ["TaskSearch"]

LOOKS_MAX: Final = 10_000  # rows that one call looks at
BYTES_MAX: Final = 8 << 20  # of results
_PAGE_BYTES: Final = 1 << 20  # of payloads
_TENANT_QUEUES: Final = 4096  # tenants that are put in order, or passed, in one go
_TENANT_QUEUES_A_LOOK: Final = 16  # tenants without rows that cost as much as a task
_RANGES: Final = 256  # that are searched in one go
_LEASES: Final = 256  # that are looked at between two turns of the loop
_KINDS: Final = {"ready": READY, "delayed": DELAYED, "waiting": DELAYED, "dead": DEAD}
_ID: Final = b"\0"  # before an id, as a place: above all ids there is room for one
_HELD: Final = HELD_MS.to_bytes(8, "big")  # behind all that wait for a time


class TaskSearch:
    """The tasks that a filter means, in pages, and where the search goes on."""

    def __init__(
        self,
        engine_state: EngineState,
        meant: TaskFilter,
        cursor: object,
        payloads: Payloads,
        wanted: int = FOUND_MAX,
        *,
        looks_again: bool = False,
        start: bytes = b"",
    ) -> None:
        """A search.

        Args:
            engine_state: of the engine.
            meant: the filter.
            cursor: where to go on; None begins.
            payloads: what is shown of payloads and headers.
            wanted: tasks that are enough for a page.
            looks_again: leaves out what has moved on since a thread read it: for what is shown.
            start: the id behind which ended tasks are listed, the oldest first; empty: that is not
                the order.
        """
        if not isinstance(meant, TaskFilter):
            raise UsageError(f"expected a lodeq.TaskFilter, not {type(meant).__name__}")
        meant = ordered(meant, start)
        self._state, self._meant, self._payloads = engine_state, meant, payloads
        self._tenant = None if meant.tenant is None else meant.tenant.encode()
        self._wanted, self._looks_again = wanted, looks_again
        self._start = start
        at = None if cursor is None else Cursor.of(cursor)
        if at is not None:
            check_start(at.start, start)
        self.started_us = engine_state.clock.wall_us() if at is None else at.started_us
        # A sequence number is a time; a store opened to be read has drawn none.
        self._draws = engine_state.seq > 0
        self.seq = max(engine_state.seq, self.started_us) if at is None else at.seq
        self.at: Cursor | None = at
        self.looks = 0  # rows looked at, and tenant queues passed
        self.bytes = 0  # of results
        self._now = to_datetime(self.started_us)
        self.has_cut_previews = False  # of tasks that may have the text for all that is known
        self._digits = meant.digits
        self._needles = [f"{key}={value}".encode() for key, value in meant.labels.items()]
        self._needles += [meant.function.encode()] if meant.function is not None else []
        names = (
            [meant.queue]
            if meant.queue is not None
            else sorted(n.decode() for n in engine_state.queue_states)
        )
        self._places = [
            (name, state) for name in names for state in meant.states if state not in FINAL
        ]
        ended = [state for state in meant.states if state in FINAL]
        self._glance = self._glance_at_ended(ended)
        self._with_leases: set[bytes] | None = None  # queues; None: not looked at yet
        if ended:  # whatever their queue: their rows are in the order of ids
            self._places.append((meant.queue or "", ended[0]))

    @property
    def is_spent(self) -> bool:
        """Whether one call has looked at enough."""
        return self.looks >= LOOKS_MAX or self.bytes >= BYTES_MAX

    async def pages(self) -> AsyncGenerator[list[Task], None]:
        """Tasks that match, page by page; ``at`` is then behind the last task looked at."""
        state = self._state
        for shard in shards_meant(state.hosted):  # what was queued before this call is in the store
            await state.commit_barrier(shard)
        state.check()
        async with aclosing(self._found()) as pages:
            async for page, place in pages:
                for shard in shards_meant(state.hosted):  # a row may be of a group not durable yet
                    await state.commit_barrier(shard)
                state.check()
                self.at = Cursor(*place, self.started_us, self.seq, self._start)
                yield page
        self.at = None

    def behind(self, task: Task) -> None:
        """The search goes on behind this task, although others of its page were looked at."""
        at = self.at
        if at is None:
            return
        if self._meant.ids is not None:
            self.at = replace(at, position=_ID + task.id)
        elif at.state in FINAL:
            self.at = replace(at, position=task.position)
        else:
            self.at = replace(at, queue=task.queue, state=task.state, position=task.position)

    async def _found(self) -> AsyncGenerator[tuple[list[Task], Place], None]:
        """Pages, each with the place up to which all was looked at."""
        if self._meant.ids is not None:
            async with aclosing(self._named(self._meant.chosen)) as named:
                async for page in named:
                    yield page
            return
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if isinstance(part, list):
                    search = self._rows(part)
                else:
                    search = self._ended(part) if part.state in FINAL else self._leased(part)
                async with aclosing(search) as pages:
                    async for page in pages:
                        yield page

    async def _parts(self) -> AsyncGenerator[list[RowRange] | Place, None]:
        """Parts that are searched together: rows of several queues, leases of one, results."""
        first = self.at
        start = None if first is None else _order(first.queue, first.state)
        ranges: list[RowRange] = []
        turns = Turns(self._state)
        for name, state in self._places:
            # Queues that came into being since are before or behind: a cursor names its place.
            order = _order(name, state)
            if start is not None and order < start:
                continue
            position = first.position if first is not None and order == start else b""
            if state == "leased" and not await self._has_leases(name.encode()):
                self.looks += 1
                continue
            if state not in _KINDS:
                if ranges:
                    yield ranges
                    ranges = []
                yield Place(name, state, position)
                continue
            passed = 0
            for tenant_queue in await self._tenant_queues(name.encode(), turns):
                await turns.give()  # of a hundred thousand tenants none may have any rows
                one = _range_of(tenant_queue, state, position)
                if one is None:
                    continue
                passed += 1
                if passed % _TENANT_QUEUES_A_LOOK == 0:
                    self.looks += 1
                if one.sources or passed >= _TENANT_QUEUES:
                    ranges.append(one)
                if len(ranges) >= _RANGES or passed >= _TENANT_QUEUES:
                    yield ranges
                    ranges, passed = [], 0
        if ranges:
            yield ranges

    async def _tenant_queues(self, queue: bytes, turns: Turns) -> Iterable[TenantQueue]:
        """The tenants' queues in the order of their rows, put in order a few at a time."""
        queue_state = self._state.queue_states.get(queue)
        if queue_state is None:
            return ()
        tenant_queues = queue_state.tenant_queues
        if self._tenant is not None:
            return [tenant_queues[self._tenant]] if self._tenant in tenant_queues else ()
        names = list(tenant_queues)
        runs = []
        for start in range(0, len(names), _TENANT_QUEUES):
            runs.append(sorted(names[start : start + _TENANT_QUEUES]))
            await turns.give()
        return (tenant_queues[name] for name in merge(*runs) if name in tenant_queues)

    async def _named(self, ids: Sequence[TaskId]) -> AsyncGenerator[tuple[list[Task], Place], None]:
        """The tasks with these ids, the newest first: each is looked up by itself."""
        state = self._state
        below = b"" if self.at is None else self.at.position
        turns = Turns(state)
        page: list[Task] = []
        size = 0
        place = Place("", FINAL[0], below)
        for task_id in ids:
            await turns.give()
            place = Place("", FINAL[0], _ID + task_id)
            shard = state.shard_of(task_id)
            if (below and place.position >= below) or shard.is_stub or not is_meant(shard):
                continue
            self.looks += 1
            task = find_task(state, shard, task_id, self._payloads)
            if task is not None and self._is_named(task):
                page.append(task)
                size += payload_bytes(task)
            if size >= _PAGE_BYTES:
                yield page, place
                page, size = [], 0
        yield page, place

    def _is_named(self, task: Task) -> bool:
        meant = self._meant
        if task.state not in meant.states:
            return False
        if meant.queue is not None and task.queue != meant.queue:
            return False
        if meant.tenant is not None and task.tenant != meant.tenant:
            return False
        if task.state in FINAL:
            was_there = task.finished_at is not None and self._had_ended(task.finished_at)
        else:
            was_there = self._was_there(task.position, task.state)
        return was_there and self._means(task)

    # -- tasks that have not ended -------------------------------------------------------

    async def _rows(self, ranges: list[RowRange]) -> AsyncGenerator[tuple[list[Task], Place], None]:
        at = self.at
        begun = Place(ranges[0].queue, ranges[0].state, b"")
        if at is not None:
            begun = Place(at.queue, at.state, at.position)
        test = RowTest(self._may_be_meant, self._has_needles, self._row_task)
        search = RowSearch(self._state, ranges, test, begun, found_max=self._wanted)
        looks = 0
        while not search.is_over:
            found = await search.window()
            self.looks += search.looks - looks
            looks = search.looks
            async with aclosing(self._shown(found, search.place)) as pages:
                async for page in pages:
                    yield page

    async def _leased(self, place: Place) -> AsyncGenerator[tuple[list[Task], Place], None]:
        queue = place.queue.encode()
        search = leased_pages(self._state, queue, self._tenant, place.position, self._is_leased)
        async with aclosing(search) as found:
            async for some, position, looks in found:
                self.looks += 1 + looks
                behind = place._replace(position=position)
                async with aclosing(self._shown(some, behind)) as pages:
                    async for page in pages:
                        yield page

    async def _has_leases(self, queue: bytes) -> bool:
        """Whether there may be leases that are meant: one look at all of them serves all queues."""
        state = self._state
        if self._with_leases is None:
            turns, found = Turns(state), set()
            for n, lease in enumerate(list(state.leases.values())):
                if n % _LEASES == 0:
                    await turns.give()
                found.add(lease.shard_queue.tenant_queue.queue)
            self._with_leases = found
        return queue in self._with_leases or any(
            shard.coalescer.is_following for shard in shards_meant(state.hosted)
        )

    async def _shown(
        self, found: list[Task], behind: Place
    ) -> AsyncGenerator[tuple[list[Task], Place], None]:
        """Tasks as they are now, with payloads if they are wanted: few at a time if large."""
        if not self._looks_again:
            yield found, behind
            return
        page: list[Task] = []
        size = 0
        turns = Turns(self._state)
        for one in found:
            await turns.give()
            task = self._as_now(one)
            if task is None:
                continue
            page.append(task)
            size += payload_bytes(task)
            if size >= _PAGE_BYTES:
                yield page, Place(one.queue, one.state, one.position)
                page, size = [], 0
        yield page, behind

    def _as_now(self, task: Task) -> Task | None:
        """The task with its payload; None if it is no longer where it was found."""
        state, position, payloads = self._state, task.position, self._payloads
        if task.state == "leased":
            return leased_now(state, task.queue.encode(), position, payloads)
        shard = state.shard_of(task.id)
        if shard.is_stub or not shard.overlay.has(position):
            return None
        if payloads == "none":
            return task
        row = attempt(decode_index_row, shard.overlay.get_sound(position)) or UNREADABLE
        return indexed_task(state, shard, position, row, payloads)

    # What follows is called in the thread that reads.

    def _may_be_meant(self, here: RowRange, key: bytes) -> bool:
        if self._digits and not key[ID_AT:].hex().startswith(self._digits):
            return False
        return self._was_there(key, here.state)

    def _has_needles(self, record: bytes) -> bool:
        return all(needle in record for needle in self._needles)

    def _row_task(
        self, here: RowRange, key: bytes, row: IndexRow, record: TaskRecord | None
    ) -> Task | None:
        task = row_task(self._state, key, row, record, "none")
        return task if self._means(task) else None

    def _is_leased(self, task: Task) -> bool:
        return self._was_there(task.position, "leased") and self._means(task)

    def _was_there(self, position: bytes, state: str) -> bool:
        """Whether a task was there when the search began."""
        if state in PENDING:
            seq = int.from_bytes(position[SEQ_AT:ID_AT], "big")
            return seq <= self.seq or (not self._draws and self._had_been(seq))
        if state == "leased":
            return self._had_been(int.from_bytes(position[:8], "big"))
        return self._had_been(int.from_bytes(position[SEQ_AT:ID_AT], "big") * 1000)  # dead

    def _had_been(self, at_us: int) -> bool:
        """Whether a moment was over when the search began.

        One ahead of the clock is of before the clock was set back: nothing has come from there
        since.
        """
        return at_us <= self.started_us or at_us > self._state.clock.wall_us()

    def _had_ended(self, at: datetime) -> bool:
        return at <= self._now or at > to_datetime(self._state.clock.wall_us())

    def _means(self, task: Task) -> bool:
        meant = self._meant
        if meant.matches(task, self._now):
            return True
        self.has_cut_previews = self.has_cut_previews or meant.may_match(task, self._now)
        return False

    # -- those that have -----------------------------------------------------------------

    async def _ended(self, place: Place) -> AsyncGenerator[tuple[list[Task], Place], None]:
        low, high = id_range(self._digits)
        if self._meant.newer_than is not None:  # an id is drawn when its task is stored
            low = max(low, self._since_us(self._meant.newer_than) // 1000 << 80)
        search = self._by_id(place.position, low, high)
        step = 1 if self._start else 0  # a cursor has the last id that was looked at
        looks = size = 0
        while not search.is_over:
            page = await search.window()
            self.looks += search.looks - looks
            self.bytes += search.bytes - size
            looks, size = search.looks, search.bytes
            if not search.is_over or page:
                yield page, place._replace(position=(search.at - step).to_bytes(17, "big"))

    def _by_id(self, position: bytes, low: int, high: int) -> IdSearch[Task]:
        """The search through ids from ``low`` to below ``high`` that goes on at a position."""
        at = int.from_bytes(position, "big")
        if not self._start:
            return IdSearch(
                self._state,
                min(at, high) if position else high,
                self._ended_task,
                bytes_max=BYTES_MAX,
                looks_max=LOOKS_MAX,
                low=low,
            )
        return RisingIdSearch(
            self._state,
            max(low, at + 1, int.from_bytes(self._start, "big") + 1),
            self._ended_task,
            bytes_max=BYTES_MAX,
            looks_max=LOOKS_MAX,
            high=high,
            found_max=self._wanted,
        )

    def _since_us(self, age: Duration) -> int:
        return self.started_us - int(duration_s(age, "age") * 1e6)

    def _between(self, most: Duration | None, least: Duration | None) -> tuple[int, int]:
        """The times of these ages, a millisecond wider: what passes is compared once more."""
        first, last = ANY_TIME
        if most is not None:
            first = self._since_us(most) - 1000
        return first, last if least is None else self._since_us(least) + 1000

    def _glance_at_ended(self, states: list[str]) -> ResultGlance:
        """The questions that a result is asked before it is decoded: most are passed over."""
        meant = self._meant
        return ResultGlance(
            statuses=frozenset(HISTORY_STATES[state] for state in states),
            queue=None if meant.queue is None else meant.queue.encode(),
            tenant=self._tenant,
            needles=self._needles,
            created=self._between(meant.newer_than, meant.older_than),
            finished=self._between(meant.finished_newer_than, meant.finished_older_than),
            reason=meant.reason,
            text=meant.text or plain_piece(meant.arguments),
        )

    def _ended_task(self, key: bytes, raw: bytes) -> Task | None:
        """The task of a result, if it is meant. Called in the thread that reads the rows."""
        if not self._glance.passes(raw):
            return None
        record = attempt(decode_result, raw)
        if record is None:
            return None
        task = finished_task(key[ROW_ID], record, b"\0" + key[ROW_ID])
        if task.finished_at is not None and self._had_ended(task.finished_at) and self._means(task):
            return task
        self._glance.skips_cut = self.has_cut_previews
        return None


def _order(queue: str, state: str) -> tuple[bool, str, int]:
    """The order in which places are searched; ended tasks are one place."""
    if state in FINAL:
        return True, "", 0
    return False, queue, FILTER_STATES.index(state)


def _range_of(tenant_queue: TenantQueue, state: str, position: bytes) -> RowRange | None:
    """The rows of a state behind a position; None if the tenant never had any there.

    Args:
        tenant_queue: whose rows.
        state: of them.
        position: of the last row that was looked at; empty for none.
    """
    shard_queues = [
        shard_queue for shard_queue in tenant_queue.shard_queues if shard_queue is not None
    ]
    if not shard_queues:
        return None
    kind = _KINDS[state]
    lower = shard_queues[0].prefix + kind
    upper = prefix_end(lower)
    if state == "delayed":
        upper = lower + _HELD
    elif state == "waiting":
        lower += _HELD
    if position >= upper:
        return None
    if position:
        lower = max(lower, position + b"\0")
    # Where this process counts rows, nothing is read to know that there are none.
    sources = [
        (shard_queue.shard, shard_queue.floor(kind))
        for shard_queue in shard_queues_meant(shard_queues)
        if not shard_queue.shard.coalescer.takes_writes or _row_count(shard_queue, state)
    ]
    return RowRange(tenant_queue.queue.decode(), state, lower, upper, sources)


def _row_count(shard_queue: ShardQueue, state: str) -> int:
    if state == "delayed":
        return shard_queue.delayed - shard_queue.waiting
    count: int = getattr(shard_queue, state)
    return count
