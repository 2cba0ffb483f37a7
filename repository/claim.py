"""Claim: from the windows in memory to leases, in one batch a shard.

Order: priority, then seq, merged over the shards' heads; all tenants: one task a turn; several
queues: merged in the same way, so that no queue named first starves the others. With
``starvation`` set, at most one claim in eight serves the oldest overdue task instead.

An index row names the size of its record, so a claim knows what it is about to read: bodies
come from memory where the task was enqueued a moment ago, else by one multi-get before the
rows are queued, and a claim stops early at 4 MiB of them rather than block the loop.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_digest

from ..coalescer.group import Group
from ..coalescer.spawner import Future
from ..engine.ids import TaskId, as_task_id
from ..engine.keyspace import prefix_end
from ..engine.records.lease import EXPORTED, LEASE_HEAD, encode_lease_tail
from ..engine.records.policy import decode_policy
from ..engine.records.result import Status
from ..engine.records.rows import IndexRow, decode_index_row
from ..engine.records.task import NO_GHOST, TASK_HEAD, decode_task
from ..errors import LodeqError, RecordCorruptError
from .core import Core
from .lease import Lease
from .places import Place, end_at
from .state import Bucket, Lane, Shard, Topic
from .waiters import Waiter
from .window import WINDOW_ROWS, Row, Window

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ClaimRequest", "claim", "head_seq", "serve_waiter"]

CLAIM_BYTES_MAX = 4 << 20
CLAIM_ROWS_MAX = 4096
REFILL_ROWS = WINDOW_ROWS // 2
EXPIRED_ROUNDS_MAX = 16
STARVATION_EVERY = 8

# Of the task record: times, policy and ghost in one go (engine/records/task.py).
_TASK_FIELDS = Struct("<8xqq8x8x32s16sq")
_lease_head = LEASE_HEAD.pack


class ClaimRequest:
    """What one claim asks for."""

    __slots__ = ("is_exported", "is_plain", "keys", "lease_s", "limit", "starvation_s", "worker")

    def __init__(
        self,
        keys: Sequence[tuple[bytes, bytes | None]],
        *,
        limit: int,
        lease_s: float,
        worker: bytes,
        starvation_s: float | None = None,
        is_exported: bool = False,
    ) -> None:
        self.keys = keys
        self.limit = limit
        self.lease_s = lease_s
        self.worker = worker
        self.starvation_s = starvation_s
        self.is_exported = is_exported
        self.is_plain = limit == 1 and len(keys) == 1 and starvation_s is None


Picked = tuple[Bucket, Row]


# -- finding rows ----------------------------------------------------------------------


def refill(core: Core, bucket: Bucket, index: int, window: Window) -> None:
    """Bring the next rows of the backlog in: one bounded scan from the edge on."""
    prefix = bucket.ready_prefixes[index]
    upper = prefix_end(prefix)
    while not window.rows and not window.is_complete:
        found, resume = bucket.shard.overlay.scan(window.edge + b"\0", upper, REFILL_ROWS)
        rows: list[Row] = []
        for key, value in found:
            try:
                row = decode_index_row(value)
            except RecordCorruptError as error:
                core.anomaly(f"shard {bucket.shard.index}: index row {key!r}: {error}")
                continue
            rows.append(
                (key, key[-16:], row.attempts, row.flags, row.expires_ms, row.record_bytes, None)
            )
        window.refill(rows, None if resume is None else resume[:-1])


def head(core: Core, bucket: Bucket) -> tuple[int, Row] | None:
    """The first ready row of a bucket: (9 - priority, row); None if there is none."""
    if bucket.ready <= 0 or bucket.shard.co.poison is not None:
        return None
    for attempt in (0, 1):
        while bucket.occupied:
            index = (bucket.occupied & -bucket.occupied).bit_length() - 1
            window = bucket.windows[index]
            if window is not None:
                if not window.rows and not window.is_complete:
                    refill(core, bucket, index, window)
                if window.rows:
                    return index, window.rows[0]
            bucket.occupied &= ~(1 << index)
        if attempt == 0:
            # The counter says there are rows, the windows say there are none: trust neither.
            core.anomaly(
                f"shard {bucket.shard.index}: {bucket.lane.queue.decode()}: counter "
                f"{bucket.ready}, no rows in memory: rescanned"
            )
            bucket.load(bucket.ready, bucket.delayed, bucket.leased, bucket.dead, bucket.results)
    return None


def head_seq(core: Core, lane: Lane) -> int | None:
    """The least seq among the heads of all priorities and shards: the oldest ready task."""
    oldest: int | None = None
    for _, _, row in _heads(core, lane):
        seq = int.from_bytes(row[0][-24:-16], "big")
        if oldest is None or seq < oldest:
            oldest = seq
    return oldest


def _heads(core: Core, lane: Lane) -> Iterator[tuple[Bucket, int, Row]]:
    for bucket in lane.buckets:
        if bucket is None or head(core, bucket) is None:
            continue
        for index, window in enumerate(bucket.windows):
            if window is None:
                continue
            if not window.rows and not window.is_complete:
                refill(core, bucket, index, window)
            if window.rows:
                yield bucket, index, window.rows[0]


def _best(core: Core, lane: Lane) -> tuple[bytes, Bucket, int] | None:
    """The lane's next row over its shards: (order, bucket, 9 - priority)."""
    best: tuple[bytes, Bucket, int] | None = None
    for bucket in lane.buckets:
        if bucket is None:
            continue
        first = head(core, bucket)
        if first is not None:
            order = first[1][0][-25:]  # inverted priority, seq, id
            if best is None or order < best[0]:
                best = (order, bucket, first[0])
    return best


