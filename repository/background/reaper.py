"""The reaper: one background task that does what is due.

It sleeps until the next deadline (at most a second, so that it notices steps of the wall clock),
then works in bounded slices. After each slice it waits for the commit and lets the event loop run:

- expired leases go back to the tail, or die with their last attempt;
- delayed tasks that are due become ready;
- expiry rows that are due are *hints*: the row they name says itself whether it has expired (a
  task's TTL, the retention of a result or a dead letter, a dedup window), else nothing happens;
- results beyond ``Limits.results_max`` are deleted, oldest first, by the same rows;
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

from collections.abc import Iterator
from functools import partial

from ...coalescer.group import Group
from ...engine.records.keyspace import DELAYED, MOVED
from ...engine.records.policy import decode_policy
from ...engine.records.rows import MOVED_ROW, Moved, decode_index_row, encode_moved
from ...engine.runtime.event_loop import Future
from ...errors import LodeqError, RecordCorruptError
from ..state.engine_state import EngineState
from ..state.lease_state import LeaseState
from ..state.queue_state import NEVER_MS, Shard, ShardQueue
from ..tasks.task_end import die, end_if_past_ttl, put_back
from .expiry_sweep import next_expiry_ms, sweep

__all__ = ["Reaper", "forget_idle_lanes", "promote", "reap"]

SLICE = 128
LOOK_AGAIN_S = 1.0
LATE_S = 2.0
IDLE_LANES_EVERY = 30
LANES = 1024  # checked for being idle in one turn
FRUITLESS_S = 0.01  # the first pause after a pass that achieved nothing


class Reaper:
    """Reaper of one engine, see above. ``run`` is the task, ``step`` one pass of it.

    With a clock that is moved by hand there is no task: the clock calls ``catch_up``.
    """

    def __init__(self, core: EngineState) -> None:
        self._core = core
        self._waker: Future | None = None
        self._is_stopping = False
        self._passes = 0
        self._is_fruitful = True  # whether the last pass achieved anything
        self._pause_s = 0.0
        self._was_held_up = False  # in the last pass: the next one skips leases
        self._reported: set[tuple[str, type[Exception]]] = set()  # failures already reported
        core.deadlines.wake_reaper = self.wake

    def wake(self) -> None:
        """End the sleep: there is an earlier deadline."""
        waker = self._waker
        if waker is not None and not waker.done():
            waker.set_result(None)

    def stop(self) -> None:
        """Make ``run`` return."""
        self._is_stopping = True
        self.wake()

    async def run(self) -> None:
        """Do what is due, until stopped."""
        core = self._core
        while not self._is_stopping:
            planned = await self._sleep()
            if self._is_stopping:
                return
            is_late = core.clock.mono() - planned > LATE_S
            await self.step(skip_leases=is_late or self._was_held_up)

    async def _sleep(self) -> float:
        core, clock = self._core, self._core.clock
        next_mono, next_wall_ms = core.deadlines.plan()
        now = clock.mono()
        until = min(next_mono, now + max(0.0, next_wall_ms - clock.wall_us() / 1000) / 1000)
        until = max(now, min(until, now + LOOK_AGAIN_S))
        if until > now or self._is_fruitful:
            self._pause_s = 0.0
        else:
            self._pause_s = min(LOOK_AGAIN_S, max(FRUITLESS_S, 2 * self._pause_s))
            until = now + self._pause_s
        self._waker = waker = core.spawner.future()
        timer = clock.call_at(core.spawner, until, self.wake)
        try:
            await waker
        finally:
            timer.cancel()
            self._waker = None
        return until

    async def step(self, *, skip_leases: bool = False) -> None:
        """One pass over everything that is due, in slices, each committed before the next."""
        clock = self._core.clock
        self._was_held_up = False
        for groups in self._slices(skip_leases=skip_leases):
            before = clock.mono()
            # All futures before the first await: a group is dropped once it is committed.
            for future in [shard.co.wait(group) for shard, group in groups.items()]:
                try:
                    await future
                except LodeqError:
                    continue  # a poisoned shard ends the work on it, not the reaper
            await self._core.spawner.checkpoint()
            # Never in two passes in a row: leases must be reaped.
            if clock.mono() - before > LATE_S:
                self._was_held_up = not skip_leases

    def catch_up(self) -> float:
        """Do everything that is due now; the commits follow at the end of the tick.

        For a clock that is moved by hand, which calls it on the loop at each moment it passes.

        Returns: when to call it again, as monotonic seconds.
        """
        core = self._core
        core.check_loop()
        for _ in self._slices():
            pass
        # No tick ends between two moments: the next one must see these rows.
        for shard in core.shards:
            shard.co.seal_full(always=True)
        # Before the clock goes on: claims that waited until now are served, and do not time out.
        core.waiters.serve()
        next_mono, next_wall_ms = core.deadlines.plan()
        now = core.clock.mono()
        at = min(next_mono, now + (next_wall_ms * 1000 - core.clock.wall_us()) / 1e6)
        return at if at > now else now + LOOK_AGAIN_S  # still due: a read failed

    def _slices(self, *, skip_leases: bool = False) -> Iterator[dict[Shard, Group]]:
        """Slices of one pass. Each is an atomic section; only positions are carried over."""
        self._passes += 1
        self._is_fruitful = skip_leases  # leases are skipped on purpose: no pause
        if not skip_leases:
            yield from self._reap()
        yield from self._promote()
        for shard in self._core.shards:
            yield from self._sweep(shard)
        if self._core.hidden:
            yield from self._find_hidden()
        if self._passes % IDLE_LANES_EVERY == 0:
            for _ in forget_idle_lanes(self._core):
                yield {}

    def _find_hidden(self) -> Iterator[dict[Shard, Group]]:
        """Search for rows that a damaged block hides: see ``HiddenRows``."""
        try:
            for _ in self._core.hidden.slices():
                if self._is_stopping:
                    return
                yield {}
        except LodeqError as error:  # the next pass goes on
            self._failed("rows behind a damaged block", error)

    def _failed(self, what: str, error: Exception) -> None:
        """Report a failure once: it is tried again and again, and few anomalies are kept."""
        if (what, type(error)) not in self._reported:
            self._reported.add((what, type(error)))
            self._core.anomaly(f"the reaper, {what}: {error}")

    def _reap(self) -> Iterator[dict[Shard, Group]]:
        core = self._core
        failed: list[LeaseState] = []
        try:
            while not (self._is_stopping or self._was_held_up):
                leases = core.deadlines.expired(core.clock.mono(), SLICE)
                if leases and core.keepalives:
                    self._extend_held()
                groups = self._reap_slice(leases, failed)
                if groups:
                    yield groups
                if len(leases) < SLICE:
                    return
        finally:  # not before: this pass would find them again
            for lease in failed:
                if lease.is_live:
                    core.deadlines.rewatch(lease)

    def _extend_held(self) -> None:
        """Extend the leases held in this process first: a blocked loop could not do it in time."""
        for keepalive in list(self._core.keepalives):
            keepalive.beat()

    def _reap_slice(self, leases: list[LeaseState], failed: list[LeaseState]) -> dict[Shard, Group]:
        core = self._core
        now_mono = core.clock.mono()
        groups: dict[Shard, Group] = {}
        for lease in leases:
            shard = lease.bucket.shard
            # A lease whose deadline was moved closer is watched twice.
            if not lease.is_live:
                continue
            if not shard.co.takes_writes:
                if shard.co.is_following:  # its state is being rebuilt
                    failed.append(lease)
                continue
            if lease.deadline_mono > now_mono:  # a keepalive holds it
                core.deadlines.rewatch(lease)
                continue
            try:
                if shard not in groups:
                    groups[shard] = shard.co.begin(SLICE * 256)
                with groups[shard]:
                    reap(core, groups[shard], lease, b"lease expired")
            except Exception as error:  # noqa: BLE001 - one task must not end the reaper
                self._failed(f"leases of shard {shard.index}", error)
                failed.append(lease)
            else:
                core.totals.reaped += 1
                self._is_fruitful = True
        return groups

    def _promote(self) -> Iterator[dict[Shard, Group]]:
        core = self._core
        failed: list[tuple[ShardQueue, int]] = []
        try:
            while not self._is_stopping:
                bucket = core.deadlines.due_bucket(core.clock.wall_us() // 1000)
                if bucket is None:
                    return
                shard, due_ms = bucket.shard, bucket.next_due_ms
                if not shard.co.takes_writes:
                    continue
                try:
                    group = shard.co.begin(SLICE * 256)
                    promote(core, group, bucket)
                except Exception as error:  # noqa: BLE001 - one task must not end the reaper
                    self._failed(f"delayed tasks of shard {shard.index}", error)
                    failed.append((bucket, due_ms))
                    continue
                self._is_fruitful = True
                yield {shard: group}
        finally:  # its heap entry is gone; not before, or this pass finds it again
            for bucket, due_ms in failed:
                shard = bucket.shard
                is_current = bucket.lane.buckets[shard.index] is bucket  # not dropped meanwhile
                if is_current and shard.co.takes_writes and due_ms <= bucket.next_due_ms:
                    core.deadlines.note_due(bucket, due_ms)

    def _sweep(self, shard: Shard) -> Iterator[dict[Shard, Group]]:
        core = self._core
        per_shard = -(-core.limits.results_max // len(core.shards))
        failed = partial(self._failed, f"expiry of shard {shard.index}")
        lower: bytes | None = shard.expiry_head
        while lower is not None and not self._is_stopping and shard.co.takes_writes:
            over = shard.results - per_shard
            if shard.next_expiry_ms > core.clock.wall_us() // 1000 and over <= 0:
                return
            try:
                group = shard.co.begin(SLICE * 64)
            except LodeqError as error:  # the previous group could not be sealed
                failed(error)
                return
            queued = len(group.ops)
            try:
                lower = sweep(core, shard, group, lower, over, failed)
                if lower is None:
                    shard.next_expiry_ms = next_expiry_ms(core, shard)
            except Exception as error:  # noqa: BLE001 - one row must not end the reaper
                # Rows before it are done; the time stays due, so that it is tried again.
                failed(error)
                lower = None
            if len(group.ops) > queued:
                self._is_fruitful = True
            yield {shard: group}


def reap(core: EngineState, group: Group, lease: LeaseState, reason: bytes) -> None:
    """Take an expired lease: its task goes back to the tail, or dies with its last attempt.

    Args:
        core: the engine's state.
        group: takes the rows.
        lease: a live lease of the group's shard.
        reason: kept with the task, as the reason of its failure.
    """
    if lease.attempt >= decode_policy(lease.packed_policy).max_attempts:
        if not end_if_past_ttl(core, group, lease):
            die(core, group, lease, reason)
    else:
        put_back(core, group, lease, delay_ms=0, reason=reason, is_counted=True)


def promote(core: EngineState, group: Group, bucket: ShardQueue) -> None:
    """Make up to a slice of due delayed tasks of one bucket ready: ``-q(d) +q(r) +s`` each."""
    shard = bucket.shard
    now_us = core.clock.wall_us()
    now_ms = now_us // 1000
    start = bucket.prefix + DELAYED
    lower = max(start, bucket.delayed_head)
    rows, resume = shard.overlay.scan_readable(lower, start + b"\xff" * 9, SLICE)
    bucket.next_due_ms = NEVER_MS
    for key, raw in rows:
        due_ms = int.from_bytes(key[-32:-24], "big")
        if due_ms > now_ms:
            core.deadlines.note_due(bucket, due_ms)
            return
        bucket.delayed_head = key
        try:
            row = decode_index_row(raw)
        except RecordCorruptError as error:
            core.anomaly(f"shard {shard.index}: delayed row {key!r}: {error}")
            continue
        task_id = key[-16:]
        index = 9 - row.priority
        ready = bucket.ready_key(bucket.ready_prefixes[index], core.next_seq(now_us), task_id)
        moved = encode_moved(Moved(row.attempts, ready))
        row = row._replace(flags=row.flags | MOVED_ROW)
        with group:
            core.put_ready(group, bucket, index, ready, task_id, row)
            group.ops += ((key, None), (MOVED + task_id, moved))
            bucket.delayed -= 1
    if resume is None:
        return
    # Also if the whole page was deletes not yet applied: the next scan starts behind them. Never
    # further back: the scan may have come a byte further, and would repeat itself for ever.
    bucket.delayed_head = max(bucket.delayed_head, resume)
    if bucket.delayed:
        core.deadlines.note_due(bucket, now_ms)  # more are due


def forget_idle_lanes(core: EngineState) -> Iterator[None]:
    """Drop queues and tenants without tasks from memory, which so stays bounded.

    Yields after every 1,024: there may be a hundred thousand.
    """
    looked = 0
    for queue, topic in list(core.topics.items()):
        for tenant, lane in list(topic.lanes.items()):
            looked += 1
            if looked % LANES == 0:
                yield
            if topic.lanes.get(tenant) is not lane or lane.is_paused:
                continue
            if all(b is None or b.is_idle for b in lane.buckets):
                lane.is_dropped = True
                del topic.lanes[tenant]
                for bucket in lane.buckets:
                    if bucket is not None:
                        del bucket.shard.buckets_by_hash[bucket.hash]
                topic.turns.pop(tenant, None)
        if not topic.lanes and not topic.is_paused and core.topics.get(queue) is topic:
            del core.topics[queue]
