"""What may be found after a power cut, told from the marks alone."""

from __future__ import annotations

import pytest
from power.knowledge import Knowledge, LostError

ID, OTHER = "0" * 32, "1" * 32


def found(*tasks: list, results: tuple = (), lost: tuple = ()) -> dict:
    return {
        "tasks": list(tasks),
        "results": list(results),
        "rows": {},
        "counted": {},
        "findings": [],
        "anomalies": [],
        "lost": list(lost),
    }


def ready(number: int, task_id: str = ID, attempts: int = 0) -> list:
    return [task_id, number, [["ready", attempts, 0]]]


def enqueued(knowledge: Knowledge, **params: object) -> Knowledge:
    knowledge.feed(["i", 1, "enqueue", {"tasks": [[1, 0, 5]], **params}])
    knowledge.feed(["a", 1, [ID]])
    return knowledge


def claimed(knowledge: Knowledge, attempt: int = 1) -> Knowledge:
    knowledge.feed(["i", 2, "claim", {"queues": [0], "exported": False}])
    knowledge.feed(["a", 2, [[1, ID, attempt, 7]]])
    return knowledge


def test_in_fsync_mode_what_was_acknowledged_must_be_there() -> None:
    knowledge = enqueued(Knowledge(is_fsync=True))
    knowledge.check(found(ready(1)))
    with pytest.raises(LostError, match="absent"):
        knowledge.check(found())


def test_in_nosync_mode_only_what_is_durable_must() -> None:
    enqueued(Knowledge(is_fsync=False)).check(found())
    with pytest.raises(LostError, match="absent"):
        enqueued(Knowledge(is_fsync=False), durable=True).check(found())
    with pytest.raises(LostError, match="absent"):
        enqueued(Knowledge(is_fsync=False, is_power=False)).check(found())


def test_a_payload_is_lost_only_where_its_task_might_have_been() -> None:
    enqueued(Knowledge(is_fsync=False)).check(found(ready(1), lost=(1,)))
    for knowledge, durable in (
        (Knowledge(is_fsync=True), None),
        (Knowledge(is_fsync=False), True),
        (Knowledge(is_fsync=False, is_power=False), None),
    ):
        with pytest.raises(LostError, match=r"task 1 .* has lost its payload"):
            enqueued(knowledge, durable=durable).check(found(ready(1), lost=(1,)))
    unanswered = Knowledge(is_fsync=True)
    unanswered.feed(["i", 1, "enqueue", {"tasks": [[1, 0, 5]]}])
    unanswered.check(found(ready(1)))
    with pytest.raises(LostError, match=r"task 1 .* has lost its payload"):
        unanswered.check(found(ready(1), lost=(1,)))
    with pytest.raises(LostError, match="number 2 has no payload"):
        unanswered.check(found(lost=(2,)))


def test_a_payload_that_was_lost_once_stays_lost() -> None:
    knowledge = enqueued(Knowledge(is_fsync=False))
    knowledge.feed(["died"])
    knowledge.feed(["found", found(ready(1), lost=(1,))])
    knowledge.check(found(ready(1), lost=(1,)))
    whole = enqueued(Knowledge(is_fsync=False))
    whole.feed(["died"])
    whole.feed(["found", found(ready(1))])
    with pytest.raises(LostError, match=r"task 1 .* has lost its payload"):
        whole.check(found(ready(1), lost=(1,)))


def test_an_fsync_makes_durable_what_was_acknowledged_before_its_call() -> None:
    knowledge = Knowledge(is_fsync=False)
    knowledge.feed(["i", 9, "fsync", {}])
    enqueued(knowledge).feed(["a", 9, None])
    knowledge.check(found())
    knowledge.feed(["i", 10, "fsync", {}])
    knowledge.feed(["a", 10, None])
    with pytest.raises(LostError, match="absent"):
        knowledge.check(found())


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    knowledge = Knowledge(is_fsync=True)
    knowledge.feed(["i", 1, "enqueue", {"tasks": [[1, 0, 5]]}])
    knowledge.check(found())
    knowledge.check(found(ready(1)))


def test_a_batch_is_whole_or_absent() -> None:
    knowledge = Knowledge(is_fsync=True)
    knowledge.feed(["i", 1, "enqueue", {"tasks": [[1, 0, 5], [2, 0, 5]]}])
    knowledge.check(found())
    knowledge.check(found(ready(1), ready(2, OTHER)))
    with pytest.raises(LostError, match="torn"):
        knowledge.check(found(ready(1)))


def test_a_follow_up_is_there_if_and_only_if_its_task_is_completed() -> None:
    knowledge = claimed(enqueued(Knowledge(is_fsync=True)))
    knowledge.feed(["i", 3, "complete", {"numbers": [1], "tasks": [[2, 0, 5]]}])
    knowledge.check(found(ready(1, attempts=1)))
    knowledge.check(found(ready(2, OTHER), results=([ID, "completed", 1],)))
    with pytest.raises(LostError, match="torn"):
        knowledge.check(found(ready(1, attempts=1), ready(2, OTHER)))
    with pytest.raises(LostError, match="torn"):
        knowledge.check(found(results=([ID, "completed", 1],)))


def test_a_lease_of_the_dead_process_goes_back_with_its_attempt() -> None:
    knowledge = claimed(enqueued(Knowledge(is_fsync=True)))
    knowledge.check(found(ready(1, attempts=1)))
    with pytest.raises(LostError, match="not one of"):
        knowledge.check(found(ready(1, attempts=0)))
    with pytest.raises(LostError, match="not one of"):
        knowledge.check(found(ready(1, attempts=2)))


def test_a_delivery_may_be_told_before_the_enqueue_it_rests_on() -> None:
    knowledge = Knowledge(is_fsync=False)
    knowledge.feed(["i", 1, "enqueue", {"tasks": [[1, 0, 5]], "durable": True}])
    claimed(knowledge).feed(["a", 1, [ID]])
    knowledge.check(found(ready(1)))
    knowledge.check(found(ready(1, attempts=1)))
    with pytest.raises(LostError, match="absent"):
        knowledge.check(found())


@pytest.mark.parametrize(
    "wrong",
    [
        found([ID, 8, [["ready", 0, 0]]]),  # phantom
        found([ID, 1, []]),  # no place
        found([ID, 1, [["ready", 0, 0], ["dead", 0, 0]]]),
        found(ready(1), ready(1)),
        found(ready(1), results=([ID, "completed", 1],)),
        found(ready(1), results=([OTHER, "completed", 1],)),
        {**found(ready(1)), "findings": ["a"]},
        {**found(ready(1)), "counted": {"q": {"ready": 1}}},
    ],
)
def test_nothing_else_is_believed(wrong: dict) -> None:
    with pytest.raises(LostError):
        enqueued(Knowledge(is_fsync=True)).check(wrong)


def test_what_an_open_has_shown_stays() -> None:
    knowledge = enqueued(Knowledge(is_fsync=False))
    knowledge.died()
    knowledge.feed(["found", found(ready(1))])
    with pytest.raises(LostError, match="absent"):
        knowledge.check(found())


def test_a_delivery_of_what_was_never_enqueued_or_is_held() -> None:
    with pytest.raises(LostError, match="never enqueued"):
        claimed(Knowledge(is_fsync=True))
    with pytest.raises(LostError, match="as attempt 2"):
        claimed(enqueued(Knowledge(is_fsync=True)), attempt=2)