def _pop(core: Core, bucket: Bucket, index: int) -> Picked:
    window = bucket.windows[index]
    if window is None:
        raise RuntimeError("no window")
    row = window.rows.popleft()
    bucket.ready -= 1
    if row[6] is not None:
        core.held_bytes -= row[5]
    return bucket, row


def _pick_lane(core: Core, lane: Lane, limit: int, out: list[Picked], room: int) -> int:
    """Up to ``limit`` rows of one lane, up to ``room`` bytes of records. Returns bytes left."""
    if lane.is_paused or lane.topic.is_paused:
        return room
    if len(lane.buckets) > 1:
        while len(out) < limit and room > 0:
            best = _best(core, lane)
            if best is None:
                break
            out.append(_pop(core, best[1], best[2]))
            room -= out[-1][1][5]
        return room
    bucket = lane.buckets[0]
    while bucket is not None and len(out) < limit and room > 0:
        first = head(core, bucket)
        if first is None:
            break
        window = bucket.windows[first[0]]
        rows = window.rows if window is not None else None
        while rows and len(out) < limit and room > 0:
            row = rows.popleft()
            size = row[5]
            room -= size
            if row[6] is not None:
                core.held_bytes -= size
            bucket.ready -= 1
            out.append((bucket, row))
    return room


def _pick_oldest(core: Core, lane: Lane, starvation_s: float) -> Picked | None:
    """The oldest task of any priority, if it has been ready for longer than ``starvation_s``."""
    lane.claims += 1
    if lane.claims % STARVATION_EVERY or lane.is_paused or lane.topic.is_paused:
        return None
    before = core.clock.wall_us() - int(starvation_s * 1e6)
    best = min(_heads(core, lane), key=lambda h: h[2][0][-24:], default=None)
    if best is None or int.from_bytes(best[2][0][-24:-16], "big") > before:
        return None
    return _pop(core, best[0], best[1])


def _pick_turns(core: Core, topic: Topic, limit: int, out: list[Picked], room: int) -> None:
    """One task a tenant a turn."""
    turns = topic.turns
    if topic.is_paused:
        return
    skipped = 0
    while len(out) < limit and room > 0 and turns and skipped < len(turns):
        tenant = next(iter(turns))
        lane = topic.lanes[tenant]
        before = len(out)
        room = _pick_lane(core, lane, before + 1, out, room)
        if not lane.ready:
            del turns[tenant]
        else:
            turns.move_to_end(tenant)
        skipped = 0 if len(out) > before else skipped + 1


