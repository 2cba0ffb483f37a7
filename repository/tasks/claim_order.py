"""Which rows a claim gets: from the windows in memory, refilled from disk.

Order: priority, then seq, merged over the shards' heads; all tenants: one task a turn; several
queues: merged in the same way, so that no queue named first starves the others. With
``boost_after`` set, every eighth task granted is the oldest overdue one, if there is any: counted
over claims and within them, for a lane or, of a claim from several, over all of these claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from ...coalescer.shard_status import STALLED
from ...engine.records.compression import VALUE_BYTES_MAX
from ...engine.records.keyspace import prefix_end
from ...engine.records.rows import decode_index_row
from ...errors import InvariantError, RecordCorruptError
from ..state.caches.claim_sets import NO_ROW, ClaimSet, Slot
from ..state.caches.ready_cache import WINDOW_ROWS, ReadyCache, Row, RowFacts
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from ..state.queue_state import QueueState, ShardQueue, TenantQueue

__all__ = [
    "Picked",
    "advance",
    "claim_cost",
    "first_of_set",
    "head",
    "head_seq",
    "is_doubtful",
    "next_of_set",
    "pick",
    "put_back_picked",
    "refill",
    "uncount",
]

CLAIM_BYTES_MAX = 4 << 20
STREAMED_COST: Final = 64 << 10  # of a task whose payload stays in its file: its headers
REFILL_ROWS = WINDOW_ROWS // 2
BOOST_EVERY: Final = 8
LAST_ORDER: Final = b"\xff"  # behind every (inverted priority, seq, id)


Picked = tuple[ShardQueue, Row]
Head: TypeAlias = tuple[bytes, ShardQueue, int]  # its order, its bucket, 9 - priority


def claim_cost(record_bytes: int) -> int:
    """Bytes that a claim reads of a task: of a streamed payload none; others are smaller."""
    return record_bytes if record_bytes <= VALUE_BYTES_MAX else STREAMED_COST


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
    core.let_go(bucket)
    b = bucket
    b.load(counted, b.delayed, b.leased, b.dead, b.results, b.waiting)
    core.claim_sets.touch(bucket.lane)
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


def _best(core: EngineState, lane: TenantQueue, *, may_rescan: bool) -> Head | None:
    """The lane's next row over its shards."""
    best: Head | None = None
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
    topic = lane.topic
    if lane.is_paused or topic.is_held:
        return bytes_left
    before = len(out)
    if topic.limit is None:
        bytes_left = _pick_rows(core, lane, limit, out, bytes_left)
    else:
        most = min(limit, before + core.queue_limits.free(topic.limit))
        try:
            bytes_left = _pick_rows(core, lane, most, out, bytes_left)
        finally:
            core.queue_limits.picked(topic, len(out) - before)
    if len(out) > before and core.claim_sets.sets and not lane.ready:
        core.claim_sets.emptied(lane, None)
    return bytes_left


def _pick_rows(
    core: EngineState, lane: TenantQueue, limit: int, out: list[Picked], bytes_left: int
) -> int:
    if len(lane.buckets) > 1:
        return _pick_sharded(core, lane, limit, out, bytes_left)
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
            bytes_left -= size if size <= VALUE_BYTES_MAX else STREAMED_COST
            if row[6] is not None:
                core.held_bytes -= size
            bucket.ready -= 1
            out.append((bucket, row))
    return bytes_left


