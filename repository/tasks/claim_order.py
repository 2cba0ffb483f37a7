"""Which rows a claim gets: from the windows in memory, refilled from disk.

Order: priority, then seq, merged over the shards' heads; all tenants: one task a turn; several
queues: merged in the same way, so that no queue named first starves the others. With
``boost_after`` set, every eighth task granted is the oldest overdue one, if there is any: counted
over claims and within them, for a lane or, of a claim from several, over all of these claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from ...coalescer.shard_status import STALLED
from ...engine.records.keyspace import prefix_end
from ...engine.records.rows import decode_index_row
from ...errors import InvariantError, RecordCorruptError
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import QueueState, ShardQueue, TenantQueue
from ..state.ready_cache import WINDOW_ROWS, ReadyCache, Row, RowFacts

__all__ = [
    "Picked",
    "head",
    "head_seq",
    "is_doubtful",
    "pick",
    "put_back_picked",
    "refill",
    "uncount",
]

CLAIM_BYTES_MAX = 4 << 20
REFILL_ROWS = WINDOW_ROWS // 2
BOOST_EVERY: Final = 8


Picked = tuple[ShardQueue, Row]


def refill(core: EngineState, bucket: ShardQueue, index: int, window: ReadyCache) -> None:
    """Bring the next rows of the backlog in: one bounded scan from the edge on.

    Rows behind a damaged block come in, those in it stay on disk (``unreadable.py``). Where this
    call may not look further, the window stays empty and incomplete, and the next one goes on.

    Args:
        bucket: of the window.
        index: 9 - priority.
        window: empty and incomplete, or nothing is done.
    """
    prefix = bucket.ready_prefixes[index]
    upper = prefix_end(prefix)
    values = core.index_values
    overlay = bucket.shard.overlay
    while not window.rows and not window.is_complete:
        lower = window.edge + b"\0"
        found, resume = overlay.scan_readable(lower, upper, REFILL_ROWS, renew=False)
        edge: bytes | None = None
        if resume is not None:  # the end of a damaged range need not end in a zero byte
            edge = max(resume[:-1], found[-1][0]) if found else resume[:-1]
            if edge < lower and not found:
                return
        rows: list[Row] = []
        for key, value in found:
            try:
                attempts, flags, expires_ms, size = values.get(value) or _decode(values, value)
            except RecordCorruptError as error:
                core.anomaly(f"shard {bucket.shard.index}: index row {key!r}: {error}")
                continue
            rows.append((key, key[-16:], attempts, flags, expires_ms, size, None))
        window.refill(rows, edge)


def _decode(values: dict[bytes, RowFacts], value: bytes) -> RowFacts:
    """Decode an index value and keep it: tasks of one size that never ran all have the same."""
    row = decode_index_row(value)
    if len(values) >= 4096:
        values.clear()
    facts = values[value] = row.attempts, row.flags, row.expires_ms, row.record_bytes
    return facts


def head(core: EngineState, bucket: ShardQueue, *, may_rescan: bool) -> tuple[int, Row] | None:
    """The first ready row of a bucket: (9 - priority, row); None if there is none.

    ``may_rescan`` only while nothing has been picked: the deletes of picked rows are not queued
    yet, so a scan would find these rows again.
    """
    if bucket.ready <= 0 or bucket.shard.co.status > STALLED:
        return None
    left = bucket.occupied
    while left:
        index = (left & -left).bit_length() - 1
        window = bucket.windows[index]
        if window is not None:
            if not window.rows and not window.is_complete:
                refill(core, bucket, index, window)
            if window.rows:
                return index, window.rows[0]
        if window is None or window.is_complete:
            bucket.occupied &= ~(1 << index)
        left &= ~(1 << index)
    if not may_rescan or _is_unreadable(bucket):
        return None
    _rescan(core, bucket)
    return head(core, bucket, may_rescan=False)


def _is_unreadable(bucket: ShardQueue) -> bool:
    """Whether ready rows lie where nothing can be read: then the counter is right about them."""
    unreadable = bucket.shard.overlay.unreadable
    start = bucket.prefix + b"r"
    return unreadable is not None and unreadable.overlaps(start, prefix_end(start))


def _rescan(core: EngineState, bucket: ShardQueue) -> None:
    """The counter says there are rows, the windows say there are none: trust neither.

    The counter becomes what exists, where all of it fits the windows; else a later rescan, when
    these rows are gone, sees the rest.
    """
    counted = bucket.ready
    core.anomaly(
        f"shard {bucket.shard.index}: {bucket.lane.queue.decode()}: counter {counted}, "
        "no rows in memory: rescanned"
    )
    bucket.load(counted, bucket.delayed, bucket.leased, bucket.dead, bucket.results)
    exists, is_all = 0, True
    for index, window in enumerate(bucket.windows):
        if window is not None:
            refill(core, bucket, index, window)
            exists += len(window.rows)
            is_all = is_all and window.is_complete
    if not is_all:
        exists = max(exists, counted)
    if exists != counted:
        co = bucket.shard.co
        group = co.begin(0)  # first: it may seal the group before, with the counter as it was
        bucket.ready = exists
        group.dirty[bucket] = None
        co.seal_full()  # the claim goes on to count down: not in a group that is full


def is_doubtful(lane: TenantQueue) -> bool:
    """Whether a counter says there are rows while no window can have any: see ``_rescan``."""
    return any(
        b is not None and b.ready > 0 and not b.occupied and b.shard.co.status <= STALLED
        for b in lane.buckets
        if b is None or not _is_unreadable(b)
    )


def head_seq(core: EngineState, lane: TenantQueue) -> int | None:
    """The least seq among the heads of all priorities and shards: the oldest ready task."""
    _renew_probes(core)
    oldest: int | None = None
    for _, _, row in _heads(core, lane, may_rescan=False):  # looking changes nothing
        seq = int.from_bytes(row[0][-24:-16], "big")
        if oldest is None or seq < oldest:
            oldest = seq
    return oldest


def _heads(
    core: EngineState, lane: TenantQueue, *, may_rescan: bool
) -> list[tuple[ShardQueue, int, Row]]:
    found: list[tuple[ShardQueue, int, Row]] = []
    for bucket in lane.buckets:
        if bucket is None or head(core, bucket, may_rescan=may_rescan) is None:
            continue
        for index, window in enumerate(bucket.windows):
            if window is None:
                continue
            if not window.rows and not window.is_complete:
                refill(core, bucket, index, window)
            if window.rows:
                found.append((bucket, index, window.rows[0]))
    return found


def _best(
    core: EngineState, lane: TenantQueue, *, may_rescan: bool
) -> tuple[bytes, ShardQueue, int] | None:
    """The lane's next row over its shards: (order, bucket, 9 - priority)."""
    best: tuple[bytes, ShardQueue, int] | None = None
    for bucket in lane.buckets:
        if bucket is None:
            continue
        first = head(core, bucket, may_rescan=may_rescan)
        if first is not None:
            order = first[1][0][-25:]  # inverted priority, seq, id
            if best is None or order < best[0]:
                best = (order, bucket, first[0])
    return best