def pick(core: Core, request: ClaimRequest) -> list[Picked]:
    """The rows a claim gets, taken out of their windows; their counters are down already."""
    out: list[Picked] = []
    limit, room = request.limit, CLAIM_BYTES_MAX
    if len(request.keys) == 1:
        queue, tenant = request.keys[0]
        topic = core.topics.get(queue)
        if topic is None:
            return out
        if tenant is None:
            _pick_turns(core, topic, limit, out, room)
            return out
        lane = topic.lanes.get(tenant)
        if lane is None:
            return out
        if request.starvation_s is not None:
            old = _pick_oldest(core, lane, request.starvation_s)
            if old is not None:
                out.append(old)
                room -= old[1][5]
        _pick_lane(core, lane, limit, out, room)
        return out
    while len(out) < limit and room > 0:
        picked = _pick_merged(core, request)
        if picked is None:
            break
        out.append(picked)
        room -= picked[1][5]
    return out


def _pick_merged(core: Core, request: ClaimRequest) -> Picked | None:
    """The best head over several queues. All tenants of a queue: the tenant whose turn it is."""
    best: tuple[bytes, Bucket, int] | None = None
    turn: tuple[Topic, bytes] | None = None
    for queue, tenant in request.keys:
        topic = core.topics.get(queue)
        if topic is None or topic.is_paused:
            continue
        tenants = [tenant] if tenant is not None else list(topic.turns)
        for name in tenants:
            lane = topic.lanes.get(name)
            found = None if lane is None or lane.is_paused else _best(core, lane)
            if found is None:
                continue
            if best is None or found[0] < best[0]:
                best, turn = found, (topic, name)
            if tenant is None:
                break
    if best is None or turn is None:
        return None
    if turn[1] in turn[0].turns:
        turn[0].turns.move_to_end(turn[1])
    return _pop(core, best[1], best[2])


# -- from rows to leases ---------------------------------------------------------------


def lease_tail(policy: bytes, bucket: Bucket, worker: bytes) -> bytes:
    """The constant part of the lease record of a task without a ghost."""
    if len(bucket.tails) >= 256:
        bucket.tails.clear()
    lane = bucket.lane
    tail = encode_lease_tail(policy, NO_GHOST, 0, lane.queue, lane.tenant, worker)
    bucket.tails[policy, worker] = tail
    return tail


def grant(
    core: Core, request: ClaimRequest, group: Group, bucket: Bucket, row: Row, record: bytes,
    now_us: int, now_mono: float,
) -> Lease:  # fmt: skip
    """Queue ``-q(r) +l`` and enter the lease: from here on the task is this worker's."""
    key, raw_id, attempts, flags, expires_ms, size, _ = row
    created_us, seq, policy, ghost, ghost_expires_ms = _TASK_FIELDS.unpack_from(record)
    if flags:  # it has moved: the seq of its record is not the one it became ready with
        seq = int.from_bytes(key[-24:-16], "big")
    lease = Lease()
    lease.core = core
    lease.bucket = bucket
    lease.task_id = task_id = as_task_id(raw_id)
    lease.key = key
    lease.record = record
    lease.attempt = attempts = attempts + 1
    lease.flags = flags = flags << 1 | (EXPORTED if request.is_exported else 0)
    lease.priority = priority = 9 - key[-25]
    lease.epoch = epoch = core.next_epoch
    core.next_epoch = epoch + 1
    tokens = core.ids.tokens
    lease.token = token = tokens.pop() if tokens else core.ids.token()
    lease.lease_s = lease_s = request.lease_s
    lease.leased_us = now_us
    lease.granted_mono = now_mono
    lease.deadline_mono = now_mono + lease_s
    lease.created_us = created_us
    lease.seq = seq
    lease.expires_ms = expires_ms
    lease.policy_bytes = policy
    lease.ghost = ghost
    lease.ghost_expires_ms = ghost_expires_ms
    lease.record_bytes = size
    lease.worker = worker = request.worker
    lease.codec = core.codecs.get(bucket.lane.queue) if core.codecs else None
    lease.is_live = True
    if ghost == NO_GHOST:
        tail = bucket.tails.get((policy, worker)) or lease_tail(policy, bucket, worker)
    else:
        lane = bucket.lane
        tail = encode_lease_tail(policy, ghost, ghost_expires_ms, lane.queue, lane.tenant, worker)
    body = (
        _lease_head(
            0x4C, 1, flags, attempts, priority, 0, epoch, token, now_us, int(lease_s * 1000),
            size, created_us, seq, expires_ms,
        )
        + tail
    )  # fmt: skip
    op = (b"l/" + raw_id, body + xxh3_64_digest(body))
    if not group.replace_fresh(key, op):
        group.ops.append((key, None))
        group.ops.append(op)
    bucket.leased += 1
    group.dirty[bucket] = None
    core.leases[task_id] = lease
    core.deadlines.watch(lease)
    return lease


