"""Bugs a queue could have, planted by replacing one name: the machine must find each.

None of them is in the product. A model test that finds none of these proves nothing.
"""

from contextlib import contextmanager
from unittest import mock

from lodeq.repository.background import expiry_sweep, reaper
from lodeq.repository.state.engine_state import EngineState
from lodeq.repository.tasks import admin, claim_order, enqueue, lease_operations, task_end

__all__ = ["BUGS", "planted"]


def nack_counts_nothing(real):
    """The attempt is forgotten: a task that always fails never dies."""
    return lambda core, group, lease, **o: real(core, group, lease, **o | {"is_counted": False})


def release_goes_to_the_tail(real):
    """Whoever gives a task back unworked moves it behind all others."""

    def put_back(core, group, lease, *, delay_ms, reason, is_counted):
        lease.attempt -= not is_counted
        real(core, group, lease, delay_ms=delay_ms, reason=reason, is_counted=True)

    return put_back


def retention_ends_a_live_task(real):
    """A TTL that fires deletes whatever the id names, leased or not."""

    def expire(core, shard, group, task_id, now_ms, *, is_dead):
        lease = core.leases.get(task_id)
        if lease is not None:
            task_end.finish(core, group, lease, 3, error=b"ttl")
        else:
            real(core, shard, group, task_id, now_ms, is_dead=is_dead)

    return expire


def window_is_forgotten(real):
    """A dedup key is free as soon as its task has ended."""

    def holder(core, shard, item, now_ms):
        held_by = real(core, shard, item, now_ms)
        return held_by if held_by and enqueue.is_alive(core, shard, held_by) else None

    return holder


def redrive_keeps_the_attempts(real):
    """A dead letter comes back with none left."""

    def row(flags, priority, attempts, *rest):
        return real(flags, priority, 1, *rest)

    return row


def pause_of_all_tenants_is_ignored(real):
    """It pauses the default tenant."""
    return lambda core, queue, tenant, **o: real(core, queue, tenant or b"", **o)


def reap_forgets_the_last_attempt(real):
    """An expired lease always goes back."""

    def reap(core, group, lease, reason):
        task_end.put_back(core, group, lease, delay_ms=0, reason=reason, is_counted=True)

    return reap


def turns_follow_priority(real):
    """The claims of all tenants serve the first tenant until it has nothing left."""
    return lambda core, lane, limit, out, room: real(core, lane, len(out) + 2, out, room)


def starvation_counts_claims(real):
    """The overdue get one task of every eighth claim, however many it grants."""

    def pick_fair(core, lane, limit, out, room, boost_after_s):
        claims = lane.claims
        real(core, lane, 1, out, room, boost_after_s)
        lane.claims = claims + 1
        claim_order._pick_lane(core, lane, limit, out, room)

    return pick_fair


BUGS = {
    nack_counts_nothing: (lease_operations, "put_back"),
    release_goes_to_the_tail: (lease_operations, "put_back"),
    retention_ends_a_live_task: (expiry_sweep, "_expire_task"),
    window_is_forgotten: (enqueue, "holder"),
    redrive_keeps_the_attempts: (admin, "IndexRow"),
    pause_of_all_tenants_is_ignored: (EngineState, "set_pause"),
    reap_forgets_the_last_attempt: (reaper, "reap"),
    turns_follow_priority: (claim_order, "_pick_lane"),
    starvation_counts_claims: (claim_order, "_pick_fair"),
}


@contextmanager
def planted(bug):
    """The package with one bug in it."""
    module, name = BUGS[bug]
    with mock.patch.object(module, name, bug(getattr(module, name))):
        yield