def _pick_sharded(
    core: EngineState, lane: TenantQueue, limit: int, out: list[Picked], bytes_left: int
) -> int:
    """``_pick_lane`` over several shards, in one order: runs of the shard whose head is the best.

    Tasks of one turn lie on one shard, so a run is long, and the other heads are looked at once.
    """
    if len(out) + 1 >= limit:  # one: not worth a heap
        best = _best(core, lane, may_rescan=not out)
        if best is not None and len(out) < limit and bytes_left > 0:
            out.append(_pop(core, best[1], best[2]))
            bytes_left -= claim_cost(out[-1][1][5])
        return bytes_left
    heads: list[tuple[bytes, int, int]] = []  # of each shard: order, number, 9 - priority
    for bucket in lane.buckets:
        first = None if bucket is None else head(core, bucket, may_rescan=not out)
        if bucket is not None and first is not None:
            heads.append((first[1][0][-25:], bucket.shard.index, first[0]))
    heapify(heads)
    while heads and len(out) < limit and bytes_left > 0:
        _, nth, index = heappop(heads)
        until = heads[0][0] if heads else LAST_ORDER
        bucket = lane.buckets[nth]
        window = None if bucket is None else bucket.windows[index]
        if bucket is None or window is None:
            continue
        rows = window.rows
        most = min(limit, len(out) + bucket.ready)  # a counter never goes below zero
        while rows and len(out) < most and bytes_left > 0 and rows[0][0][-25:] < until:
            row = rows.popleft()
            bytes_left -= claim_cost(row[5])
            if row[6] is not None:
                core.held_bytes -= row[5]
            bucket.ready -= 1
            out.append((bucket, row))
        if len(out) < limit and bytes_left > 0:
            first = head(core, bucket, may_rescan=False)
            if first is not None:
                heappush(heads, (first[1][0][-25:], nth, first[0]))
    return bytes_left


def _pick_fair(
    core: EngineState,
    lane: TenantQueue,
    limit: int,
    out: list[Picked],
    bytes_left: int,
    boost_after_s: float,
) -> int:
    """``_pick_lane``, but every eighth task of the lane is the oldest overdue one."""
    while len(out) < limit and bytes_left > 0:
        until = BOOST_EVERY - 1 - lane.claims % BOOST_EVERY
        if not until:
            old = _oldest(core, ((lane, boost_after_s),), may_rescan=not out)
            if old is not None:
                lane.claims += 1
                out.append(_pop(core, old[0], old[1]))
                core.queue_limits.picked(lane.topic, 1)
                if core.claim_sets.sets and not lane.ready:
                    core.claim_sets.emptied(lane, None)
                bytes_left -= claim_cost(out[-1][1][5])
                continue
            until = 1  # nothing is overdue: the turn passes
        before = len(out)
        try:
            bytes_left = _pick_lane(core, lane, min(limit, before + until), out, bytes_left)
        finally:
            lane.claims += len(out) - before
        if len(out) == before:
            break
    return bytes_left


def _oldest(
    core: EngineState, lanes: Iterable[tuple[TenantQueue, float]], *, may_rescan: bool
) -> tuple[ShardQueue, int] | None:
    """Where the oldest overdue task of any priority is: (bucket, 9 - priority)."""
    now_us = core.clock.wall_us()
    best: tuple[bytes, ShardQueue, int] | None = None
    for lane, boost_after_s in lanes:
        if lane.is_paused or lane.topic.is_held:
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
    boost_after_s: float | None,
) -> None:
    """One task a tenant a turn; none for those in ``skip``."""
    turns = topic.turns
    skipped = 0
    doubtful: bytes | None = None
    while len(out) < limit and bytes_left > 0 and turns and skipped < len(turns):
        if topic.is_held:  # maybe by what was picked just now
            break
        tenant = next(iter(turns))
        lane = topic.lanes[tenant]
        if tenant in skip:
            turns.move_to_end(tenant)
            skipped += 1
            if core.claim_sets.any_keys:
                core.claim_sets.turned(lane)
            continue
        before = len(out)
        if boost_after_s is None:
            bytes_left = _pick_lane(core, lane, before + 1, out, bytes_left)
        else:
            bytes_left = _pick_fair(core, lane, before + 1, out, bytes_left, boost_after_s)
        if len(out) > before:
            skipped = 0
        if core.claim_sets.any_keys:
            core.claim_sets.turned(lane)
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
        core.claim_sets.touch(topic.lanes[doubtful])


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
    core.queue_limits.unpicked(lane.topic)
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
        core.claim_sets.touch(bucket.lane)