def _records(core: Core, picked: list[Picked]) -> list[bytes | None]:
    """The task record of every picked row: from memory, else one checked multi-get a shard."""
    records = [row[6] for _, row in picked]
    missing: dict[Shard, list[int]] = {}
    for i, record in enumerate(records):
        if record is None:
            missing.setdefault(picked[i][0].shard, []).append(i)
    for shard, places in missing.items():
        found = core.read_records(shard, [picked[i][1][1] for i in places])
        for i, raw in zip(places, found, strict=True):
            # Verified here and not at every use: what was enqueued in memory never left it.
            if raw is not None and len(raw) > TASK_HEAD.size and xxh3_64_digest(
                raw[:-8]
            ) == raw[-8:]:
                records[i] = raw
    return records


def _groups(picked: list[Picked]) -> dict[Shard, Group]:
    groups: dict[Shard, Group] = {}
    for bucket, row in picked:
        shard = bucket.shard
        if shard not in groups:
            groups[shard] = shard.co.begin(0)
        groups[shard].bytes += 400 + len(row[0])
    return groups


def take(core: Core, request: ClaimRequest) -> tuple[list[Lease], dict[Shard, Group]]:
    """Atomic section of a claim: pick rows, read bodies, queue the batch.

    No leases and no groups: there is nothing ready. No leases but groups: what was ready had
    expired, and there may be more behind it; commit, then look again.
    """
    groups: dict[Shard, Group] = {}
    for _ in range(EXPIRED_ROUNDS_MAX):
        for shard in core.shards:  # picking counts down: not in a group that is full already
            shard.co.seal_full()
        picked = pick(core, request)
        if not picked:
            return [], groups
        records = _records(core, picked)
        groups = _groups(picked)
        now_us, now_mono = core.clock.wall_us(), core.clock.mono()
        leases = []
        for (bucket, row), record in zip(picked, records, strict=True):
            group = groups[bucket.shard]
            if row[4] and row[4] <= now_us // 1000:
                expire_row(core, group, bucket, row)
            elif record is None:
                _bury_damaged(core, group, bucket, row)
            else:
                leases.append(
                    grant(core, request, group, bucket, row, record, now_us, now_mono)
                )
        core.totals.claimed += len(leases)
        if leases:
            break
    return leases, groups


def _place(bucket: Bucket, row: Row) -> Place:
    key, raw_id, attempts, flags, expires_ms, size, _ = row
    value = IndexRow(flags, 9 - key[-25], attempts, size, expires_ms, b"")
    return Place(raw_id, bucket, b"r", key, value, bool(flags & 1))


def expire_row(core: Core, group: Group, bucket: Bucket, row: Row) -> None:
    """A popped row turned out to be past its TTL: it ends here instead of being delivered."""
    raw = bucket.shard.overlay.get(b"t/" + row[1])
    try:
        task = decode_task(raw or b"")
    except RecordCorruptError:
        _bury_damaged(core, group, bucket, row)
        return
    bucket.ready += 1  # end_at takes it down again
    end_at(
        core, group, _place(bucket, row), task, Status.EXPIRED,
        error="ttl", retention_ms=decode_policy(task.policy).retention_ms,
    )  # fmt: skip
    core.totals.expired += 1


def _bury_damaged(core: Core, group: Group, bucket: Bucket, row: Row) -> None:
    """A row whose body is missing or fails its checksum never blocks the head of the queue."""
    core.anomaly(
        f"shard {bucket.shard.index}: task {TaskId(row[1])}: record missing or damaged; "
        "moved to the dead letters"
    )
    from .settle import bury_row  # noqa: PLC0415 - settle imports this module

    bury_row(core, group, bucket, row, b"record missing or damaged")


# -- the call --------------------------------------------------------------------------