def _pop(core: EngineState, bucket: ShardQueue, index: int) -> Picked:
    window = bucket.windows[index]
    if window is None:
        raise InvariantError("a row was picked from a window that is not there")
    row = window.rows.popleft()
    bucket.ready -= 1
    if row[6] is not None:
        core.held_bytes -= row[5]
    return bucket, row


def _pick_lane(
    core: EngineState, lane: TenantQueue, limit: int, out: list[Picked], bytes_left: int
) -> int:
    """Pick up to ``limit`` rows of one lane, up to ``bytes_left`` of records; the bytes left."""
    if lane.is_paused or lane.topic.is_paused:
        return bytes_left
    if len(lane.buckets) > 1:
        while len(out) < limit and bytes_left > 0:
            best = _best(core, lane, may_rescan=not out)
            if best is None:
                break
            out.append(_pop(core, best[1], best[2]))
            bytes_left -= out[-1][1][5]
        return bytes_left
    bucket = lane.buckets[0]
    while bucket is not None and len(out) < limit and bytes_left > 0:
        first = head(core, bucket, may_rescan=not out)
        if first is None:
            break
        window = bucket.windows[first[0]]
        rows = window.rows if window is not None else None
        most = min(limit, len(out) + bucket.ready)  # a counter never goes below zero
        while rows and len(out) < most and bytes_left > 0:
            row = rows.popleft()
            size = row[5]
            bytes_left -= size
            if row[6] is not None:
                core.held_bytes -= size
            bucket.ready -= 1
            out.append((bucket, row))
    return bytes_left


