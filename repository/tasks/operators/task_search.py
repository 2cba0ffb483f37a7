"""Search for the tasks that a filter means, page by page, within a budget.

Queues one after another, of each its states, of each the tasks in the order of their rows; then, in
one pass over the results of all queues, those that have ended. Nothing is indexed but what the
queue needs itself, so a call looks at a bounded number of rows and hands back a cursor. The cursor
knows the moment the search began: what comes later is not meant, so an end is reached whatever
others add meanwhile.

Rows are read, decoded and compared in a thread (``row_search``, ``lease_search``, ``id_search``).
The loop knows which queues have rows and which leases there are, and looks again at what was found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from heapq import merge
from typing import Final

from ....engine.records.frame import attempt
from ....engine.records.keyspace import DEAD, DELAYED, READY, prefix_end
from ....engine.records.result import decode_result
from ....engine.records.result_glance import ANY_TIME, ResultGlance
from ....engine.records.rows import IndexRow, decode_index_row
from ....engine.records.task import TaskRecord
from ....engine.records.workflow import HELD_MS
from ....engine.runtime.task_id import TaskId
from ....errors import UsageError
from ...model.arguments import duration_s
from ...model.encoded_tasks import to_datetime
from ...model.filters import FILTER_STATES, FINAL, PENDING, Cursor, TaskFilter, id_range
from ...model.preview_arguments import plain_piece
from ...model.values import Duration, Task, payload_bytes
from ...state.engine_state import EngineState
from ...state.queue_state import ShardQueue, TenantQueue
from ...state.shard_scope import buckets_meant, is_meant, shards_meant
from ...state.turns import Turns
from ..lookup import Payloads, find_task, finished_task, indexed_task, row_task
from ..task_list import UNREADABLE, leased_now
from .history import HISTORY_STATES
from .id_search import IdSearch
from .lease_search import leased_pages
from .row_search import FOUND_MAX, Place, RowRange, RowSearch, RowTest

__all__ = ["TaskSearch"]

LOOKS_MAX: Final = 10_000  # rows that one call looks at
BYTES_MAX: Final = 8 << 20  # of results
_PAGE_BYTES: Final = 1 << 20  # of payloads
_LANES: Final = 4096  # tenants that are put in order, or passed, in one go
_LANES_A_LOOK: Final = 16  # tenants without rows that cost as much as a task
_RANGES: Final = 256  # that are searched in one go
_LEASES: Final = 256  # that are looked at between two turns of the loop
_KINDS: Final = {"ready": READY, "delayed": DELAYED, "waiting": DELAYED, "dead": DEAD}
_ID: Final = b"\0"  # before an id, as a place: above all ids there is room for one
_HELD: Final = HELD_MS.to_bytes(8, "big")  # behind all that wait for a time


class TaskSearch:
    """The tasks that a filter means, in pages, and where the search goes on."""

    def __init__(
        self,
        core: EngineState,
        meant: TaskFilter,
        cursor: object,
        payloads: Payloads,
        wanted: int = FOUND_MAX,
        *,
        looks_again: bool = False,
    ) -> None:
        """A search.

        Args:
            core: of the engine.
            meant: the filter.
            cursor: where to go on; None begins.
            payloads: what is shown of payloads and headers.
            wanted: tasks that are enough for a page.
            looks_again: leaves out what has moved on since a thread read it: for what is shown.
        """
        if not isinstance(meant, TaskFilter):
            raise UsageError(f"expected a lodeq.TaskFilter, not {type(meant).__name__}")
        self._core, self._meant, self._payloads = core, meant, payloads
        self._tenant = None if meant.tenant is None else meant.tenant.encode()
        self._wanted, self._looks_again = wanted, looks_again
        start = None if cursor is None else Cursor.of(cursor)
        self.started_us = core.clock.wall_us() if start is None else start.started_us
        # A sequence number is a time; a store opened to be read has drawn none.
        self.seq = max(core.seq, self.started_us) if start is None else start.seq
        self.at: Cursor | None = start
        self.looks = 0  # rows looked at, and lanes passed
        self.bytes = 0  # of results
        self._now = to_datetime(self.started_us)
        self.has_cut_previews = False  # of tasks that may have the text for all that is known
        self._digits = meant.digits
        self._needles = [f"{key}={value}".encode() for key, value in meant.labels.items()]
        self._needles += [meant.function.encode()] if meant.function is not None else []
        names = (
            [meant.queue] if meant.queue is not None else sorted(n.decode() for n in core.topics)
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
        core = self._core
        for shard in shards_meant(core.hosted):  # what was queued before this call is in the store
            await core.commit_barrier(shard)
        core.check()
        async with aclosing(self._found()) as pages:
            async for page, place in pages:
                for shard in shards_meant(core.hosted):  # a row may be of a group not durable yet
                    await core.commit_barrier(shard)
                core.check()
                self.at = Cursor(*place, self.started_us, self.seq)
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
        turns = Turns(self._core)
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
            for lane in await self._lanes(name.encode(), turns):
                await turns.give()  # of a hundred thousand tenants none may have any rows
                one = _range_of(lane, state, position)
                if one is None:
                    continue
                passed += 1
                if passed % _LANES_A_LOOK == 0:
                    self.looks += 1
                if one.sources or passed >= _LANES:
                    ranges.append(one)
                if len(ranges) >= _RANGES or passed >= _LANES:
                    yield ranges
                    ranges, passed = [], 0
        if ranges:
            yield ranges

    async def _lanes(self, queue: bytes, turns: Turns) -> Iterable[TenantQueue]:
        """The tenants' queues in the order of their rows, put in order a few at a time."""
        topic = self._core.topics.get(queue)
        if topic is None:
            return ()
        lanes = topic.lanes
        if self._tenant is not None:
            return [lanes[self._tenant]] if self._tenant in lanes else ()
        names = list(lanes)
        runs = []
        for start in range(0, len(names), _LANES):
            runs.append(sorted(names[start : start + _LANES]))
            await turns.give()
        return (lanes[name] for name in merge(*runs) if name in lanes)

    async def _named(self, ids: Sequence[TaskId]) -> AsyncGenerator[tuple[list[Task], Place], None]:
        """The tasks with these ids, the newest first: each is looked up by itself."""
        core = self._core
        below = b"" if self.at is None else self.at.position
        turns = Turns(core)
        page: list[Task] = []
        size = 0
        place = Place("", FINAL[0], below)
        for task_id in ids:
            await turns.give()
            place = Place("", FINAL[0], _ID + task_id)
            shard = core.shard_of(task_id)
            if (below and place.position >= below) or shard.is_stub or not is_meant(shard):
                continue
            self.looks += 1
            task = find_task(core, shard, task_id, self._payloads)
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
            was_there = task.finished_at is not None and task.finished_at <= self._now
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
        search = RowSearch(self._core, ranges, test, begun, found_max=self._wanted)
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
        search = leased_pages(self._core, queue, self._tenant, place.position, self._is_leased)
        async with aclosing(search) as found:
            async for some, position, looks in found:
                self.looks += 1 + looks
                behind = place._replace(position=position)
                async with aclosing(self._shown(some, behind)) as pages:
                    async for page in pages:
                        yield page

    async def _has_leases(self, queue: bytes) -> bool:
        """Whether there may be leases that are meant: one look at all of them serves all queues."""
        core = self._core
        if self._with_leases is None:
            turns, found = Turns(core), set()
            for n, lease in enumerate(list(core.leases.values())):
                if n % _LEASES == 0:
                    await turns.give()
                found.add(lease.bucket.lane.queue)
            self._with_leases = found
        return queue in self._with_leases or any(
            shard.co.is_following for shard in shards_meant(core.hosted)
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
        turns = Turns(self._core)
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
        core, position, payloads = self._core, task.position, self._payloads
        if task.state == "leased":
            return leased_now(core, task.queue.encode(), position, payloads)
        shard = core.shard_of(task.id)
        if shard.is_stub or not shard.overlay.has(position):
            return None
        if payloads == "none":
            return task
        row = attempt(decode_index_row, shard.overlay.get_sound(position)) or UNREADABLE
        return indexed_task(core, shard, position, row, payloads)

    # What follows is called in the thread that reads.

    def _may_be_meant(self, here: RowRange, key: bytes) -> bool:
        if self._digits and not key[-16:].hex().startswith(self._digits):
            return False
        return self._was_there(key, here.state)

    def _has_needles(self, record: bytes) -> bool:
        return all(needle in record for needle in self._needles)

    def _row_task(
        self, here: RowRange, key: bytes, row: IndexRow, record: TaskRecord | None
    ) -> Task | None:
        task = row_task(self._core, key, row, record, "none")
        return task if self._means(task) else None

    def _is_leased(self, task: Task) -> bool:
        return self._was_there(task.position, "leased") and self._means(task)

    def _was_there(self, position: bytes, state: str) -> bool:
        """Whether a task was there when the search began."""
        if state in PENDING:
            return int.from_bytes(position[-24:-16], "big") <= self.seq
        if state == "leased":
            return int.from_bytes(position[:8], "big") <= self.started_us
        return int.from_bytes(position[-24:-16], "big") <= self.started_us // 1000  # dead

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
        at = min(int.from_bytes(place.position, "big"), high) if place.position else high
        search = IdSearch(
            self._core, at, self._ended_task, bytes_max=BYTES_MAX, looks_max=LOOKS_MAX, low=low
        )
        looks = size = 0
        while not search.is_over:
            page = await search.window()
            self.looks += search.looks - looks
            self.bytes += search.bytes - size
            looks, size = search.looks, search.bytes
            if not search.is_over or page:
                yield page, place._replace(position=search.at.to_bytes(17, "big"))

    def _since_us(self, age: Duration) -> int:
        return self.started_us - int(duration_s(age, "age") * 1e6)

    def _glance_at_ended(self, states: list[str]) -> ResultGlance:
        """The questions that a result is asked before it is decoded: most are passed over."""
        meant = self._meant
        first, last = ANY_TIME
        if meant.newer_than is not None:  # a millisecond more: what passes is compared once more
            first = self._since_us(meant.newer_than) - 1000
        if meant.older_than is not None:
            last = self._since_us(meant.older_than) + 1000
        return ResultGlance(
            statuses=frozenset(HISTORY_STATES[state] for state in states),
            queue=None if meant.queue is None else meant.queue.encode(),
            tenant=self._tenant,
            needles=self._needles,
            created=(first, last),
            finished=(ANY_TIME[0], self.started_us),
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
        task = finished_task(key[2:], record, b"\0" + key[2:])
        if task.finished_at is not None and task.finished_at <= self._now and self._means(task):
            return task
        self._glance.skips_cut = self.has_cut_previews
        return None


def _order(queue: str, state: str) -> tuple[bool, str, int]:
    """The order in which places are searched; ended tasks are one place."""
    if state in FINAL:
        return True, "", 0
    return False, queue, FILTER_STATES.index(state)


def _range_of(lane: TenantQueue, state: str, position: bytes) -> RowRange | None:
    """The rows of a state behind a position; None if the tenant never had any there.

    Args:
        lane: whose rows.
        state: of them.
        position: of the last row that was looked at; empty for none.
    """
    buckets = [bucket for bucket in lane.buckets if bucket is not None]
    if not buckets:
        return None
    kind = _KINDS[state]
    lower = buckets[0].prefix + kind
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
        (bucket.shard, bucket.floor(kind))
        for bucket in buckets_meant(buckets)
        if not bucket.shard.co.takes_writes or _row_count(bucket, state)
    ]
    return RowRange(lane.queue.decode(), state, lower, upper, sources)


def _row_count(bucket: ShardQueue, state: str) -> int:
    if state == "delayed":
        return bucket.delayed - bucket.waiting
    count: int = getattr(bucket, state)
    return count
