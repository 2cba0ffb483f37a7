"""How a lease ends: complete, nack, release, bury, and what the reaper does for the worker.

Each is one batch: the lease row goes, and in the same batch the task gets its next place or its
result. The lease table in memory decides whether a lease is still valid, so none of them reads
the disk; only a *repeated* complete does, to find its own result.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from ..coalescer.group import Group
from ..coalescer.spawner import Future
from ..engine.ids import TaskId
from ..engine.keyspace import DELAYED, GHOST, READY, dead_key, delayed_key
from ..engine.records.policy import Policy, decode_policy
from ..engine.records.result import HAS_VALUE, RESULT_HEAD, ResultRecord, Status, decode_result
from ..engine.records.result import encode_result as encode_result_record
from ..engine.records.rows import MOVED_ROW, IndexRow, Moved, encode_index_row, encode_moved
from ..engine.records.task import NO_GHOST, decode_task
from ..errors import LeaseLostError, LodeqError, RecordCorruptError, TaskNotFoundError, UsageError
from .backoff import delay_ms_of
from .codec import encode_value
from .core import Core
from .enqueue import check_durable, place
from .items import Defaults, Item, duration_s, item_of, names_of
from .lease import Lease
from .places import first_key, put_result
from .state import Bucket, Shard
from .values import Duration, NewTask
from .window import Row

__all__ = ["bury", "complete", "complete_many", "encode_result", "expire_lease", "finish", "give_back",
           "heartbeat", "nack", "put_back", "release"]  # fmt: skip

_result_head = RESULT_HEAD.pack
FOLLOW_UPS_MAX = 256


# -- is it still ours? -----------------------------------------------------------------


def lost(lease: Lease) -> LeaseLostError:
    """The error for a lease that is no longer valid."""
    return LeaseLostError(
        f"the lease on {lease.task_id} (epoch {lease.epoch}) is no longer valid: it expired, was "
        "revoked, or has ended; drop the task",
        task_id=lease.task_id,
    )


def check_lease(core: Core, lease: object) -> Lease:
    """A live lease of this engine, or ``LeaseLostError``."""
    if not isinstance(lease, Lease):
        raise UsageError(f"not a lease: {type(lease).__name__}")
    if lease.core is not core:
        raise LeaseLostError(
            f"the lease on {lease.task_id} was granted by another engine", task_id=lease.task_id
        )
    if not lease.is_live or core.leases.get(lease.task_id) is not lease:
        raise lost(lease)
    return lease


def heartbeat(lease: Lease, seconds: float) -> None:
    """Move the deadline to now + seconds."""
    core = lease.core
    check_lease(core, lease)
    deadline = core.clock.mono() + seconds
    sooner = deadline < lease.deadline_mono
    lease.deadline_mono = deadline
    if sooner:  # a later deadline is found when the old one comes up
        core.deadlines.rewatch(lease)


# -- the batches -----------------------------------------------------------------------


def _leave_lease(core: Core, group: Group, lease: Lease) -> None:
    lease.is_live = False
    del core.leases[lease.task_id]
    bucket = lease.bucket
    bucket.leased -= 1
    group.dirty[bucket] = None
    group.ops.append((b"l/" + lease.task_id, None))


def _forget_ghost(core: Core, group: Group, lease: Lease) -> None:
    # While its task lives a ghost can have no other holder, so there is nothing to compare.
    if lease.ghost != NO_GHOST and lease.ghost_expires_ms <= core.clock.wall_us() // 1000:
        group.ops.append((GHOST + lease.ghost, None))


def finish(
    core: Core, group: Group, lease: Lease, status: int, *, flags: int = 0, value: bytes = b"",
    raw_bytes: int = 0, error: bytes = b"", keep: bool = True,
) -> None:  # fmt: skip
    """The task is over: ``-l -t +r``, [``-s``], [``-g``]."""
    task_id = lease.task_id
    lease.is_live = False
    del core.leases[task_id]
    bucket = lease.bucket
    bucket.leased -= 1
    group.dirty[bucket] = None
    ops = group.ops
    ops.append((b"l/" + task_id, None))
    ops.append((b"t/" + task_id, None))
    if lease.flags & 2:
        ops.append((b"s/" + task_id, None))
    if lease.ghost != NO_GHOST:
        _forget_ghost(core, group, lease)
    retention_ms = decode_policy(lease.policy_bytes).retention_ms
    if keep and retention_ms and core.limits.results_max:
        now_us = core.clock.wall_us()
        lane, worker = bucket.lane, lease.worker
        queue, tenant = lane.queue, lane.tenant
        body = (
            _result_head(
                0x52, 1, flags, status, lease.priority, lease.attempt, lease.epoch,
                xxh3_64_intdigest(lease.token), lease.created_us, lease.seq, lease.leased_us,
                now_us, retention_ms, len(value), raw_bytes, len(error), len(worker), len(queue),
                len(tenant),
            )
            + queue + tenant + worker + error + value
        )  # fmt: skip
        record = body + xxh3_64_digest(body)
        shard = bucket.shard
        ops.append((b"r/" + task_id, record))
        bucket.results += 1
        shard.results += 1
        core.file_expiry(shard, group, now_us // 1000 + retention_ms, b"r" + task_id)
    if core.result_waiters:
        core.tell_result(group, task_id)


def die(core: Core, group: Group, lease: Lease, reason: bytes) -> None:
    """Out of attempts, or buried: ``-l +q(x) +s``, and a result that says so."""
    policy = decode_policy(lease.policy_bytes)
    task_id, bucket = lease.task_id, lease.bucket
    now_us = core.clock.wall_us()
    now_ms = now_us // 1000
    _leave_lease(core, group, lease)
    bury_at(
        core, group, bucket, task_id, lease.priority, lease.attempt, lease.record_bytes, reason,
        now_ms, policy,
    )  # fmt: skip
    _forget_ghost(core, group, lease)
    if policy.retention_ms and core.limits.results_max:
        lane = bucket.lane
        record = ResultRecord(
            0, Status.DEAD, lease.priority, lease.attempt, lease.epoch,
            xxh3_64_intdigest(lease.token), lease.created_us, lease.seq, lease.leased_us, now_us,
            policy.retention_ms, 0, lane.queue, lane.tenant, lease.worker, reason, b"",
        )  # fmt: skip
        put_result(
            core, bucket.shard, group, bucket, task_id, encode_result_record(record),
            now_ms + policy.retention_ms,
        )  # fmt: skip
    core.totals.dead += 1
    core.tell_result(group, task_id)


def bury_at(
    core: Core, group: Group, bucket: Bucket, task_id: bytes, priority: int, attempts: int,
    record_bytes: int, reason: bytes, now_ms: int, policy: Policy | None,
) -> None:  # fmt: skip
    """The dead row, its moved row, its counter, its own end."""
    forget_ms = now_ms + (policy.dead_retention_ms if policy is not None else 604_800_000)
    key = dead_key(bucket.prefix, now_ms, task_id)
    row = IndexRow(MOVED_ROW, priority, attempts, record_bytes, forget_ms, reason)
    group.ops.append((key, encode_index_row(row)))
    group.ops.append((b"s/" + task_id, encode_moved(Moved(attempts, key))))
    group.dirty[bucket] = None
    bucket.dead += 1
    core.file_expiry(bucket.shard, group, forget_ms, b"x" + task_id)


def bury_row(core: Core, group: Group, bucket: Bucket, row: Row, reason: bytes) -> None:
    """A ready row that was popped but cannot be delivered."""
    key, task_id, attempts, _, _, size, _ = row
    group.ops.append((key, None))
    bury_at(
        core, group, bucket, task_id, 9 - key[-25], attempts, size, reason,
        core.clock.wall_us() // 1000, None,
    )  # fmt: skip
    core.totals.dead += 1
    core.tell_result(group, task_id)


def expire_lease(core: Core, group: Group, lease: Lease) -> bool:
    """A task that comes back past its TTL ends instead. Returns whether it did."""
    if not lease.expires_ms or lease.expires_ms > core.clock.wall_us() // 1000:
        return False
    finish(core, group, lease, Status.EXPIRED, error=b"ttl")
    core.totals.expired += 1
    return True


def put_back(
    core: Core, group: Group, lease: Lease, *, delay_ms: int, reason: bytes, is_counted: bool
) -> None:
    """The task goes on: to its old place (released), to the tail, or to a later time."""
    if expire_lease(core, group, lease):
        return
    bucket, task_id = lease.bucket, lease.task_id
    now_us = core.clock.wall_us()
    _leave_lease(core, group, lease)
    attempts = lease.attempt if is_counted else lease.attempt - 1
    had_moved = bool(lease.flags & 2)
    stays = not is_counted and delay_ms == 0
    if stays:
        key = lease.key
        moved = had_moved or attempts > 0
    else:
        seq = core.next_seq(now_us)
        if delay_ms:
            key = delayed_key(bucket.prefix, now_us // 1000 + delay_ms, seq, task_id)
        else:
            key = (
                bucket.ready_prefixes[9 - lease.priority] + seq.to_bytes(8, "big") + task_id
            )
        moved = True
    row = IndexRow(
        MOVED_ROW if moved else 0, lease.priority, attempts, lease.record_bytes,
        lease.expires_ms, reason,
    )  # fmt: skip
    if moved and not (stays and had_moved):
        group.ops.append((b"s/" + task_id, encode_moved(Moved(attempts, key))))
    if delay_ms:
        core.put_delayed(group, bucket, key, now_us // 1000 + delay_ms, row)
    else:
        core.put_ready(group, bucket, 9 - lease.priority, key, task_id, row)


def give_back(core: Core, leases: Sequence[Lease]) -> None:
    """A claim nobody will work on: release without waiting, on the lane that never blocks."""
    groups: dict[Shard, Group] = {}
    for lease in leases:
        if not lease.is_live or core.leases.get(lease.task_id) is not lease:
            continue
        shard = lease.bucket.shard
        if shard.co.poison is not None or core.is_closed:
            continue
        if shard not in groups:
            groups[shard] = shard.co.begin()
        put_back(core, groups[shard], lease, delay_ms=0, reason=b"", is_counted=False)


# -- the calls -------------------------------------------------------------------------


async def _ready_to_settle(core: Core, lease: Lease) -> Shard:
    core.check()
    shard = check_lease(core, lease).bucket.shard
    if not shard.co.has_room:
        await core.room(shard)
        check_lease(core, lease)
    return shard


def reason_bytes(core: Core, reason: object) -> bytes:
    """UTF-8, cut to the limit at a character's edge."""
    if not isinstance(reason, str):
        raise UsageError(f"reason must be a str, not {type(reason).__name__}")
    raw = reason.encode("utf-8", "replace")[: core.limits.reason_bytes_max]
    return raw.decode("utf-8", "ignore").encode()


