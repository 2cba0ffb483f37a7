"""Bugs of limits of keys, planted by replacing one name: the machine must find each."""

from contextlib import contextmanager
from unittest import mock

from lodeq.repository.state.limits.key_limit import KeyLimit
from lodeq.repository.state.limits.key_limits import KeyLimits
from lodeq.repository.tasks import key_waits

__all__ = ["BUGS", "planted"]


def the_end_of_a_lease_lets_nobody_go(real):
    """It makes room, and nobody is told."""

    def ended(self, lease):
        limit = lease.shard_queue.tenant_queue.queue_state.key_limit
        if limit is not None:
            limit.leave(lease.task_id)

    return ended


def one_lease_too_many(real):
    """A key is full with one lease more than its limit."""
    return lambda self, one: real(self, one) + 1


def tenants_share_a_key(real):
    """It is counted over all of them."""
    return lambda self, one: self.n - sum(n for (_, key), n in self.live.items() if key == one[1])


def another_limit_is_not_looked_at(real):
    """Tasks that were set aside under the limit before wait for an end of a lease."""
    return lambda self, queue: None


def what_is_gone_makes_no_room(real):
    """A task that was let go, and was cancelled before a claim met it, keeps its room."""
    return lambda self, task_id: self.woken.pop(task_id, None)


def what_is_set_aside_has_no_priority(real):
    """The first in line of a key goes first, whatever its priority."""
    return lambda key, priority: real(key, 5)


def what_is_set_aside_goes_to_the_tail(real):
    """It loses its place."""

    def later(prefix, due_ms, seq, task_id):
        return real(prefix, due_ms, seq + 3_600_000_000, task_id)

    return later


def what_is_set_aside_has_run(real):
    """It counts as an attempt."""

    def row(flags, priority, attempts, *rest):
        return real(flags, priority, attempts + 1, *rest)

    return row


def nobody_looks_after_an_open(real):
    """Tasks that were set aside before it wait for an end of a lease."""
    return lambda self, shard: None


def a_lease_of_the_process_before_is_not_counted(real):
    """One that goes on after a restart leaves its room to another."""
    return lambda self, lease: None


AT_AN_OPEN = {nobody_looks_after_an_open, a_lease_of_the_process_before_is_not_counted}
BUGS = {
    the_end_of_a_lease_lets_nobody_go: (KeyLimits, "ended"),
    one_lease_too_many: (KeyLimit, "free"),
    tenants_share_a_key: (KeyLimit, "free"),
    another_limit_is_not_looked_at: (KeyLimits, "_sweep"),
    what_is_gone_makes_no_room: (KeyLimits, "gone"),
    what_is_set_aside_has_no_priority: (key_waits, "wait_due"),
    what_is_set_aside_goes_to_the_tail: (key_waits, "delayed_key"),
    what_is_set_aside_has_run: (key_waits, "IndexRow"),
    nobody_looks_after_an_open: (KeyLimits, "sweep_shard"),
    a_lease_of_the_process_before_is_not_counted: (KeyLimits, "restored"),
}


@contextmanager
def planted(bug):
    """The package with one bug in it."""
    module, name = BUGS[bug]
    with mock.patch.object(module, name, bug(getattr(module, name))):
        yield