def _pick_into(core: EngineState, request: ClaimRequest, out: list[Picked]) -> None:
    limit, bytes_left = request.limit, request.bytes_max or CLAIM_BYTES_MAX
    if len(request.keys) == 1:
        queue, tenant = request.keys[0]
        topic = core.topics.get(queue)
        if topic is None:
            return
        boost_after_s = request.boosts.get((queue, tenant))
        if tenant is None:
            _pick_turns(core, topic, limit, out, bytes_left, request.skipped, boost_after_s)
            return
        lane = topic.lanes.get(tenant)
        if lane is None:
            return
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
        topic = core.topics.get(queue)
        if topic is None:
            continue
        if tenant is None:  # of all tenants: that whose turn it is
            tenant = next(iter(topic.turns), b"")
        lane = topic.lanes.get(tenant)
        if lane is not None:
            lanes.append((lane, boost_after_s))
    old = _oldest(core, lanes, may_rescan=may_rescan)
    return None if old is None else _pop(core, old[0], old[1])


def _pick_merged(
    core: EngineState, request: ClaimRequest, out: list[Picked], bytes_left: int
) -> None:
    """The best head over several queues, again and again.

    A queue is looked at anew where something of it was taken, or where its next row may be an
    earlier one than is known: what a task costs does not grow with the number of queues.
    """
    claim_set = request.claim_set
    if claim_set is None:
        claim_set = ClaimSet(request.keys)
    else:
        core.claim_sets.use(claim_set)
    _look_at_stale(core, claim_set, may_rescan=True)  # nothing has been picked yet
    is_simple = not request.boosts and not claim_set.has_any
    while len(out) < request.limit and bytes_left > 0:
        if is_simple and not core.claim_sets.any_keys:
            before = len(out)
            bytes_left = _pick_known(core, claim_set, request.limit, out, bytes_left)
            if len(out) > before:
                continue
        picked = _pick_overdue(core, request, may_rescan=not out) if request.boosts else None
        if picked is not None:
            out.append(picked)
            _note_limited(core, claim_set, picked[0].lane.topic)
            _note_taken(core, claim_set, picked[0].lane)
            _look_at_stale(core, claim_set, may_rescan=False)
        else:
            nth = next_of_set(core, claim_set, may_rescan=not out)
            if nth < 0:
                break
            slot = claim_set.slots[nth]
            if slot is None:
                raise InvariantError("a queue of a claim has an order and no row")
            picked = _pop(core, slot[0], slot[1])
            out.append(picked)
            _note_limited(core, claim_set, picked[0].lane.topic)
            advance(core, claim_set, nth, slot)
        if request.boosts:
            core.merged_claims += 1
        bytes_left -= claim_cost(picked[1][5])


def _note_limited(core: EngineState, claim_set: ClaimSet, topic: QueueState) -> None:
    """A row was picked: count it, and pass the queue over once it is at its limit."""
    if topic.limit is None:
        return
    core.queue_limits.picked(topic, 1)
    if topic.is_held and not claim_set.is_kept:
        for nth, key in enumerate(claim_set.keys):
            if key[0] == topic.queue:
                claim_set.stale[nth] = None


