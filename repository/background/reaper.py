"""The reaper: one background task that does what is due.

It sleeps until the next deadline (at most a second, so that it notices steps of the wall clock),
then works in bounded slices. After each slice it waits for the commit and lets the event loop run:

- expired leases go back to the tail, or die with their last attempt;
- delayed tasks that are due become ready;
- expiry rows that are due are *hints*: the row they name says itself whether it has expired (a
  task's TTL, the retention of a result or a dead letter, a dedup window), else nothing happens;
- results beyond ``Limits.results_max`` are deleted, oldest first, by the same rows;
- ended tasks beyond the bounds of their queue's history are forgotten, oldest first;
- rows that a damaged block hides are searched for (``hidden_rows``);
- queues and tenants without tasks are dropped from memory.

A reaper that is late (a frozen process, a long stall), after its sleep or in the middle of a pass,
leaves the leases alone for one pass: their holders were frozen too, and get the chance to send a
heartbeat first. A lease that a ``LeaseKeepalive`` holds is never reaped while this process lives,
however long its loop was blocked: the reaper has them extended before it takes any.

A failed read ends only the work it was for: it is reported once as an anomaly, deadlines that were
taken off are put back, and the next pass tries again. After a pass that achieved nothing although
something was due, the reaper pauses, twice as long each time: it never spins.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial

from ...coalescer.group import Group
from ...engine.records.attempts import Outcome
from ...engine.records.keyspace import DELAYED, ID_AT, MOVED
from ...engine.records.policy import decode_policy
from ...engine.records.rows import (
    MOVED_ROW,
    Moved,
    decode_index_row,
    encode_moved,
    pack_moved,
)
from ...engine.runtime.event_loop import Future
from ...errors import BusyError, LodeqError, RecordCorruptError
from ..state.caches.delayed_cache import DelayedCache, DelayedRow, held_bytes_of
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.queue_state import NEVER_MS, Shard, ShardQueue
from ..tasks.task_end import die, end_if_past_ttl, put_back
from .dead_trim import DeadTrim
from .expiry_sweep import SLICE_FINAL, next_expiry_ms, sweep
from .history_trim import HistoryTrim

__all__ = ["Reaper", "forget_idle_tenant_queues", "promote", "reap"]

SLICE = 128
LEASES = 64  # reaped in one turn: a caller beside it waits for one at each step of a cycle
LOOK_AGAIN_S = 1.0
LATE_S = 2.0
IDLE_TENANT_QUEUES_EVERY = 30
TENANT_QUEUES = 1024  # checked for being idle in one turn
PINNED_S = 10.0  # between two looks at results that workflows pin beyond ``results_max``
SHARE_SLICES = 32  # of what is due, at the close of an engine that was open for a moment
FRUITLESS_S = 0.01  # the first pause after a pass that achieved nothing


class Reaper:
    """Reaper of one engine, see above. ``run`` is the task, ``step`` one pass of it.

    With a clock that is moved by hand there is no task: the clock calls ``catch_up``.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._history = HistoryTrim(state)
        self._dead = DeadTrim(state)
        self._waker: Future | None = None
        self._is_stopping = False
        self._passes = 0
        self._has_passed = False  # a pass has come to its end
        self._is_fruitful = True  # whether the last pass achieved anything
        self._pause_s = 0.0
        self._was_held_up = False  # in the last pass: the next one skips leases
        # Of a shard whose results beyond the limit may not go: until when they are left alone.
        self._pinned_until: dict[int, float] = {}
        self._removed_at: dict[int, float] = {}  # … and when some of them were removed last
        self._reported: set[tuple[str, type[Exception]]] = set()  # failures already reported
        state.deadlines.wake_reaper = self.wake

    def wake(self) -> None:
        """End the sleep: there is an earlier deadline."""
        waker = self._waker
        if waker is not None and not waker.done():
            waker.set_result(None)

    def forget(self, shard: Shard) -> None:
        """The shard is not here any more."""
        self._history.forget(shard)
        self._pinned_until.pop(shard.index, None)
        self._removed_at.pop(shard.index, None)

    def stop(self) -> None:
        """Make ``run`` return."""
        self._is_stopping = True
        self.wake()

    async def run(self) -> None:
        """Do what is due, until stopped."""
        state = self._state
        while not self._is_stopping:
            planned = await self._sleep()
            if self._is_stopping:
                return
            is_late = state.clock.mono() - planned > LATE_S
            await self.step(skip_leases=is_late or self._was_held_up)

    async def _sleep(self) -> float:
        state, clock = self._state, self._state.clock
        next_mono, next_wall_ms = state.deadlines.plan()
        now = clock.mono()
        until = min(next_mono, now + max(0.0, next_wall_ms - clock.wall_us() / 1000) / 1000)
        until = max(now, min(until, now + LOOK_AGAIN_S))
        # Nobody was woken while a pass was under way.
        has_more = state.flows.has_more or state.key_limits.has_unswept
        if has_more:
            until = now
        if until > now or self._is_fruitful or has_more:
            self._pause_s = 0.0
        else:
            self._pause_s = min(LOOK_AGAIN_S, max(FRUITLESS_S, 2 * self._pause_s))
            until = now + self._pause_s
        self._waker = waker = state.spawner.future()
        timer = clock.call_at(state.spawner, until, self.wake)
        try:
            await waker
        finally:
            timer.cancel()
            self._waker = None
        return until

    async def step(self, *, skip_leases: bool = False) -> None:
        """One pass over everything that is due, in slices, each committed before the next."""
        clock = self._state.clock
        self._was_held_up = False
        for groups in self._slices(skip_leases=skip_leases):
            before = clock.mono()
            await self._committed(groups)
            # Never in two passes in a row: leases must be reaped.
            if clock.mono() - before > LATE_S:
                self._was_held_up = not skip_leases
        self._has_passed = True

    async def _committed(self, groups: dict[Shard, Group]) -> None:
        """Wait for the commits of a slice, and give the loop a turn."""
        # All futures before the first await: a group is dropped once it is committed.
        for future in [shard.coalescer.wait(group) for shard, group in groups.items()]:
            try:
                await future
            except LodeqError:
                continue  # a poisoned shard ends the work on it, not the reaper
        await self._state.spawner.checkpoint()

    async def finish(self) -> None:
        """At a close before the first pass has ended: do a share of what is due.

        So a store that is only ever opened for moments is looked after as well.
        """
        if self._has_passed:
            return
        self._is_stopping = False
        try:
            for done, _ in enumerate(self._slices(), 1):
                await self._state.spawner.checkpoint()  # nobody waits for a disk that is full
                if done == SHARE_SLICES:
                    return
            self._has_passed = True
        finally:
            self._is_stopping = True

    async def do_all(self) -> None:
        """Do everything that is due now, pass by pass, until a pass achieves nothing."""
        self._is_fruitful = True
        while self._is_fruitful and not self._is_stopping:
            await self.step()

    def catch_up(self) -> float:
        """Do everything that is due now; the commits follow at the end of the tick.

        For a clock that is moved by hand, which calls it on the loop at each moment it passes.

        Returns: when to call it again, as monotonic seconds.
        """
        state = self._state
        state.check_loop()
        for _ in self._slices():
            pass
        # No tick ends between two moments: the next one must see these rows.
        for shard in state.shards:
            shard.coalescer.seal_full(always=True)
        # Before the clock goes on: claims that waited until now are served, and do not time out.
        state.waiters.serve()
        next_mono, next_wall_ms = state.deadlines.plan()
        now = state.clock.mono()
        # Rounded: the sum of two floats may lie behind the microsecond that it stands for.
        due = round(now + (next_wall_ms * 1000 - state.clock.wall_us()) / 1e6, 6)
        at = min(next_mono, due)
        return at if at > now else now + LOOK_AGAIN_S  # still due: a read failed

    def _slices(self, *, skip_leases: bool = False) -> Iterator[dict[Shard, Group]]:
        """Slices of one pass. Each is an atomic section; only positions are carried over."""
        self._passes += 1
        self._is_fruitful = skip_leases  # leases are skipped on purpose: no pause
        if not skip_leases:
            yield from self._reap()
        for shard in self._state.hosted:
            if shard.coalescer.is_tended:
                shard.dedup_filter.step(shard.overlay)
        yield from self._promote()
        if self._state.rules:
            yield from self._trim_dead()
        for shard in self._state.hosted:
            left = yield from self._trim(shard, self._results_over(shard))
            yield from self._sweep(shard, left)
        if self._state.hidden:
            yield from self._find_hidden()
        yield from self._flow_slices()
        yield from self._key_slices()
        if self._passes % IDLE_TENANT_QUEUES_EVERY == 0:
            for _ in forget_idle_tenant_queues(self._state):
                yield {}

    def _find_hidden(self) -> Iterator[dict[Shard, Group]]:
        """Search for rows that a damaged block hides: see ``HiddenRows``."""
        try:
            for _ in self._state.hidden.slices():
                if self._is_stopping:
                    return
                yield {}
        except LodeqError as error:  # the next pass goes on
            self._failed("rows behind a damaged block", error)

    def _flow_slices(self) -> Iterator[dict[Shard, Group]]:
        """Do what workflows have left to do: see ``Joins``."""
        try:
            for groups in self._state.flows.slices():
                if self._is_stopping:
                    return
                self._is_fruitful |= bool(groups)
                yield groups
        except BusyError:
            return  # a lease of the leader before: the next pass goes on
        except LodeqError as error:  # the next pass goes on
            self._failed("workflows", error)

    def _key_slices(self) -> Iterator[dict[Shard, Group]]:
        """Let go what waits for keys that have room: see ``KeyWaits``."""
        for groups in self._state.key_limits.slices():
            if self._is_stopping:
                return
            yield groups

    def _failed(self, what: str, error: Exception) -> None:
        """Report a failure once: it is tried again and again, and few anomalies are kept."""
        if (what, type(error)) not in self._reported:
            self._reported.add((what, type(error)))
            self._state.anomaly(f"the reaper, {what}: {error}")

    def _reap(self) -> Iterator[dict[Shard, Group]]:
        state = self._state
        failed: list[LeaseState] = []
        try:
            while not (self._is_stopping or self._was_held_up):
                leases = state.deadlines.expired(state.clock.mono(), LEASES)
                if leases and state.keepalives:
                    self._extend_held()
                groups = self._reap_slice(leases, failed)
                if groups:
                    yield groups
                if len(leases) < LEASES:
                    return
        finally:  # not before: this pass would find them again
            for lease in failed:
                if lease.is_live:
                    state.deadlines.rewatch(lease)

    def _extend_held(self) -> None:
        """Extend the leases held in this process first: a blocked loop could not do it in time."""
        for keepalive in list(self._state.keepalives):
            keepalive.beat()

    def _reap_slice(self, leases: list[LeaseState], failed: list[LeaseState]) -> dict[Shard, Group]:
        state = self._state
        now_mono = state.clock.mono()
        groups: dict[Shard, Group] = {}
        for lease in leases:
            shard = lease.shard_queue.shard
            # A lease whose deadline was moved closer is watched twice.
            if not lease.is_live:
                continue
            if not shard.coalescer.takes_writes:
                if shard.coalescer.is_following:  # its state is being rebuilt
                    failed.append(lease)
                continue
            if not shard.coalescer.has_session:
                failed.append(lease)
                continue
            if lease.deadline_mono > now_mono:  # a keepalive holds it
                state.deadlines.rewatch(lease)
                continue
            try:
                if shard not in groups:
                    groups[shard] = shard.coalescer.begin(LEASES * 256)
                with groups[shard]:
                    reap(state, groups[shard], lease, b"lease expired")
            except Exception as error:  # noqa: BLE001 - one task must not end the reaper
                self._failed(f"leases of shard {shard.index}", error)
                failed.append(lease)
            else:
                state.totals.reaped += 1
                self._is_fruitful = True
        return groups

    def _promote(self) -> Iterator[dict[Shard, Group]]:
        state = self._state
        failed: list[tuple[ShardQueue, int]] = []
        now_ms = state.clock.wall_us() // 1000  # what falls due meanwhile is the next pass's
        try:
            while not self._is_stopping:
                shard_queue = state.deadlines.due_shard_queue(now_ms)
                if shard_queue is None:
                    return
                shard, due_ms = shard_queue.shard, shard_queue.next_due_ms
                if not shard.coalescer.is_tended:
                    failed.append((shard_queue, due_ms))
                    continue
                try:
                    group = shard.coalescer.begin(SLICE * 256)
                    promote(state, group, shard_queue)
                except Exception as error:  # noqa: BLE001 - one task must not end the reaper
                    self._failed(f"delayed tasks of shard {shard.index}", error)
                    failed.append((shard_queue, due_ms))
                    continue
                self._is_fruitful = True
                yield {shard: group}
        finally:  # its heap entry is gone; not before, or this pass finds it again
            for shard_queue, due_ms in failed:
                shard = shard_queue.shard
                is_current = (
                    shard_queue.tenant_queue.shard_queues[shard.index] is shard_queue
                )  # not dropped meanwhile
                if (
                    is_current
                    and shard.coalescer.failure is None  # elected: it is about to take writes
                    and due_ms <= shard_queue.next_due_ms
                ):
                    state.deadlines.note_due(shard_queue, due_ms)

    def _results_max(self) -> int:
        """The share of one shard, rounded up."""
        return -(-self._state.limits.results_max // len(self._state.shards))

    def _results_over(self, shard: Shard) -> int:
        """Results that this pass is to remove because they are too many.

        To find the oldest costs more than to remove some. So few are left for a second.
        """
        most, now = self._results_max(), self._state.clock.mono()
        over = shard.results - most
        few = min(SLICE_FINAL, most // 64)
        again = self._removed_at.get(shard.index, float("-inf")) + LOOK_AGAIN_S
        if over <= 0 or (over <= few and now < again):
            return 0
        self._removed_at[shard.index] = now
        return over

    def _trim_dead(self) -> Iterator[dict[Shard, Group]]:
        """Remove dead letters that queues have too much."""
        try:
            for groups in self._dead.slices():
                if self._is_stopping:
                    return
                self._is_fruitful |= bool(groups)
                yield groups
        except Exception as error:  # noqa: BLE001 - the next pass goes on
            self._failed("dead letters beyond their bound", error)

    def _trim(self, shard: Shard, left: int) -> Generator[dict[Shard, Group], None, int]:
        """Remove history: ``left`` results of any queue, and what queues have too much.

        Returns: how many of ``left`` are still to be removed.
        """
        slices = self._history.slices(shard, left)
        try:
            while not self._is_stopping:
                before = shard.results
                groups = next(slices, None)
                left -= before - shard.results
                if groups is None:
                    break
                self._is_fruitful |= bool(groups)
                yield groups
        except Exception as error:  # noqa: BLE001 - the next pass goes on
            self._failed(f"history of shard {shard.index}", error)
        return max(0, left)

    def _sweep(self, shard: Shard, left: int) -> Iterator[dict[Shard, Group]]:
        """Act on expiry rows that are due, and remove ``left`` results more, the oldest first.

        Results that come meanwhile are the next pass's: others are due, too.
        """
        state, most = self._state, self._results_max()
        failed = partial(self._failed, f"expiry of shard {shard.index}")
        lower: bytes | None = shard.expiry_head
        has_dropped = False
        while lower is not None and not self._is_stopping and shard.coalescer.is_tended:
            over = min(left, shard.results - most)  # history has gone before
            if over > 0 and state.clock.mono() < self._pinned_until.get(shard.index, 0.0):
                over = 0
            if shard.next_expiry_ms > state.clock.wall_us() // 1000 and over <= 0:
                return
            try:
                group = shard.coalescer.begin(SLICE * 64)
            except LodeqError as error:  # the previous group could not be sealed
                failed(error)
                return
            queued, before = len(group.ops), shard.results
            try:
                lower = sweep(state, shard, group, lower, over, failed)
                left -= before - shard.results
                if lower is None:
                    shard.next_expiry_ms = next_expiry_ms(state, shard)
                    if left > 0 and shard.results > most:
                        again_s = LOOK_AGAIN_S if has_dropped else PINNED_S
                        self._pinned_until[shard.index] = state.clock.mono() + again_s
            except Exception as error:  # noqa: BLE001 - one row must not end the reaper
                # Rows before it are done; the time stays due, so that it is tried again.
                failed(error)
                lower = None
            if len(group.ops) > queued:
                self._is_fruitful = has_dropped = True
            yield {shard: group}


def reap(state: EngineState, group: Group, lease: LeaseState, reason: bytes) -> None:
    """Take an expired lease: its task goes back to the tail, or dies with its last attempt.

    Args:
        state: the engine's state.
        group: takes the rows.
        lease: a live lease of the group's shard.
        reason: kept with the task, as the reason of its failure.
    """
    if lease.attempt >= decode_policy(lease.packed_policy).max_attempts:
        if not end_if_past_ttl(state, group, lease):
            die(state, group, lease, reason, Outcome.LEASE_EXPIRED)
    else:
        put_back(
            state,
            group,
            lease,
            delay_ms=0,
            reason=reason,
            is_counted=True,
            outcome=Outcome.LEASE_EXPIRED,
        )


def promote(state: EngineState, group: Group, shard_queue: ShardQueue) -> None:
    """Make up to a slice of due delayed tasks of one shard queue ready: ``-q(d) +q(r) +s`` each.

    Args:
        state: the engine's state.
        group: of the shard queue's shard; gets the rows.
        shard_queue: with delayed tasks; when its next one is due is found anew.
    """
    now_ms = state.clock.wall_us() // 1000
    shard_queue.next_due_ms = NEVER_MS
    cache = shard_queue.delayed_rows
    if cache is None:
        cache = shard_queue.delayed_rows = DelayedCache(shard_queue.prefix + DELAYED)
    start = shard_queue.prefix + DELAYED
    rows = cache.take_below(start + (now_ms + 1).to_bytes(8, "big"), SLICE)
    if rows:
        _promote_held(state, group, shard_queue, rows)
    edge = cache.edge
    if cache.rows:
        state.deadlines.note_due(shard_queue, _due_ms(shard_queue, cache.rows[0][0]))
    elif edge is not None and (rows or _due_ms(shard_queue, edge) > now_ms):
        state.deadlines.note_due(shard_queue, max(now_ms, _due_ms(shard_queue, edge)))
    elif edge is not None:
        _promote_read(state, group, shard_queue, cache)


def _due_ms(shard_queue: ShardQueue, key: bytes) -> int:
    """When a delayed key, or an edge, is due; 0 for an edge before all rows."""
    start = len(shard_queue.prefix) + 1
    return int.from_bytes(key[start : start + 8], "big")


def _promote_held(
    state: EngineState, group: Group, shard_queue: ShardQueue, rows: list[DelayedRow]
) -> None:
    """Promote rows that were held in memory, and are no more."""
    now_us = state.clock.wall_us()
    ops, ready_key, prefixes = group.ops, shard_queue.ready_key, shard_queue.ready_prefixes
    state.held_bytes -= sum([held_bytes_of(row) for row in rows])
    shard_queue.delayed_head = rows[-1][0]
    with group:
        for key, task_id, priority, attempts, flags, expires_ms, size, record, value in rows:
            index = 9 - priority
            ready = ready_key(prefixes[index], state.next_seq(now_us), task_id)
            moved = pack_moved(attempts, ready)
            ops += ((ready, value), (key, None), (MOVED + task_id, moved))
            shard_queue.delayed -= 1
            facts = (ready, task_id, attempts, flags | MOVED_ROW, expires_ms, size, record)
            state.note_ready(group, shard_queue, index, facts)


def _promote_read(
    state: EngineState, group: Group, shard_queue: ShardQueue, cache: DelayedCache
) -> None:
    """Promote rows that are on disk only; below the first one that is not due there is none."""
    shard = shard_queue.shard
    now_us = state.clock.wall_us()
    now_ms = now_us // 1000
    start = shard_queue.prefix + DELAYED
    lower = max(start, shard_queue.delayed_head)
    rows, resume = shard.overlay.scan_readable(lower, start + b"\xff" * 9, SLICE)
    for key, raw in rows:
        due_ms = _due_ms(shard_queue, key)
        if due_ms > now_ms:
            cache.edge = key
            state.deadlines.note_due(shard_queue, due_ms)
            return
        shard_queue.delayed_head = key
        try:
            row = decode_index_row(raw)
        except RecordCorruptError as error:
            state.anomaly(f"shard {shard.index}: delayed row {key!r}: {error}")
            continue
        task_id = key[ID_AT:]
        index = 9 - row.priority
        ready = shard_queue.ready_key(
            shard_queue.ready_prefixes[index], state.next_seq(now_us), task_id
        )
        moved = encode_moved(Moved(row.attempts, ready))
        row = row._replace(flags=row.flags | MOVED_ROW)
        with group:
            state.put_ready(group, shard_queue, index, ready, task_id, row)
            group.ops += ((key, None), (MOVED + task_id, moved))
            shard_queue.delayed -= 1
    if resume is None:
        cache.edge = None
        return
    # Also if the whole page was deletes not yet applied: the next scan starts behind them. Never
    # further back: the scan may have come a byte further, and would repeat itself for ever.
    shard_queue.delayed_head = cache.edge = max(shard_queue.delayed_head, resume)
    if shard_queue.delayed:
        state.deadlines.note_due(shard_queue, now_ms)  # more are due


def forget_idle_tenant_queues(state: EngineState) -> Iterator[None]:
    """Drop queues and tenants without tasks from memory, which so stays bounded.

    Yields after every 1,024: there may be a hundred thousand.
    """
    looked = 0
    for queue, queue_state in list(state.queue_states.items()):
        for tenant, tenant_queue in list(queue_state.tenant_queues.items()):
            looked += 1
            if looked % TENANT_QUEUES == 0:
                yield
            if queue_state.tenant_queues.get(tenant) is not tenant_queue or tenant_queue.is_paused:
                continue
            if all(b is None or b.is_idle for b in tenant_queue.shard_queues):
                tenant_queue.is_dropped = True
                del queue_state.tenant_queues[tenant]
                for shard_queue in tenant_queue.shard_queues:
                    if shard_queue is not None:
                        state.let_go(shard_queue)
                        del shard_queue.shard.shard_queues_by_hash[shard_queue.hash]
                queue_state.turns.pop(tenant, None)
                state.claim_sets.forget_tenant_queue(tenant_queue)
        if queue_state.tenant_queues or queue_state.is_paused or queue_state.limit is not None:
            continue
        if state.queue_states.get(queue) is queue_state:
            del state.queue_states[queue]