def _pick_fair(
    core: EngineState,
    lane: TenantQueue,
    limit: int,
    out: list[Picked],
    bytes_left: int,
    boost_after_s: float,
) -> None:
    """``_pick_lane``, but every eighth task of the lane is the oldest overdue one."""
    while len(out) < limit and bytes_left > 0:
        until = BOOST_EVERY - 1 - lane.claims % BOOST_EVERY
        if not until:
            old = _oldest(core, ((lane, boost_after_s),), may_rescan=not out)
            if old is not None:
                lane.claims += 1
                out.append(_pop(core, old[0], old[1]))
                bytes_left -= out[-1][1][5]
                continue
            until = 1  # nothing is overdue: the turn passes
        before = len(out)
        try:
            bytes_left = _pick_lane(core, lane, min(limit, before + until), out, bytes_left)
        finally:
            lane.claims += len(out) - before
        if len(out) == before:
            return


def _oldest(
    core: EngineState, lanes: Iterable[tuple[TenantQueue, float]], *, may_rescan: bool
) -> tuple[ShardQueue, int] | None:
    """Where the oldest overdue task of any priority is: (bucket, 9 - priority)."""
    now_us = core.clock.wall_us()
    best: tuple[bytes, ShardQueue, int] | None = None
    for lane, boost_after_s in lanes:
        if lane.is_paused or lane.topic.is_paused:
            continue
        before = now_us - int(boost_after_s * 1e6)
        for bucket, index, row in _heads(core, lane, may_rescan=may_rescan):
            age = row[0][-24:]  # seq, id
            if int.from_bytes(age[:8], "big") <= before and (best is None or age < best[0]):
                best = age, bucket, index
    return None if best is None else (best[1], best[2])


def _pick_turns(
    core: EngineState,
    topic: QueueState,
    limit: int,
    out: list[Picked],
    bytes_left: int,
    skip: frozenset[bytes],
) -> None:
    """One task a tenant a turn; none for those in ``skip``."""
    turns = topic.turns
    if topic.is_paused:
        return
    skipped = 0
    doubtful: bytes | None = None
    while len(out) < limit and bytes_left > 0 and turns and skipped < len(turns):
        tenant = next(iter(turns))
        lane = topic.lanes[tenant]
        if tenant in skip:
            turns.move_to_end(tenant)
            skipped += 1
            continue
        before = len(out)
        bytes_left = _pick_lane(core, lane, before + 1, out, bytes_left)
        if len(out) > before:
            skipped = 0
        if not lane.ready:  # no skip: the line is shorter by it
            del turns[tenant]
            continue
        turns.move_to_end(tenant)
        if len(out) == before:
            skipped += 1
            if is_doubtful(lane):
                doubtful = tenant
    # Rows of others were picked before it: the next claim can rescan it.
    if doubtful is not None and doubtful in turns:
        turns.move_to_end(doubtful, last=False)


def pick(core: EngineState, request: ClaimRequest) -> list[Picked]:
    """The rows a claim gets, taken out of their windows; their counters are down already."""
    out: list[Picked] = []
    _renew_probes(core)
    try:
        _pick_into(core, request, out)
    except BaseException:  # a range that cannot be read costs the claim, not the tasks
        put_back_picked(core, out, request)
        raise
    return out


def _renew_probes(core: EngineState) -> None:
    """Limit of the search for the end of a damaged range, per call and shard."""
    for shard in core.shards:
        unreadable = shard.overlay.unreadable
        if unreadable is not None:
            unreadable.renew()


def uncount(core: EngineState, request: ClaimRequest, lane: TenantQueue) -> None:
    """A task that was picked is not granted: whose turn it is does not move on by it."""
    if len(request.keys) > 1:
        core.merged_claims -= 1 if request.boosts else 0
    elif request.boosts:
        lane.claims -= 1