def _pick_known(
    core: EngineState, claim_set: ClaimSet, limit: int, out: list[Picked], bytes_left: int
) -> int:
    """The best heads for as long as each has another row behind it, in memory."""
    heap, orders, slots = claim_set.heap, claim_set.orders, claim_set.slots
    while heap and len(out) < limit and bytes_left > 0 and not claim_set.stale:
        order, nth = heap[0]
        slot = slots[nth]
        if slot is None or orders[nth] != order:
            heappop(heap)
            continue
        bucket, index, tenant = slot
        window = bucket.windows[index]
        if window is None or len(window.rows) < 2 or bucket.ready < 2:
            break
        if bucket.lane.topic.limit is not None:
            break
        row = window.rows[0]
        if row[0][-25:] != order or bucket.occupied & -bucket.occupied != 1 << index:
            break
        if bucket.shard.co.status > STALLED:
            break
        rows, following = window.rows, claim_set.second_order()
        other: Head | None = None  # the best of the lane on the other shards
        if len(bucket.lane.buckets) > 1:
            is_known, other = _head_in_memory(bucket.lane, bucket)
            if not is_known or (other is not None and other[0] < order):
                break
            if other is not None and other[0] < following:
                following = other[0]
        turns = bucket.lane.topic.turns
        if len(turns) > 1 and tenant in turns:
            turns.move_to_end(tenant)
        while True:  # a run of this key and shard: up to where another one has the best
            bucket.ready -= 1
            bytes_left -= claim_cost(row[5])
            if row[6] is not None:
                core.held_bytes -= row[5]
            out.append((bucket, rows.popleft()))
            row = rows[0]
            order = row[0][-25:]
            if order >= following or len(out) >= limit or bytes_left <= 0:
                break
            if len(rows) < 2 or bucket.ready < 2:
                break
        if other is not None and other[0] < order:
            slots[nth], order = (other[1], other[2], tenant), other[0]
        claim_set.replace_first(nth, order)
    return bytes_left


def _head_in_memory(
    lane: TenantQueue, passed: ShardQueue | None = None
) -> tuple[bool, Head | None]:
    """The lane's next row over its shards but ``passed``'s, if all of their heads are in memory.

    Returns whether they are, and ``_best`` of them; None: there is nothing ready.
    """
    best: Head | None = None
    for bucket in lane.buckets:
        if bucket is None or bucket is passed or bucket.ready <= 0:
            continue
        if bucket.shard.co.status > STALLED:
            continue
        occupied = bucket.occupied
        if not occupied:
            return False, None
        index = (occupied & -occupied).bit_length() - 1
        window = bucket.windows[index]
        if window is None or not window.rows:
            return False, None
        order = window.rows[0][0][-25:]
        if best is None or order < best[0]:
            best = order, bucket, index
    return True, best


def first_of_set(core: EngineState, claim_set: ClaimSet) -> int:
    """``next_of_set`` for a claim of one; -1 also where it takes the long way."""
    sets = core.claim_sets
    if claim_set.doubtful or claim_set.epoch != sets.epoch or not claim_set.is_kept:
        sets.use(claim_set)
    else:
        sets.uses += 1
        claim_set.used = sets.uses
    if core.damaged_blocks:  # of whichever shard: a look there may take probes
        return -1
    nth = next_of_set(core, claim_set, may_rescan=False)
    return -1 if claim_set.doubtful else nth


def next_of_set(core: EngineState, claim_set: ClaimSet, *, may_rescan: bool) -> int:
    """Which key of a set has the best next row: ``slots`` says where it is; -1 if none has any.

    ``ClaimSets.use`` comes first, once a claim.
    """
    heap, orders, slots = claim_set.heap, claim_set.orders, claim_set.slots
    while True:
        if claim_set.stale:
            _look_at_stale(core, claim_set, may_rescan=may_rescan)
            heap = claim_set.heap
        if not heap:
            return -1
        order, nth = heap[0]
        slot = slots[nth]
        if slot is None or orders[nth] != order:  # it has been looked at since
            heappop(heap)
            continue
        bucket = slot[0]
        window = bucket.windows[slot[1]]
        if (
            window is not None
            and window.rows
            and bucket.ready > 0
            and bucket.shard.co.status <= STALLED
            and window.rows[0][0][-25:] == order
        ):
            return nth
        heappop(heap)  # the row has gone another way
        claim_set.stale[nth] = None


