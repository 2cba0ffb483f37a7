"""Bugs a queue could have, planted by replacing one name: the machine must find each.

None of them is in the product. A model test that finds none of these proves nothing.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

from lodeq.engine.records.lease import DEAD_LEASE
from lodeq.engine.records.result import Status
from lodeq.repository.background import expiry_sweep, reaper
from lodeq.repository.state.engine_state import EngineState
from lodeq.repository.state.limits.queue_limits import QueueLimits
from lodeq.repository.state.rows.dedup_entries import drop_ghost
from lodeq.repository.state.rows.task_location import read_task
from lodeq.repository.tasks import claim_order, enqueue, lease_operations, task_end
from lodeq.repository.tasks.operators import admin, bulk_acts

__all__ = ["BUGS", "planted"]


def nack_counts_nothing(real):
    """The attempt is forgotten: a task that always fails never dies."""
    return lambda state, group, lease, **o: real(state, group, lease, **o | {"is_counted": False})


def release_goes_to_the_tail(real):
    """Whoever gives a task back unworked moves it behind all others."""

    def put_back(state, group, lease, *, delay_ms, reason, is_counted):
        lease.attempt -= not is_counted
        real(state, group, lease, delay_ms=delay_ms, reason=reason, is_counted=True)

    return put_back


def retention_ends_a_live_task(real):
    """A TTL that fires deletes whatever the id names, leased or not."""

    def expire(state, shard, group, task_id, now_ms, *, is_dead):
        lease = state.leases.get(task_id)
        if lease is not None:
            task_end.finish(state, group, lease, 3, error=b"ttl")
        else:
            real(state, shard, group, task_id, now_ms, is_dead=is_dead)

    return expire


def window_is_forgotten(real):
    """A dedup key is free as soon as its task has ended."""

    def holder(state, shard, item, now_ms):
        held_by = real(state, shard, item, now_ms)
        return held_by if held_by and enqueue.is_alive(state, shard, held_by) else None

    return holder


def redrive_keeps_the_attempts(real):
    """A dead letter comes back with none left."""

    def row(flags, priority, attempts, *rest):
        return real(flags, priority, 1, *rest)

    return row


def pause_of_all_tenants_is_ignored(real):
    """It pauses the default tenant."""
    return lambda state, queue, tenant, **o: real(state, queue, tenant or b"", **o)


def reap_forgets_the_last_attempt(real):
    """An expired lease always goes back."""

    def reap(state, group, lease, reason):
        task_end.put_back(state, group, lease, delay_ms=0, reason=reason, is_counted=True)

    return reap


def turns_follow_priority(real):
    """The claims of all tenants serve the first tenant until it has nothing left."""
    return lambda state, tenant_queue, limit, out, room: real(
        state, tenant_queue, len(out) + 2, out, room
    )


def starvation_counts_claims(real):
    """The overdue get one task of every eighth claim, however many it grants."""

    def pick_fair(state, tenant_queue, limit, out, room, boost_after_s):
        claims = tenant_queue.claims
        real(state, tenant_queue, 1, out, room, boost_after_s)
        tenant_queue.claims = claims + 1
        claim_order._pick_tenant_queue(state, tenant_queue, limit, out, room)

    return pick_fair


def release_gives_its_start_back(real):
    """A rate counts what is leased."""

    def ended(limits, lease):
        limit = lease.shard_queue.tenant_queue.queue_state.limit
        if limit is not None and limit.window is not None:
            limit.window.start(limits._now_us(), -1)
        real(limits, lease)

    return ended


def claim_of_one_is_not_counted(real):
    """The short way of a claim forgets the limits."""
    return lambda limits, queue_state, now_mono: None


def reprioritise_goes_to_the_tail(real):
    """A task of a new priority loses its place among its equals."""
    return lambda key: SimpleNamespace(seq=real(key).seq + 3_600_000_000)


def reprioritise_starts_anew(real):
    """It gets all its attempts again."""

    def reprioritise(state, group, shard, task, *, priority):
        location = bulk_acts._where(state, shard, task)
        if location is not None:
            anew = location._replace(row=location.row._replace(attempts=0))
            with mock.patch.object(bulk_acts, "_where", return_value=anew):
                return real(state, group, shard, task, priority=priority)
        return real(state, group, shard, task, priority=priority)

    return reprioritise


def delete_leaves_the_result(real):
    """A dead letter goes, and what is known of its end stays."""

    def forget(state, shard, group, task_id, record):
        if record.status != Status.DEAD:
            real(state, shard, group, task_id, record)

    return forget


def delete_takes_the_window_along(real):
    """The key of a dead letter is free at once."""

    def end_task(state, group, location, status, error):
        shard = location.shard_queue.shard
        task = read_task(shard, location.task_id)
        real(state, group, location, status, error)
        if task is not None and task.ghost:
            drop_ghost(shard, group, task.ghost)

    return end_task


def dead_letter_comes_back_ready(real):
    """A lease of a dead letter that nobody answers hands the task out again."""

    def lay_back(state, group, lease):
        lease.flags &= ~DEAD_LEASE
        task_end.put_back(state, group, lease, delay_ms=0, reason=b"", is_counted=True)

    return lay_back


def death_is_not_taken_back(real):
    """A dead letter that is completed leaves the result of its death in the counters."""
    return lambda state, group, lease: None


BUGS = {
    dead_letter_comes_back_ready: (task_end, "lay_back"),
    death_is_not_taken_back: (task_end, "_take_death_back"),
    nack_counts_nothing: (lease_operations, "put_back"),
    release_goes_to_the_tail: (lease_operations, "put_back"),
    retention_ends_a_live_task: (expiry_sweep, "_expire_task"),
    window_is_forgotten: (enqueue, "holder"),
    redrive_keeps_the_attempts: (admin, "IndexRow"),
    pause_of_all_tenants_is_ignored: (EngineState, "set_pause"),
    reap_forgets_the_last_attempt: (reaper, "reap"),
    turns_follow_priority: (claim_order, "_pick_tenant_queue"),
    starvation_counts_claims: (claim_order, "_pick_fair"),
    release_gives_its_start_back: (QueueLimits, "ended"),
    claim_of_one_is_not_counted: (QueueLimits, "granted_one"),
    reprioritise_goes_to_the_tail: (bulk_acts, "decode_index_key"),
    reprioritise_starts_anew: (bulk_acts, "_reprioritise"),
    delete_leaves_the_result: (bulk_acts, "forget_result"),
    delete_takes_the_window_along: (bulk_acts, "end_task"),
}


@contextmanager
def planted(bug):
    """The package with one bug in it."""
    module, name = BUGS[bug]
    with mock.patch.object(module, name, bug(getattr(module, name))):
        yield
