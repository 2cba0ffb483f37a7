"""The storm's judge finds what it looks for."""

from types import SimpleNamespace

import pytest
from cluster.storm import Judge, WrongError
from cluster.told import Told

import lodeq
from lodeq.testing import BrokenError
from lodeq.testing.history.capture.contents import HEADER


def lease(task_id, payload=b"x", epoch=1):
    return SimpleNamespace(task_id=task_id, payload=payload, epoch=epoch)


def receipt(task_id):
    return SimpleNamespace(id=task_id)


def test_a_task_that_is_claimed_after_its_completion_is_found():
    judge = Judge()
    early = judge.moment
    judge.claimed(lease(1), early)
    judge.succeeded(lease(1), "complete", was_newest=True)
    judge.claimed(lease(1), early)  # its answer took long
    with pytest.raises(WrongError, match="rule 3"):
        judge.claimed(lease(1, epoch=2), judge.moment)


def test_a_call_with_an_earlier_lease_that_succeeds_is_found():
    judge = Judge()
    first = judge.claimed(lease(1), 0)
    judge.claimed(lease(1, epoch=2), 0)
    with pytest.raises(WrongError, match="rule 2"):
        judge.succeeded(lease(1), "heartbeat", was_newest=judge.latest[1] == first)


def test_a_key_with_two_tasks_is_found():
    judge = Judge()
    judge.enqueued(receipt(1), b"x", "k")
    judge.enqueued(receipt(1), b"x", "k")
    with pytest.raises(WrongError, match="rule 4"):
        judge.enqueued(receipt(2), b"y", "k")


def test_a_refused_task_that_is_there_is_found_whatever_comes_first():
    judge = Judge()
    judge.not_enqueued(b"x")
    with pytest.raises(WrongError, match="rule 5"):
        judge.claimed(lease(1, b"x"), 0)
    judge.claimed(lease(2, b"y"), 0)
    with pytest.raises(WrongError, match="rule 5"):
        judge.not_enqueued(b"y")


class Answers:
    """A queue, or a lease, that says what it is told to."""

    def __init__(self, *answers, **fields):
        self.answers = list(answers)
        self.__dict__.update(fields)

    async def _answer(self, *_, **__):
        return self.answers.pop(0)

    enqueue = claim = heartbeat = complete = _answer


def granted(attempt, lease_s):
    return Answers(
        None,
        task_id=ID,
        headers={HEADER: 1},
        attempt=attempt,
        epoch=attempt,
        granted=SimpleNamespace(lease_s=lease_s),
    )


ID = lodeq.TaskId(bytes(15) + b"\1")


async def claimed_twice(told, lease_s):
    """Two leases of one task, one after the other."""
    first, second = granted(1, lease_s), granted(2, lease_s)
    queue = Answers(SimpleNamespace(id=ID, duplicate=False), [first], [second])
    await told.enqueue(queue, b"x", None)
    for _ in range(2):
        await told.claim(queue, limit=1, lease_s=lease_s, wait_s=0)
    return first, second


@pytest.mark.anyio
async def test_the_checker_finds_a_heartbeat_with_an_earlier_lease():
    told = Told("jobs", 1)
    first, second = await claimed_twice(told, 0)
    await told.call(second, "heartbeat")
    with pytest.raises(BrokenError, match=r"rule 5.*heartbeat"):
        await told.call(first, "heartbeat")


@pytest.mark.anyio
async def test_the_checker_finds_two_leases_at_once():
    with pytest.raises(BrokenError, match="rule 5"):
        await claimed_twice(Told("jobs", 1), 60)


@pytest.mark.anyio
async def test_the_checker_keeps_a_broken_rule_for_later():
    told = Told("jobs", 1, may_break=True)
    await claimed_twice(told, 60)
    assert told.broken.rule == 5