def advance(core: EngineState, claim_set: ClaimSet, nth: int, slot: Slot) -> None:
    """The next row of a key was taken: enter the one behind it.

    Args:
        claim_set: whose key it is.
        nth: as ``next_of_set`` returned it.
        slot: where the row was.
    """
    bucket, index, tenant = slot
    lane = bucket.lane
    turns = lane.topic.turns
    if tenant in turns:
        turns.move_to_end(tenant)
    if core.claim_sets.any_keys:
        core.claim_sets.turned(lane)
    window = bucket.windows[index]
    if (  # nearly always: one more row in memory, and nothing that could be better
        not claim_set.has_any
        and window is not None
        and window.rows
        and bucket.ready > 0
        and len(lane.buckets) == 1
        and bucket.occupied & -bucket.occupied == 1 << index
    ):
        claim_set.replace_first(nth, window.rows[0][0][-25:])
        return
    if len(lane.buckets) > 1 and not claim_set.has_any:
        _, best = _head_in_memory(lane)
        if best is not None:
            claim_set.slots[nth] = best[1], best[2], tenant
            claim_set.replace_first(nth, best[0])
            return
    is_last = bucket.ready == 0 if len(lane.buckets) == 1 else lane.ready == 0
    if is_last and not claim_set.has_any:
        turns.pop(tenant, None)
        if not claim_set.remove_first(nth) or core.claim_sets.any_keys:
            core.claim_sets.emptied(lane, claim_set)
        return
    claim_set.stale[nth] = None
    _note_taken(core, claim_set, lane)
    _look_at_stale(core, claim_set, may_rescan=False)


def _note_taken(core: EngineState, claim_set: ClaimSet, lane: TenantQueue) -> None:
    """A row of ``lane`` was taken: the keys of the set that it is in are looked at."""
    for key in (lane.key, lane.any_key):
        nth = claim_set.where.get(key, -1)
        if nth >= 0:
            claim_set.stale[nth] = None
    if core.claim_sets.sets and not lane.ready:
        core.claim_sets.emptied(lane, None)


def _look_at_stale(core: EngineState, claim_set: ClaimSet, *, may_rescan: bool) -> None:
    stale = claim_set.stale
    while stale:
        for nth in list(stale):
            if not _look_in_memory(core, claim_set, nth):
                _look(core, claim_set, nth, may_rescan=may_rescan)
            del stale[nth]  # not before: what cannot be read is looked at again


def _look_in_memory(core: EngineState, claim_set: ClaimSet, nth: int) -> bool:
    """``_look`` for one lane whose next row, on every shard that it has any on, is in memory."""
    queue, tenant = claim_set.keys[nth]
    topic = core.topics.get(queue)
    if tenant is None or topic is None or topic.is_held:
        return False
    lane = topic.lanes.get(tenant)
    if lane is None or lane.is_paused:
        return False
    _, best = _head_in_memory(lane)
    if best is None:
        return False
    claim_set.enter(nth, best[0], (best[1], best[2], tenant))
    return True


def _look(core: EngineState, claim_set: ClaimSet, nth: int, *, may_rescan: bool) -> None:
    """Enter the next row of one of several queues. All tenants: of the tenant whose turn it is."""
    queue, tenant = claim_set.keys[nth]
    topic = core.topics.get(queue)
    order = NO_ROW
    slot: Slot | None = None
    if topic is not None and not topic.is_held:
        empty: list[bytes] = []
        for name in topic.turns if tenant is None else (tenant,):
            lane = topic.lanes.get(name)
            if lane is None or not lane.ready:
                empty.append(name)
                continue
            if lane.is_paused:
                continue
            found = _best(core, lane, may_rescan=may_rescan)
            if found is None or _is_undecided(lane):
                claim_set.doubtful[nth] = None
            if found is not None:
                order, slot = found[0], (found[1], found[2], name)
                break
        for name in empty:  # as in ``_pick_turns``: looked at once, not by every claim
            topic.turns.pop(name, None)
    claim_set.enter(nth, order, slot)


def _is_undecided(lane: TenantQueue) -> bool:
    """Whether better rows than its head may come from where nothing could be read just now."""
    for bucket in lane.buckets:
        if bucket is not None and bucket.ready > 0:
            left = bucket.occupied
            while left:
                window = bucket.windows[(left & -left).bit_length() - 1]
                if window is not None and window.rows:
                    break
                if window is not None and not window.is_complete:
                    return True
                left &= left - 1
    return False