def _follow_ups(core: Core, lease: Lease, then: Sequence[NewTask]) -> list[Item]:
    if len(then) > FOLLOW_UPS_MAX:
        raise UsageError(f"at most {FOLLOW_UPS_MAX} follow-ups: they share one atomic batch")
    items = []
    now_us = core.clock.wall_us()
    for task in then:
        if not isinstance(task, NewTask):
            raise UsageError(f"then= takes lodeq.NewTask, not {type(task).__name__}")
        if task.dedup_key is not None or task.shard_key is not None:
            raise UsageError(
                "a follow-up lives on its parent's shard: it takes no dedup_key or shard_key"
            )
        queue, tenant = names_of(
            lease.queue if task.queue is None else task.queue,
            lease.tenant if task.tenant is None else task.tenant,
        )
        codec = lease.codec if task.queue is None else None
        items.append(item_of(core, Defaults(queue, tenant, codec=codec), task, now_us))
    if sum(item.record_bytes for item in items) > 3 << 20:
        raise UsageError("follow-ups of more than 3 MiB do not fit one atomic batch")
    return items


async def complete(
    lease: Lease, result: Any, then: Sequence[NewTask], keep: bool, durable: bool | None
) -> None:
    """See ``Lease.complete``."""
    core = lease.core
    flags, value, raw_bytes = encode_result(core, lease, result)
    items = _follow_ups(core, lease, then) if then else ()
    shard = lease.bucket.shard
    if not shard.co.has_room:
        await core.room(shard)
    if not lease.is_live or core.leases.get(lease.task_id) is not lease:
        await _completed_before(core, lease, durable)
        return
    # atomic section
    group = shard.co.begin(
        300 + len(value) + (sum(i.record_bytes + 128 for i in items) if items else 0)
    )
    finish(core, group, lease, 1, flags=flags, value=value, raw_bytes=raw_bytes, keep=keep)
    core.totals.completed += 1
    if items:
        now_us = core.clock.wall_us()
        slot = lease.task_id.slot
        for item in items:
            place(core, shard, group, item, core.ids.new(now_us // 1000, slot), now_us)
    await shard.co.wait(group, None, is_durable=bool(durable))


def encode_result(core: Core, lease: Lease, result: Any) -> tuple[int, bytes, int]:
    """(flags, bytes to store, bytes before compression), or a typed error."""
    if result is None:
        return 0, b"", 0
    kind, data = encode_value(result, lease.codec, core.limits.result_bytes_max, "result")
    code, stored = core.compressor.pack(data)
    return HAS_VALUE | kind | code << 2, stored, len(data)


async def _completed_before(core: Core, lease: Lease, durable: bool | None) -> None:
    """A repeated complete of the same lease succeeds; any other lost lease does not."""
    shard = lease.bucket.shard
    if lease.core is not core:
        raise lost(lease)
    raw = shard.overlay.get(b"r/" + lease.task_id)
    if raw is not None:
        try:
            record = decode_result(raw)
        except RecordCorruptError:
            raise lost(lease) from None
        same = hmac.compare_digest(
            record.token_hash.to_bytes(8, "big"),
            xxh3_64_intdigest(lease.token).to_bytes(8, "big"),
        )
        if record.status == Status.COMPLETED and record.epoch == lease.epoch and same:
            await core.settled(shard, is_durable=bool(durable))
            return
    raise lost(lease)


async def complete_many(
    core: Core, pairs: Sequence[tuple[Lease, Any]], durable: bool | None
) -> list[LeaseLostError | None]:
    """See ``Engine.complete_many``."""
    encoded = []
    for lease, result in pairs:
        if not isinstance(lease, Lease):
            raise UsageError(f"not a lease: {type(lease).__name__}")
        encoded.append((lease, encode_result(core, lease, result)))
    for shard in {lease.bucket.shard for lease, _ in encoded if lease.core is core}:
        if not shard.co.has_room:
            await core.room(shard)
    # atomic section
    out: list[LeaseLostError | None] = [None] * len(encoded)
    groups: dict[Shard, tuple[Group, list[Future]]] = {}
    again: list[int] = []
    completed = 0
    live = core.leases
    for i, (lease, (flags, value, raw_bytes)) in enumerate(encoded):
        if not lease.is_live or live.get(lease.task_id) is not lease:
            again.append(i)
            continue
        shard = lease.bucket.shard
        entry = groups.get(shard)
        cost = 300 + len(value)
        if entry is None or entry[0].sealed or entry[0].bytes + cost > 2 << 20:
            futures = entry[1] if entry is not None else []
            group = shard.co.begin(cost)
            futures.append(shard.co.wait(group, None, is_durable=bool(durable)))
            groups[shard] = entry = (group, futures)
        else:
            group = entry[0]
            group.bytes += cost
        finish(core, group, lease, 1, flags=flags, value=value, raw_bytes=raw_bytes)
        completed += 1
    core.totals.completed += completed
    await _all(groups)
    for i in again:
        try:
            await _completed_before(core, encoded[i][0], durable)
        except LeaseLostError as error:
            out[i] = error
    return out


async def _all(groups: dict[Shard, tuple[Group, list[Future]]]) -> None:
    failure: LodeqError | None = None
    for _, futures in groups.values():
        for future in futures:
            try:
                await future
            except LodeqError as error:
                failure = error
    if failure is not None:
        raise failure


async def nack(lease: Lease, delay: Duration | None, reason: str) -> None:
    """See ``Lease.nack``."""
    core = lease.core
    text = reason_bytes(core, reason)
    delay_s = None if delay is None else duration_s(delay, "delay")
    shard = await _ready_to_settle(core, lease)
    group = shard.co.begin()
    policy = lease.policy
    core.totals.nacked += 1
    if lease.attempt >= policy.max_attempts:
        if not expire_lease(core, group, lease):
            die(core, group, lease, text or b"nacked")
    else:
        ms = delay_ms_of(policy, lease.attempt, core.ids) if delay_s is None else delay_s * 1000
        put_back(core, group, lease, delay_ms=round(ms), reason=text, is_counted=True)
    await shard.co.wait(group)


async def release(lease: Lease, delay: Duration | None) -> None:
    """See ``Lease.release``."""
    core = lease.core
    delay_ms = 0 if delay is None else round(duration_s(delay, "delay") * 1000)
    shard = await _ready_to_settle(core, lease)
    group = shard.co.begin()
    put_back(core, group, lease, delay_ms=delay_ms, reason=b"", is_counted=False)
    await shard.co.wait(group)


async def bury(lease: Lease, reason: str) -> None:
    """See ``Lease.bury``."""
    core = lease.core
    text = reason_bytes(core, reason)
    shard = await _ready_to_settle(core, lease)
    group = shard.co.begin()
    die(core, group, lease, text or b"buried")
    await shard.co.wait(group)
