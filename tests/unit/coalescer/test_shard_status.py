"""The status of a shard: which change is allowed, and which error a refused submission gets."""

import itertools

import pytest
from support_loop import FaultyStore, ManualSpawner, Seq, on_loop

from lodeq.coalescer.commit_loop import Coalescer
from lodeq.coalescer.fsync import Syncer
from lodeq.coalescer.shard_status import (
    CLOSED,
    ELECTED,
    FAILED,
    FOLLOWING,
    NAMES,
    READ_ONLY,
    SERVING,
    STALLED,
    TRANSITIONS,
    ShardStatus,
    check_transition,
    refusal,
)
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    InvariantError,
    LodeqError,
    NotLeaderError,
    StoragePoisonedError,
    StoreStalledError,
)

ALL = range(len(NAMES))
ALLOWED = {
    "serving": {"stalled", "following", "read_only", "failed", "closed"},
    "stalled": {"serving", "following", "failed", "closed"},
    "elected": {"serving", "stalled", "following", "failed", "closed"},
    "following": {"elected", "failed", "closed"},
    "read_only": set(),
    "failed": set(),
    "closed": set(),
}
ERRORS: dict[ShardStatus, LodeqError | None] = {
    SERVING: None,
    STALLED: None,
    ELECTED: NotLeaderError("b does", leader="b"),
    FOLLOWING: NotLeaderError("b does", leader="b"),
    READ_ONLY: NotLeaderError("only read"),
    FAILED: CommitUnknownError("shard 0: I/O error"),
    CLOSED: ClosedError("the engine is closed"),
}


def make() -> Coalescer:
    store, spawner = FaultyStore(), ManualSpawner()
    syncer = Syncer(store, spawner, first_number=1, interval_s=1.0, write_watermark=ignore)
    return Coalescer(
        store,
        spawner,
        shard=0,
        first_number=1,
        seq_source=Seq(7),
        syncer=syncer,
        is_fsync=False,
    )


def ignore(number: int) -> None:
    """Write no watermark."""


def in_status(status: ShardStatus) -> Coalescer:
    """A commit loop that has come there by allowed steps."""
    ways = {SERVING: (), ELECTED: (FOLLOWING, ELECTED)}
    coalescer = make()
    for step in ways.get(status, (status,)):
        coalescer.enter(step, ERRORS[step])
    return coalescer


def test_every_status_has_a_name_and_a_row() -> None:
    numbers = [SERVING, STALLED, ELECTED, FOLLOWING, READ_ONLY, FAILED, CLOSED]
    assert numbers == list(ALL)
    assert [NAMES[n] for n in numbers] == [
        "serving",
        "stalled",
        "elected",
        "following",
        "read_only",
        "failed",
        "closed",
    ]
    assert list(TRANSITIONS) == numbers


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ALL, ALL)))
@on_loop
async def test_a_change_is_allowed_or_refused(old: ShardStatus, new: ShardStatus) -> None:
    coalescer = in_status(old)
    error = coalescer.status_error
    if NAMES[new] in ALLOWED[NAMES[old]]:
        check_transition(3, old, new)
        coalescer.enter(new, ERRORS[new])
        assert (coalescer.status, coalescer.status_error) == (new, ERRORS[new])
        return
    text = f"shard 3: {NAMES[old]} cannot become {NAMES[new]}"
    with pytest.raises(InvariantError, match=text):
        check_transition(3, old, new)
    with pytest.raises(InvariantError, match=text.replace("3", "0")):
        coalescer.enter(new, ERRORS[new])
    assert (coalescer.status, coalescer.status_error) == (old, error)


@pytest.mark.parametrize("status", ALL)
@on_loop
async def test_each_status_takes_writes_or_says_why_not(
    status: ShardStatus,
) -> None:
    coalescer = in_status(status)
    assert coalescer.takes_writes == (status in {SERVING, STALLED})
    assert coalescer.is_following == (status in {ELECTED, FOLLOWING, READ_ONLY})
    assert coalescer.failure is (ERRORS[status] if status in {FAILED, CLOSED} else None)
    if coalescer.takes_writes:
        coalescer.begin()
        return
    with pytest.raises(LodeqError) as caught:
        coalescer.begin()
    assert type(caught.value) is type(coalescer.refusal())
    assert str(caught.value) == str(coalescer.refusal())


def test_a_refusal_is_a_new_error_of_the_class_that_says_what_to_do() -> None:
    for status, kind in (
        (FOLLOWING, NotLeaderError),
        (READ_ONLY, NotLeaderError),
        (FAILED, StoragePoisonedError),
        (CLOSED, ClosedError),
    ):
        error = ERRORS[status]
        assert error is not None
        made = refusal(0, error)
        assert type(made) is kind
        assert made is not error
    led = refusal(0, NotLeaderError("b does", leader="b"))
    assert isinstance(led, NotLeaderError)
    assert led.leader == "b"
    failed = CommitUnknownError("I/O error")
    assert refusal(0, failed).__cause__ is failed


@on_loop
async def test_a_store_that_refuses_writes_stalls_a_serving_shard_alone() -> None:
    for status in (SERVING, FOLLOWING):
        coalescer = in_status(status)
        coalescer._stall(StoreStalledError("stall"))
        assert coalescer.status == (STALLED if status == SERVING else status)
        assert isinstance(coalescer.refused_write, StoreStalledError)
