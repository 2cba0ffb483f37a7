"""Joins: each end of a member is counted in its own batch, and the last one lets the target go.

A member is a task with a flag in its index row and lease. Its end reads its edges (nearly always
one), and writes for each one row of the part and one counter, the join's: O(1), however many parts
there are. When the last has ended, and no more can come, the join *fires*, in that same batch:
its target becomes ready, or is cancelled, or goes on waiting, as ``on_failure`` says.

Letting a target go by cancelling it is an end of a member again. Such ends are counted in turn, not
by recursion, and at most ``CASCADE_MAX`` in one batch: what is left is put into the outbox, rows
that the reaper applies in slices. The same rows carry ends to joins on other slots.

All of it are atomic sections. Nothing here raises what would leave a group half-built: a row that
cannot be read is an anomaly, and the join asks its members again at the next open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Final

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.keyspace import (
    DEAD,
    DUE_AT,
    ID_AT,
    LEASE,
    MOVED,
    OUTBOX,
    OUTBOX_END,
    READY,
    RESULT,
    SEQ_AT,
    TASK,
)
from ...engine.records.lease import DEAD_LEASE, decode_lease, encode_lease
from ...engine.records.result import Status, decode_result, encode_result
from ...engine.records.rows import MOVED_ROW, Moved, encode_index_row, encode_moved
from ...engine.records.workflow import (
    CALLBACK,
    CANCELLED_FLAG,
    FIRED,
    JOIN,
    KEY,
    MEMBER_LEASE,
    MEMBER_RESULT,
    MEMBER_ROW,
    NO_ID,
    OUTBOX_JOIN,
    OUTBOX_SOURCE,
    OVER,
    PART,
    PART_NUMBER,
    REDRIVING,
    TARGET_ROLE,
    WAITS,
    Edge,
    JoinRecord,
    OutboxRecord,
    PartRecord,
    decode_edges,
    decode_join,
    decode_outbox,
    decode_part,
    edge_to,
    edges_key,
    encode_edges,
    encode_outbox,
    encode_part,
    outbox_key,
    part_key,
)
from ...engine.runtime.ids import slot_of_id
from ...errors import CorruptionError, InvariantError, LodeqError, NotLeaderError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard, ShardQueue
from ..state.rows.task_location import TaskLocation, is_alive, leave, task_location
from ..tasks.task_end import end_task
from .edges import drop_edge, join_of, put_edge, put_join
from .redrives import (
    ON_CANCEL,
    ON_WAIT,
    is_cancelled_whole,
    take_back,
    uncount,
    waits_for_redrive,
)

__all__ = [
    "CASCADE_MAX",
    "HELD_UP_S_MAX",
    "KEPT_MS",
    "SLICE",
    "UNBORN_S",
    "Joins",
    "end_of",
    "range_end",
]

CASCADE_MAX: Final = 64  # ends that one batch may lead to
SLICE: Final = 128
ROUNDS_MAX, PAGES_MAX = 8, 64  # through the outboxes in one pass, of one outbox in one round
ELSEWHERE_MAX: Final = 8192  # parts that are to be asked of other leaders, kept at once
ENDS_MAX: Final = 1024  # ends that are to be told to one of them, kept at once
HELD_UP_S_MAX: Final = 30  # that an end may wait for a foreign leader, before health says so
KEPT_MS: Final = 7 * 86_400_000  # what is known of a workflow, from when it is over
UNBORN_S: Final = 60.0  # that an end from elsewhere waits for its join to be written

# Gives tasks elsewhere their edges to a join; returns how each has ended, 0 if it has not.
Attach = Callable[[bytes, Sequence[tuple[int, bytes]], bool], Awaitable[dict[bytes, int]]]
# Redrives what is dead of these tasks, of shards that are led elsewhere; returns how many were.
Redrive = Callable[[Sequence[bytes]], Awaitable[int]]


class Joins:
    """The joins of one engine: a ``JoinCounts``."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._ends: deque[tuple[bytes, int]] = deque()  # of members, to be counted in this batch
        self._is_counting = False
        self._has_counted = False  # the outbox, in this round
        self.has_more = False
        self.takers: list[Callable[[Group, ShardQueue, bytes], bool]] = []
        self._again: set[Shard] = set()  # where joins are to ask once more after this time
        # Goes on with a cancel or redrive that a process has left halfway; a module above.
        self.resume: Callable[[Shard, bytes], Iterator[dict[Shard, Group]]] = _nothing
        self._asks: dict[Shard, bytes] = {}  # where joins still ask their members: from which key
        self._sends: dict[Shard, bytes] = {}  # where there are outbox rows: from which key
        # Outbox rows whose end is counted, but not yet synced there: receiver, its commit, sender,
        # key, value.
        self._sent: list[tuple[Shard, int, Shard, bytes, bytes]] = []
        self._held_up: dict[Shard, tuple[int, int]] = {}  # rows for foreign leaders: oldest, count
        # For leaders elsewhere, by their shard (``other_leaders``): parts to ask, by join and
        # number, and outbox rows, by key; each with the shard it comes from.
        self.asks_elsewhere: dict[Shard, dict[tuple[bytes, int], tuple[Shard, PartRecord]]] = {}
        self.ends_elsewhere: dict[Shard, dict[bytes, tuple[Shard, bytes, OutboxRecord]]] = {}
        self.tell: Callable[[], None] = _nobody
        self.attach_elsewhere: Attach = _nowhere
        self.redrive_elsewhere: Redrive = _by_nobody

    # -- ends --------------------------------------------------------------------------

    def ended(self, group: Group, shard: Shard, task_id: bytes, status: int, now_us: int) -> None:
        """Count the end of a member in all its joins.

        Args:
            group: of the task's shard; gets the rows.
            shard: of the task.
            task_id: of the member.
            status: how it ended; 0: a dead letter is deleted.
            now_us: wall microseconds.
        """
        self._ends.append((task_id, status))
        if self._is_counting:  # an end that this very batch has led to
            return
        self._is_counting = True
        try:
            counted = 0
            while self._ends:
                one, how = self._ends.popleft()
                counted += 1
                try:
                    self._count(group, shard, one, how, now_us, is_late=counted > CASCADE_MAX)
                except LodeqError as error:
                    self._state.anomaly(f"shard {shard.index}: joins of {one.hex()}: {error}")
                    self._asks.setdefault(shard, JOIN)
        finally:
            self._is_counting = False
            self._ends.clear()

    def _count(
        self, group: Group, shard: Shard, task_id: bytes, status: int, now_us: int, *, is_late: bool
    ) -> None:
        """One end, in all joins of the task. ``is_late``: the outbox takes it."""
        raw = shard.overlay.get(edges_key(task_id))
        edges = decode_edges(raw) if raw is not None else []
        gone: set[bytes] = set()
        for edge in edges:
            if edge.role == TARGET_ROLE:
                self._target_ended(group, shard, edge.join, task_id, status, now_us)
            elif not status:
                continue  # it was counted when it died
            elif is_late or slot_of_id(edge.join) != slot_of_id(task_id):
                record = OutboxRecord(status, edge.number, edge.epoch, now_us)
                group.ops.append((outbox_key(task_id, edge.join), encode_outbox(record)))
                self._has_to_send(shard)
            else:
                self.count_part(group, shard, edge.join, edge.number, task_id, status, now_us)
                if join_of(shard, edge.join) is None:  # a power cut has taken it
                    gone.add(edge.join)
        if gone:
            left = [edge for edge in edges if edge.join not in gone]
            group.ops.append((edges_key(task_id), encode_edges(left) if left else None))

    def count_part(
        self,
        group: Group,
        shard: Shard,
        join: bytes,
        number: int,
        task_id: bytes,
        status: int,
        now_us: int,
        epoch: int | None = None,
    ) -> bool:
        """One end in one join: the part's row, and the join's counter. Returns whether it is new.

        Args:
            group: of the join's shard; gets the rows.
            shard: of the join.
            join: its id.
            number: of the part.
            task_id: of the part's task.
            status: how it ended; 0: its end was taken back, and it is under way again.
            now_us: when, wall microseconds.
            epoch: of a task on another slot, when it ended; None: the end is of now.
        """
        key = part_key(join, number)
        raw = shard.overlay.get(key)
        record = join_of(shard, join)
        if raw is None or record is None:
            return False
        part = decode_part(raw)
        if part.source != task_id:
            return False
        if epoch is not None and epoch < part.epoch:  # an end from before a redrive
            return False
        if part.status:  # only the first end of an epoch counts
            is_again = epoch is not None and epoch > part.epoch and part.status == Status.DEAD
            if not is_again or not waits_for_redrive(shard, record):
                return False
            record = record._replace(ended=record.ended - 1, failed=record.failed - 1)
        elif not status and epoch == part.epoch:
            return False
        if status:
            failed = record.failed + (status != Status.COMPLETED)
            record = record._replace(ended=record.ended + 1, failed=failed)
        written = record.generation if epoch is None else epoch
        value = encode_part(PartRecord(status, written, now_us if status else 0, task_id))
        group.ops.append((key, value))
        self.settle(group, shard, join, record, now_us)
        return True

    def redriven(self, group: Group, shard: Shard, task_id: bytes) -> None:
        """A dead member runs again: joins that wait for that take its end back. See ``JoinCounts``.

        Args:
            group: of the task's shard; gets the rows.
            shard: of the task.
            task_id: of the member.
        """
        try:
            if take_back(group, shard, task_id, self._state.clock.wall_us()):
                self._has_to_send(shard)
        except LodeqError as error:
            self._state.anomaly(f"shard {shard.index}: joins of {task_id.hex()}: {error}")
            self._asks.setdefault(shard, JOIN)

    def _has_to_send(self, shard: Shard) -> None:
        self._sends[shard] = OUTBOX
        self.has_more = True
        self._state.deadlines.wake_reaper()

    def _target_ended(
        self, group: Group, shard: Shard, join: bytes, task_id: bytes, status: int, now_us: int
    ) -> None:
        """The task that a join has let go is over: so is the join, but for a dead letter."""
        if status == Status.DEAD:  # it may be redriven, and read its parts again
            return
        record = join_of(shard, join)
        if record is None or record.target != task_id or record.state == OVER:
            return
        put_join(group, join, record._replace(state=OVER, fired_us=record.fired_us or now_us))
        self._state.file_expiry(shard, group, now_us // 1000 + KEPT_MS, b"w" + join)

    # -- firing ------------------------------------------------------------------------

    def settle(
        self, group: Group, shard: Shard, join: bytes, record: JoinRecord, now_us: int
    ) -> None:
        """Queue the join's row, and fire it if nothing it waits for is left.

        Args:
            group: of the join's shard; gets the rows.
            shard: of the join.
            join: its id.
            record: as it is from now on.
            now_us: wall microseconds.
        """
        if record.state != WAITS or not record.is_complete:
            put_join(group, join, record)
            return
        is_cancelled = is_cancelled_whole(shard, record)
        if record.failed and record.on_failure == ON_WAIT and not is_cancelled:
            put_join(group, join, record)  # until a redrive
            return
        state = OVER if record.target == NO_ID else FIRED
        put_join(group, join, record._replace(state=state, fired_us=now_us))
        if record.target == NO_ID:
            self._state.file_expiry(shard, group, now_us // 1000 + KEPT_MS, b"w" + join)
            return
        if record.target not in self._state.leases and self._is_lost(shard, record.target):
            self._target_ended(group, shard, join, record.target, 0, now_us)
        elif is_cancelled:
            self._cancel_target(group, shard, record.target, "its workflow was cancelled")
        elif record.failed and record.on_failure == ON_CANCEL:
            reason = f"{record.failed} of the {record.parts} tasks it waited for did not complete"
            self._cancel_target(group, shard, record.target, reason)
        else:
            self.release(group, shard, record.target, now_us)

    def _is_lost(self, shard: Shard, target: bytes) -> bool:
        """Whether nothing is left of a task that was to be let go: a hole in the log took it."""
        return (
            not shard.overlay.has(TASK + target)
            and task_location(self._state, shard, target) is None
        )

    def release(self, group: Group, shard: Shard, target: bytes, now_us: int) -> None:
        """A waiting task becomes ready: ``-q(d) +q(r) +s``. Any other is left where it is.

        Args:
            group: of the task's shard; gets the rows.
            shard: of the task.
            target: its id.
            now_us: wall microseconds.
        """
        state = self._state
        if shard.overlay.get_sound(LEASE + target) is not None:
            return  # a hole in the log took what it was let go by
        location = task_location(state, shard, target)
        if location is None or not location.is_waiting or self._is_taken(group, location):
            return
        shard_queue, row = location.shard_queue, location.row
        index = 9 - row.priority
        key = shard_queue.ready_key(
            shard_queue.ready_prefixes[index], state.next_seq(now_us), target
        )
        moved = encode_moved(Moved(row.attempts, key))
        row = row._replace(flags=row.flags | MOVED_ROW)
        encode_index_row(row)  # first: nothing may fail between the two moves
        state.drop_delayed(group, shard_queue, location.key)
        state.put_ready(group, shard_queue, index, key, target, row)
        group.ops.append((MOVED + target, moved))

    def _cancel_target(self, group: Group, shard: Shard, target: bytes, reason: str) -> None:
        location = task_location(self._state, shard, target)
        if location is not None and location.is_waiting and not self._is_taken(group, location):
            end_task(self._state, group, location, Status.CANCELLED, reason)

    def _is_taken(self, group: Group, location: TaskLocation) -> bool:
        return any(take(group, location.shard_queue, location.key) for take in self.takers)

    # -- results and rows that are kept ------------------------------------------------

    def pins(self, shard: Shard, task_id: bytes) -> bool:
        """Whether a join that the task is part of may still be read: its target is not over."""
        try:
            return self._is_part(shard, task_id, lambda _, record: record.state != OVER)
        except LodeqError as error:
            self._state.anomaly(f"shard {shard.index}: joins of {task_id.hex()}: {error}")
            return True

    def awaits(self, shard: Shard, task_id: bytes) -> bool:
        """Whether a join that the dead task is part of waits for its redrive."""
        return self._is_part(shard, task_id, waits_for_redrive)

    def _is_part(
        self, shard: Shard, task_id: bytes, test: Callable[[Shard, JoinRecord], bool]
    ) -> bool:
        """Whether a join passes that the task is part of.

        One on a shard that is not here passes until the task's end is ``KEPT_MS`` ago: nobody says
        when it is over.
        """
        is_elsewhere = False
        raw = shard.overlay.get(edges_key(task_id))
        for edge in decode_edges(raw) if raw is not None else ():
            if edge.role == TARGET_ROLE:
                continue
            home = self._state.shard_of(edge.join)
            try:
                record = join_of(home, edge.join)
            except NotLeaderError:
                is_elsewhere = True
                continue
            if record is not None and test(home, record):
                return True
        return is_elsewhere and self._is_young(shard, task_id)

    def _is_young(self, shard: Shard, task_id: bytes) -> bool:
        """Whether the task ended less than ``KEPT_MS`` ago."""
        result = attempt(decode_result, shard.overlay.get(RESULT + task_id))
        if result is not None:
            ended_ms = result.finished_us // 1000
        else:
            location = task_location(self._state, shard, task_id)
            if location is None or location.kind != DEAD:
                return False
            ended_ms = int.from_bytes(location.key[SEQ_AT:ID_AT], "big")
        return self._state.clock.wall_us() // 1000 - ended_ms < KEPT_MS

    def sweep(self, shard: Shard, group: Group, join: bytes) -> None:
        """Forget a join whose time is over: a slice of its parts, at last itself."""
        record = join_of(shard, join)
        if record is None or record.state != OVER:
            return
        now_ms = self._state.clock.wall_us() // 1000
        until_ms = record.fired_us // 1000 + KEPT_MS
        if until_ms > now_ms:  # it was redriven meanwhile
            self._state.file_expiry(shard, group, until_ms, b"w" + join)
            return
        lower = PART + join
        rows, following = shard.overlay.scan(lower, range_end(lower), SLICE)
        for key, raw in rows:
            part = attempt(decode_part, raw)
            group.ops.append((key, None))
            if part is None:
                continue
            home = self._state.shard_of(part.source)
            if home is shard:
                drop_edge(group, shard, part.source, join)
            elif home.coalescer.takes_writes:  # one that is left leads nowhere
                there = home.coalescer.begin()
                with there:
                    drop_edge(there, home, part.source, join)
        if rows or following is not None:  # more may be left
            self._state.file_expiry(shard, group, now_ms, b"w" + join)
            return
        group.ops += ((JOIN + join, None), (CALLBACK + join, None))
        if record.target != NO_ID:
            drop_edge(group, shard, record.target, join)
        if record.key_hash != NO_ID:
            group.ops.append((KEY + record.key_hash, None))

    # -- after an open, and in the background --------------------------------------------

    def load(self, shard: Shard) -> None:
        """Look for joins and outbox rows: two seeks. The reaper does the rest, in slices."""
        for lower, upper, todo in (
            (JOIN, range_end(JOIN), self._asks),
            (OUTBOX, OUTBOX_END, self._sends),
        ):
            rows, following = shard.overlay.scan_readable(lower, upper, 1)
            if rows or following is not None:
                todo[shard] = lower
        self._again.add(shard)
        self._drop_sent(shard)

    def forget(self, shard: Shard) -> None:
        """Do nothing more for a shard that is not here any more."""
        for todo in (self._asks, self._sends, self._held_up):
            todo.pop(shard, None)
        self._again.discard(shard)
        self._drop_sent(shard)
        self.ends_elsewhere.pop(shard, None)  # rows that wait are met again
        for one, _ in self.asks_elsewhere.pop(shard, {}).values():
            if one is not shard:
                self.ask_again(one)

    def _drop_sent(self, shard: Shard) -> None:
        for receiver, _, sender, _, _ in self._sent:
            if receiver is shard is not sender:
                self._sends.setdefault(sender, OUTBOX)  # sent again to whoever leads it next
        self._sent = [one for one in self._sent if shard not in (one[0], one[2])]

    def slices(self) -> Iterator[dict[Shard, Group]]:
        """Unfired joins ask their members; outbox rows are applied. One atomic section a step."""
        self.has_more = False
        for shard in list(self._asks):
            yield from self._ask_all(shard)
        if self._sent:
            yield from self._forget_sent()
        self.has_more = False  # all that came is looked at now
        for _ in range(ROUNDS_MAX):  # what is sent may lead to more; others have work, too
            self._has_counted = False
            for shard in list(self._sends):
                yield from self._send(shard)
            if not self._has_counted:
                break
        else:
            self.has_more = True
        if self.asks_elsewhere or self.ends_elsewhere:
            self.tell()

    def problems(self) -> list[str]:
        """Say which shards have ends to tell that no leader here has taken for too long."""
        now_us = self._state.clock.wall_us()
        return [
            f"shard {shard.index}: {count} ends of tasks wait for the leader of another shard, the "
            f"oldest for {(now_us - oldest_us) // 1_000_000} s: is it there, and reached from here?"
            for shard, (oldest_us, count) in self._held_up.items()
            if shard.coalescer.takes_writes and now_us - oldest_us > HELD_UP_S_MAX * 1_000_000
        ]

    def ask_again(self, shard: Shard) -> None:
        """Have all unfired joins of a shard ask their members in the next pass of the reaper."""
        self._asks[shard] = JOIN
        self._again.add(shard)  # also if that is under way

    def _ask_all(self, shard: Shard) -> Iterator[dict[Shard, Group]]:
        self._again.discard(shard)
        at: bytes | None = self._asks.get(shard)
        while at is not None and shard.coalescer.is_tended and not self._asks_too_many():
            rows, following = shard.overlay.scan_readable(at, range_end(JOIN), SLICE)
            at = yield from self._ask_page(shard, rows, following)
            yield {}  # also where all of them are over
        if shard in self._again:
            at = JOIN
        if at is None:
            self._asks.pop(shard, None)
        elif shard in self._asks:
            self._asks[shard] = at

    def _asks_too_many(self) -> bool:
        """Whether enough parts wait for other leaders: the next pass goes on."""
        return sum(map(len, self.asks_elsewhere.values())) > ELSEWHERE_MAX

    def _ask_page(
        self, shard: Shard, rows: Sequence[tuple[bytes, bytes]], following: bytes | None
    ) -> Generator[dict[Shard, Group], None, bytes | None]:
        """Ask the joins of one page; returns the key to go on at."""
        for key, raw in rows:
            if self._asks_too_many():
                return key
            record, join = attempt(decode_join, raw), key[len(JOIN) :]
            if record is None or self._is_over(shard, record):
                continue
            try:
                yield from self._ask(shard, join)
            except CorruptionError as error:  # the others go on
                self._state.anomaly(f"shard {shard.index}: join {join.hex()}: {error}")
        return following

    def _is_over(self, shard: Shard, record: JoinRecord) -> bool:
        """Whether all of it has ended. A hole in the log may have taken ends that led to that."""
        if record.state != OVER or record.ended < record.parts:
            return False
        return record.target == NO_ID or not shard.overlay.has(TASK + record.target)

    def _ask(self, shard: Shard, join: bytes) -> Iterator[dict[Shard, Group]]:
        """Ask the parts that a join has not counted: count those that ended without notice."""
        record = join_of(shard, join)  # it may have changed since its page was read
        if record is not None and record.state != WAITS and not record.flags & REDRIVING:
            yield from self._ask_target(shard, join, record)
            record = join_of(shard, join)
            if record is not None and record.state != WAITS and record.ended >= record.parts:
                return
        if record is None or not shard.coalescer.is_tended:
            return
        if record.flags & REDRIVING or (record.flags & CANCELLED_FLAG and record.state == WAITS):
            yield from self.resume(shard, join)
            return
        lower: bytes | None = PART + join
        while lower is not None and shard.coalescer.is_tended:
            rows, lower = shard.overlay.scan_readable(lower, range_end(PART + join), SLICE)
            groups: dict[Shard, Group] = {}
            for key, raw in rows:
                part = attempt(decode_part, raw)
                if part is not None and (
                    not part.status
                    or (part.status == Status.DEAD and waits_for_redrive(shard, record))
                ):
                    number = int.from_bytes(key[PART_NUMBER], "big")
                    self.ask_part(groups, shard, join, number, part)
            yield groups  # also without any: all parts may be elsewhere
        whole = join_of(shard, join)
        if (
            whole is not None
            and whole.state == WAITS
            and whole.is_complete
            and shard.coalescer.is_tended
        ):
            if whole.failed and whole.on_failure == ON_WAIT and not whole.flags & CANCELLED_FLAG:
                return
            group = shard.coalescer.begin()
            with group:
                self.settle(group, shard, join, whole, self._state.clock.wall_us())
            yield {shard: group}

    def _ask_target(
        self, shard: Shard, join: bytes, record: JoinRecord
    ) -> Iterator[dict[Shard, Group]]:
        """Ask the task that a join has let go. A hole in the log may have taken what became of it.

        One that still waits is let go again, if the join has all that it waits for.
        """
        if record.target in self._state.leases:
            return
        location = task_location(self._state, shard, record.target)
        is_waiting = location is not None and location.is_waiting
        has_ended = end_of(self._state, shard, record.target) not in (None, Status.DEAD)
        if not shard.coalescer.is_tended or not (
            is_waiting or (record.state == FIRED and has_ended)
        ):
            return
        group, now_us = shard.coalescer.begin(), self._state.clock.wall_us()
        with group:
            if is_waiting:
                waits = record._replace(state=WAITS, fired_us=0)
                self.settle(group, shard, join, waits, now_us)
            else:
                self._target_ended(group, shard, join, record.target, 0, now_us)
        yield {shard: group}

    def ask_part(
        self, groups: dict[Shard, Group], shard: Shard, join: bytes, number: int, part: PartRecord
    ) -> None:
        """Ask one part that has not ended, or that is dead and may have been redriven unheard.

        Args:
            groups: open groups by shard; the rows go into that of the part's task.
            shard: of the join.
            join: its id.
            number: of the part.
            part: as the join knows it.
        """
        state, source = self._state, part.source
        home = state.shard_of(source)
        if not home.coalescer.is_tended:
            if home.coalescer.is_following:
                self.asks_elsewhere.setdefault(home, {})[join, number] = shard, part
            return
        status = end_of(state, home, source)
        raw = home.overlay.get(edges_key(source))
        edge = edge_to(decode_edges(raw) if raw is not None else (), number, join)
        is_elsewhere = slot_of_id(join) != slot_of_id(source)
        epoch = max(part.epoch, edge.epoch if edge is not None else 0) if is_elsewhere else 0
        is_again = False
        if part.status:  # dead
            if status == Status.DEAD and (edge is not None or not home.overlay.has(TASK + source)):
                return
            if status == Status.DEAD and not home.overlay.has(RESULT + source):
                return  # nothing more is known of it
            if status == Status.CANCELLED:  # nothing may be left of it but how it ended since
                sent = attempt(decode_outbox, home.overlay.get(outbox_key(source, join)))
                if sent is not None and sent.epoch > part.epoch:
                    if sent.status not in (0, Status.DEAD):
                        return  # that is on its way
                    epoch = max(epoch, sent.epoch)
            is_again = status != Status.DEAD
            epoch += is_again and is_elsewhere
        attaches = status in (None, Status.DEAD) and edge is None
        has_ended = status is not None and not part.status
        if not (attaches or is_again or has_ended or (edge is not None and edge.epoch < epoch)):
            return
        now_us = state.clock.wall_us()
        if home not in groups:
            groups[home] = home.coalescer.begin(SLICE * 128)
        group = groups[home]
        with group:
            if attaches:
                self.attach(group, home, source, Edge(0, number, join, epoch))
            elif edge is not None and edge.epoch < epoch:
                put_edge(group, home, source, edge._replace(epoch=epoch))
            if is_elsewhere:
                if is_again or has_ended:
                    record = OutboxRecord(status or 0, number, epoch, now_us)
                    group.ops.append((outbox_key(source, join), encode_outbox(record)))
                    self._has_to_send(home)
                return
            if is_again:
                uncount(group, shard, join, number, source)
            if status is not None and (is_again or not part.status):
                self.count_part(group, shard, join, number, source, status, now_us)

    def attach(self, group: Group, shard: Shard, source: bytes, edge: Edge) -> None:
        """Have the end of a task that is under way count in a join: its edge, and its flag.

        Args:
            group: of the task's shard; gets the rows.
            shard: of the task.
            source: its id; it is leased, ready, delayed, waiting or dead.
            edge: what it is to the join.
        """
        state = self._state
        lease = state.leases.get(source)
        if lease is not None:
            raw = shard.overlay.get(LEASE + source)
            put_edge(group, shard, source, edge)
            if raw is not None and not lease.flags & MEMBER_LEASE:
                leased = decode_lease(raw)
                lease.flags |= MEMBER_LEASE
                flags = leased.flags | MEMBER_LEASE
                group.ops.append((LEASE + source, encode_lease(leased._replace(flags=flags))))
                if lease.flags & DEAD_LEASE:
                    _flag_result(group, shard, source)
            return
        location = task_location(state, shard, source)
        put_edge(group, shard, source, edge)
        if location is None or location.row.flags & MEMBER_ROW:
            return
        row = location.row._replace(flags=location.row.flags | MEMBER_ROW)
        shard_queue, key = location.shard_queue, location.key
        if location.kind == DEAD:
            group.ops.append((key, encode_index_row(row)))
            _flag_result(group, shard, source)
            return
        group.fresh.pop(key, None)  # it is put twice in this group
        leave(state, group, location)
        if location.kind == READY:
            state.put_ready(group, shard_queue, 9 - row.priority, key, source, row)
        else:
            due_ms = int.from_bytes(key[DUE_AT:SEQ_AT], "big")
            state.put_delayed(group, shard_queue, key, due_ms, encode_index_row(row))

    def _send(self, shard: Shard) -> Iterator[dict[Shard, Group]]:
        try:
            yield from self._send_rows(shard)
        except LodeqError:
            self._sends[shard] = OUTBOX
            raise

    def _send_rows(self, shard: Shard) -> Iterator[dict[Shard, Group]]:
        """Apply outbox rows of a shard: each counts once, whoever repeats it."""
        # What is added meanwhile comes in the next pass.
        at: bytes | None = self._sends.pop(shard, None)
        known = {(key, raw) for _, _, _, key, raw in self._sent}
        oldest_us, held_up = 1 << 62, 0
        for _ in range(PAGES_MAX):
            if at is None or not shard.coalescer.is_tended:
                break
            rows, at = shard.overlay.scan_readable(at, OUTBOX_END, SLICE)
            rows = [row for row in rows if row not in known]
            number = shard.coalescer.queued_number
            if shard.coalescer.answered_number < number and self._counts_here(rows):
                shard.coalescer.seal_full(always=True)
                shard.coalescer.go_on()  # in nosync mode that is all
                is_behind = shard.coalescer.answered_number < number
                if (
                    is_behind
                    and shard.coalescer.is_tended
                    and shard.coalescer.refused_write is None
                ):
                    yield {shard: shard.coalescer.begin()}
                if shard.coalescer.answered_number < number or not shard.coalescer.is_tended:
                    self._sends[shard] = OUTBOX
                    return
                rows = [row for row in rows if shard.overlay.get(row[0]) == row[1]]
            groups: dict[Shard, Group] = {}
            for key, raw in rows:
                source, join = key[OUTBOX_SOURCE], key[OUTBOX_JOIN]
                record, home = attempt(decode_outbox, raw), self._state.shard_of(join)
                if record is None:
                    continue
                if not home.coalescer.is_tended:
                    oldest_us, held_up = min(oldest_us, record.ended_us), held_up + 1
                    if home.coalescer.is_following:
                        waiting = self.ends_elsewhere.setdefault(home, {})
                        if len(waiting) < ENDS_MAX and (
                            key not in waiting or waiting[key][1] != raw
                        ):
                            waiting[key] = shard, raw, record
                    continue
                if home not in groups:
                    groups[home] = home.coalescer.begin(SLICE * 256)
                group = groups[home]
                is_elsewhere = slot_of_id(join) != slot_of_id(source)
                try:
                    with group:
                        self.count_part(
                            *(group, home, join, record.number, source),
                            *(record.status, record.ended_us),
                            record.epoch if is_elsewhere else None,
                        )
                except CorruptionError as error:  # the row stays; the others go on
                    self._state.anomaly(f"shard {home.index}: join {join.hex()}: {error}")
                    continue
                if home is shard:
                    group.ops.append((key, None))
                else:
                    self._sent.append((home, group.number, shard, key, raw))
            self._has_counted |= bool(groups)
            yield groups  # also without any: all may be for leaders elsewhere
        if held_up and shard.coalescer.takes_writes:
            self._held_up[shard] = oldest_us, held_up
        else:
            self._held_up.pop(shard, None)
        if held_up or at is not None:
            self._sends[shard] = OUTBOX

    def _counts_here(self, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether an end is counted in a shard that is led here: not before it is answered.

        Once it is counted a power cut must not take it back: another shard may be written before
        this one, and this one may keep a later commit without an earlier. Leaders elsewhere are
        told later.
        """
        homes = {self._state.shard_of(key[OUTBOX_JOIN]) for key, _ in rows}
        return any(home.coalescer.is_tended for home in homes)

    def _forget_sent(self) -> Iterator[dict[Shard, Group]]:
        """Delete outbox rows whose end is synced where it counts."""
        groups: dict[Shard, Group] = {}
        left: list[tuple[Shard, int, Shard, bytes, bytes]] = []
        for one in self._sent:
            receiver, number, sender, key, raw = one
            if not (receiver.coalescer.is_tended and sender.coalescer.is_tended):
                self._sends.setdefault(sender, OUTBOX)  # sent again to whoever serves it next
                continue
            if receiver.coalescer.durable_number < number:
                left.append(one)
                continue
            if sender.overlay.get(key) != raw:  # a later end, or a redrive, has its place
                continue
            if sender not in groups:
                groups[sender] = sender.coalescer.begin(len(self._sent) * 64)
            groups[sender].ops.append((key, None))
        self._sent = left
        if groups:
            yield groups


def _flag_result(group: Group, shard: Shard, task_id: bytes) -> None:
    """The result of a dead letter says from now on that a join may read it."""
    result = attempt(decode_result, shard.overlay.get(RESULT + task_id))
    if result is not None:
        flagged = result._replace(flags=result.flags | MEMBER_RESULT)
        group.ops.append((RESULT + task_id, encode_result(flagged)))


def end_of(state: EngineState, shard: Shard, task_id: bytes) -> int | None:
    """How a task has ended; None: it is under way. One of which nothing is known was cancelled."""
    if is_alive(state, shard, task_id):
        return None
    result = attempt(decode_result, shard.overlay.get(RESULT + task_id))
    if result is not None:
        return result.status
    return Status.DEAD if shard.overlay.has(TASK + task_id) else Status.CANCELLED


def _nobody() -> None:
    """There is nobody to tell."""


async def _nowhere(
    join: bytes, parts: Sequence[tuple[int, bytes]], is_redrive_awaited: bool
) -> dict[bytes, int]:
    raise InvariantError("tasks elsewhere cannot be attached")


async def _by_nobody(sources: Sequence[bytes]) -> int:
    """Where nobody carries anything to other leaders."""
    raise NotLeaderError(f"{len(sources)} of the tasks that it waits for are led elsewhere")


def _nothing(shard: Shard, join: bytes) -> Iterator[dict[Shard, Group]]:
    """Nothing to go on with."""
    return iter(())


def range_end(prefix: bytes) -> bytes:
    """Above every key that starts with ``prefix``, whatever byte an id ends with."""
    return prefix + b"\xff" * 21
