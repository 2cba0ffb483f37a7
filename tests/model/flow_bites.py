"""Bugs that workflows could have, planted by replacing one name: the machine must find each."""

from contextlib import contextmanager
from unittest import mock

from lodeq.engine.records.result import Status
from lodeq.engine.records.workflow import JoinRecord
from lodeq.repository.workflows import acts, build, joins
from lodeq.repository.workflows.joins import Joins

__all__ = ["BUGS", "planted"]


def every_end_counts(real):
    """A member that ends again counts again."""
    return lambda raw: real(raw)._replace(status=0)


def fires_before_the_seal(real):
    """Whatever has no part under way is complete."""
    return property(lambda self: self.ended >= self.parts)


def failures_are_ignored(real):
    """The callback runs, whatever became of the members."""
    return lambda self, group, shard, join, record, now_us: real(
        self, group, shard, join, record._replace(on_failure=1), now_us
    )


def death_is_no_end(real):
    """A dead member is under way for ever."""

    def ended(self, group, shard, task_id, status, now_us):
        if status != Status.DEAD:
            real(self, group, shard, task_id, status, now_us)

    return ended


def expiry_is_no_end(real):
    """A member whose TTL has passed is under way for ever."""

    def ended(self, group, shard, task_id, status, now_us):
        if status != Status.EXPIRED:
            real(self, group, shard, task_id, status, now_us)

    return ended


def redrive_keeps_the_generation(real):
    """The join of a redriven workflow is the same as before."""
    return lambda group, workflow, record: real(group, workflow, record._replace(generation=0))


def cancel_leaves_what_runs(real):
    """A cancel of the whole ends only what nobody works on."""

    def cancel_one(state, shard, group, task_id):
        if task_id not in state.leases:
            real(state, shard, group, task_id)

    return cancel_one


def nothing_is_pinned(real):
    """Results of members go with their retention."""
    return lambda self, shard, task_id: False


def nobody_is_attached(real):
    """Who is waited for does not hear of it."""
    return lambda self, group, shard, source, edge: None


def a_redriven_member_does_not_count(real):
    """The join does not wait for those that a redrive runs again."""
    return lambda *args, **options: None


def a_redrive_by_hand_is_not_heard_of(real):
    """What waits for a redrive goes on waiting after it."""
    return lambda self, group, shard, task_id: None


def who_runs_again_adds_again(real):
    """Members are found by what is asked for last, not by their number."""
    return lambda join, number: real(join, number ^ 1)


BUGS = {
    every_end_counts: (joins, "decode_part"),
    fires_before_the_seal: (JoinRecord, "is_complete"),
    failures_are_ignored: (Joins, "settle"),
    death_is_no_end: (Joins, "ended"),
    expiry_is_no_end: (Joins, "ended"),
    redrive_keeps_the_generation: (acts, "put_join"),
    cancel_leaves_what_runs: (acts, "_cancel_one"),
    nothing_is_pinned: (Joins, "pins"),
    nobody_is_attached: (Joins, "attach"),
    a_redriven_member_does_not_count: (acts, "_take_again"),
    a_redrive_by_hand_is_not_heard_of: (Joins, "redriven"),
    who_runs_again_adds_again: (build, "part_key"),
}


@contextmanager
def planted(bug):
    """The package with one bug in it."""
    module, name = BUGS[bug]
    with mock.patch.object(module, name, bug(getattr(module, name))):
        yield