async def claim(core: Core, request: ClaimRequest, wait_s: float) -> list[Lease]:
    """See ``Queue.claim``."""
    shards = core.shards
    if len(shards) == 1:
        if not shards[0].co.has_room:
            await core.room(shards[0])
    else:
        for shard in shards:
            if shard.co.poison is None and not shard.co.has_room:
                await core.room(shard)
    while True:
        leases, groups = take(core, request)
        if leases or not groups:
            break
        await _committed(core, [], groups)
        core.check()
    if not leases:
        core.check_healthy()
    if leases or wait_s <= 0:
        if len(groups) == 1:
            ((shard, group),) = groups.items()
            try:
                await shard.co.wait(group)
            except LodeqError:
                drop(leases)
                raise
            except BaseException:  # cancelled: the tasks go back by themselves
                _give_back(core, leases)
                raise
            return leases
        return await _committed(core, leases, groups)
    return await _wait(core, request, wait_s)


def drop(leases: Sequence[Lease]) -> None:
    """Their commit failed, the shard is poisoned: they are nobody's until it is reopened."""
    for lease in leases:
        lease.is_live = False
        lease.core.leases.pop(lease.task_id, None)


def _give_back(core: Core, leases: Sequence[Lease]) -> None:
    from .settle import give_back  # noqa: PLC0415

    give_back(core, leases)


def _committed(
    core: Core, leases: list[Lease], groups: dict[Shard, Group]
) -> Coroutine[Any, Any, list[Lease]]:
    """Wait for several shards; where one fails, the leases of the others are still good.

    The futures are made at once, not when it is first awaited: by then the groups may be gone.
    """
    futures: list[tuple[Shard, Future]] = [(s, s.co.wait(g)) for s, g in groups.items()]
    return _all_committed(core, leases, futures)


async def _all_committed(
    core: Core, leases: list[Lease], futures: list[tuple[Shard, Future]]
) -> list[Lease]:
    failed: set[Shard] = set()
    failure: LodeqError | None = None
    try:
        for shard, future in futures:
            try:
                await future
            except LodeqError as error:
                failed.add(shard)
                failure = error
    except BaseException:
        _give_back(core, leases)
        raise
    drop([x for x in leases if x.bucket.shard in failed])
    good = [x for x in leases if x.bucket.shard not in failed]
    if failure is not None and not good:
        raise failure
    return good


async def _wait(core: Core, request: ClaimRequest, wait_s: float) -> list[Lease]:
    waiter = core.waiters.add(request)

    def time_out() -> None:
        core.waiters.remove(waiter)
        if not waiter.future.done():
            waiter.future.set_result([])

    waiter.timer = core.clock.call_at(core.spawner, core.clock.mono() + wait_s, time_out)
    try:
        leases: list[Lease] = await waiter.future
    except LodeqError:
        drop(waiter.leases)
        raise
    except BaseException:
        core.waiters.remove(waiter)
        _give_back(core, waiter.leases)
        raise
    return leases


def serve_waiter(core: Core, waiter: Waiter) -> bool:
    """Give a waiter what is ready. Returns whether it took anything (or was gone already)."""
    if waiter.future.done():  # cancelled in this very tick: the next one is served instead
        core.waiters.remove(waiter)
        return True
    leases, groups = take(core, waiter.request)
    if not leases:
        if groups:  # only expired tasks so far: look again in the next tick
            for queue, tenant in waiter.request.keys:
                lane = core.find_lane(queue, tenant) if tenant is not None else None
                if lane is not None:
                    core.waiters.note(lane)
        return False
    core.waiters.remove(waiter)
    waiter.leases = leases
    if len(groups) == 1:
        (group,) = groups.values()
        group.waiters.append((waiter.future, leases))
    else:
        _serve_many(core, waiter, leases, groups)
    return True


def _serve_many(
    core: Core, waiter: Waiter, leases: list[Lease], groups: dict[Shard, Group]
) -> None:
    """A waiter whose tasks came from several shards: told when the last commit is in."""

    committed = _committed(core, leases, groups)

    async def finish() -> None:
        try:
            good = await committed
        except LodeqError as error:
            if not waiter.future.done():
                waiter.future.set_exception(error)
            return
        if not waiter.future.done():
            waiter.future.set_result(good)

    core.spawner.spawn(finish, "lodeq-claim")