def put_back_picked(
    core: EngineState, picked: list[Picked], request: ClaimRequest | None = None
) -> None:
    """Undo ``pick``: nothing has been queued yet."""
    for bucket, row in picked:
        if request is not None:
            uncount(core, request, bucket.lane)
        bucket.ready += 1
        if bucket.put(row[0][-25], row) and row[6] is not None:
            core.held_bytes += row[5]
        bucket.lane.topic.turns.setdefault(bucket.lane.tenant)


def _pick_into(core: EngineState, request: ClaimRequest, out: list[Picked]) -> None:
    limit, bytes_left = request.limit, request.bytes_max or CLAIM_BYTES_MAX
    if len(request.keys) == 1:
        queue, tenant = request.keys[0]
        topic = core.topics.get(queue)
        if topic is None:
            return
        if tenant is None:
            _pick_turns(core, topic, limit, out, bytes_left, request.skipped)
            return
        lane = topic.lanes.get(tenant)
        if lane is None:
            return
        boost_after_s = request.boosts.get((queue, tenant))
        if boost_after_s is not None:
            _pick_fair(core, lane, limit, out, bytes_left, boost_after_s)
        else:
            _pick_lane(core, lane, limit, out, bytes_left)
        return
    _pick_merged(core, request, out, bytes_left)


def _pick_overdue(core: EngineState, request: ClaimRequest, *, may_rescan: bool) -> Picked | None:
    """Over several queues: every eighth is the oldest overdue task of those that ask for it."""
    if core.merged_claims % BOOST_EVERY != BOOST_EVERY - 1:
        return None
    lanes: list[tuple[TenantQueue, float]] = []
    for (queue, tenant), boost_after_s in request.boosts.items():
        lane = core.find_lane(queue, tenant) if tenant is not None else None
        if lane is not None:
            lanes.append((lane, boost_after_s))
    old = _oldest(core, lanes, may_rescan=may_rescan)
    return None if old is None else _pop(core, old[0], old[1])


# Of one of several queues: the order of its next row, which of them it is, how often that one had
# been looked at; and where the row is, with the tenant whose turn it is.
_Head = tuple[bytes, int, int, ShardQueue, int, bytes]


def _pick_merged(
    core: EngineState, request: ClaimRequest, out: list[Picked], bytes_left: int
) -> None:
    """The best head over several queues, again and again.

    A queue is looked at anew where something of it was taken: what a task costs does not grow with
    the number of queues.
    """
    where = {key: nth for nth, key in enumerate(request.keys)}
    looks = [0] * len(request.keys)
    heads: list[_Head] = []
    for key, nth in where.items():
        _look(core, key, nth, looks, heads, may_rescan=True)  # nothing has been picked yet
    while len(out) < request.limit and bytes_left > 0:
        picked = _pick_overdue(core, request, may_rescan=not out) if request.boosts else None
        if picked is None:
            while heads and heads[0][2] != looks[heads[0][1]]:
                heappop(heads)
            if not heads:
                break
            _, _, _, bucket, index, tenant = heappop(heads)
            turns = bucket.lane.topic.turns
            if tenant in turns:
                turns.move_to_end(tenant)
            picked = _pop(core, bucket, index)
        if request.boosts:
            core.merged_claims += 1
        out.append(picked)
        bytes_left -= picked[1][5]
        lane = picked[0].lane
        for key in (lane.key, lane.any_key):
            nth = where.get(key, -1)
            if nth >= 0:
                _look(core, key, nth, looks, heads, may_rescan=False)


def _look(
    core: EngineState,
    key: tuple[bytes, bytes | None],
    nth: int,
    looks: list[int],
    heads: list[_Head],
    *,
    may_rescan: bool,
) -> None:
    """Enter the next row of one of several queues. All tenants: of the tenant whose turn it is."""
    looks[nth] += 1
    queue, tenant = key
    topic = core.topics.get(queue)
    if topic is None or topic.is_paused:
        return
    empty: list[bytes] = []
    for name in topic.turns if tenant is None else (tenant,):
        lane = topic.lanes.get(name)
        if lane is None or not lane.ready:
            empty.append(name)
            continue
        found = None if lane.is_paused else _best(core, lane, may_rescan=may_rescan)
        if found is not None:
            heappush(heads, (found[0], nth, looks[nth], found[1], found[2], name))
            break
    for name in empty:  # as in ``_pick_turns``: looked at once, not by every claim
        topic.turns.pop(name, None)
