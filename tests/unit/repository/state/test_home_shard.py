"""Where unkeyed tasks go: one shard a turn, all of them alike in the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import pytest

import lodeq
from lodeq.coalescer.shard_status import FAILED, SERVING, STALLED
from lodeq.engine.runtime.ids import SLOTS, IdSource, SeededRng, first_slot_of, shard_of_slot
from lodeq.errors import StoragePoisonedError
from lodeq.repository.api.open import open_in_memory
from lodeq.repository.state.engine_state import EngineState
from lodeq.repository.state.home_shard import BEHIND_MAX, HomeShard
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
MILLION = 1_000_000
QUOTA = 1024  # of eight shards


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def state() -> AsyncIterator[EngineState]:
    async with open_in_memory(
        clock=ManualClock(), rng=SeededRng(7), shards=8, reaper=False
    ) as engine:
        yield engine._state


def enqueue(home: HomeShard, tasks: int) -> int:
    """A turn of the loop with that many tasks; the shard they go to."""
    home.is_chosen = False
    shard = home.current()
    assert shard is not None
    home.stayed += tasks
    return shard.index


def sizes(most: int, total: int = MILLION) -> Iterator[int]:
    """Turns of very unequal size: most of them small, some large."""
    dice = random.Random(5)
    while total > 0:
        size = min(total, most, int(dice.paretovariate(0.7)))
        total -= size
        yield size


def claim(state: EngineState, index: int, tasks: int) -> None:
    """Leases of tasks on that shard, as far as the home can see them."""
    state.shards[index].next_epoch += tasks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "is_claimed"), [(1, False), (64, False), (64, True), (1024, True)]
)
async def test_no_shard_has_more_than_a_twentieth_above_the_mean(
    state: EngineState, most: int, is_claimed: bool
) -> None:
    took: Counter[int] = Counter()
    total = MILLION if most > 1 else MILLION // 10  # a turn each
    for size in sizes(most, total):
        index = enqueue(state.home, size)
        took[index] += size
        if is_claimed:
            claim(state, index, size)
    assert len(took) == 8
    assert max(took.values()) <= 1.05 * total / 8


async def test_a_backlog_that_is_claimed_elsewhere_tips_nothing(state: EngineState) -> None:
    """The home follows claims, but claims that stay on one shard do not keep it there."""
    took: Counter[int] = Counter()
    for size in sizes(256):
        took[enqueue(state.home, size)] += size
        claim(state, 3, size)
    assert max(took.values()) <= 1.05 * MILLION / 8


async def test_a_stalled_shard_is_passed_over_and_catches_up_bounded(state: EngineState) -> None:
    took: Counter[int] = Counter()
    done, back = 0, Counter[int]()
    coalescer = state.shards[5].coalescer
    for size in sizes(1024):
        if done < MILLION // 4 and coalescer.status == SERVING:
            coalescer.enter(STALLED)
        elif done >= MILLION // 4 and coalescer.status == STALLED:
            assert took[5] == 0
            coalescer.enter(SERVING)
        index = enqueue(state.home, size)
        took[index] += size
        done += size
        claim(state, index, size)
        if MILLION // 4 <= done < MILLION // 4 + 40 * QUOTA:
            back[index] += size
    assert back[5] <= 0.6 * back.total()  # it gets every second quota, not all the work
    assert max(took.values()) <= 1.05 * MILLION / 8


async def test_what_a_shard_has_missed_is_forgiven_beyond_a_bound(state: EngineState) -> None:
    coalescer = state.shards[5].coalescer
    coalescer.enter(STALLED)
    for _ in range(8 * BEHIND_MAX // 512):
        enqueue(state.home, 512)
    coalescer.enter(SERVING)
    before: Counter[int] = Counter()
    for _ in range(8 * BEHIND_MAX // 512):
        before[enqueue(state.home, 512)] += 512
    mean = before.total() / 8
    assert before[5] - mean <= BEHIND_MAX
    after: Counter[int] = Counter()
    for _ in range(8 * 64):
        after[enqueue(state.home, 512)] += 512
    assert max(after.values()) - min(after.values()) <= 512  # it is no longer preferred


async def test_a_turn_has_one_shard_and_the_next_another(state: EngineState) -> None:
    home, seen = state.home, []
    for _ in range(64):
        seen.append(enqueue(home, 1))
        assert {home.current().index for _ in range(20) if home.current()} == {seen[-1]}
    assert all(one != following for one, following in pairwise(seen))
    assert set(Counter(seen).values()) == {8}


async def test_the_home_stays_where_tasks_are_claimed_for_a_quota(state: EngineState) -> None:
    first = enqueue(state.home, 64)
    turns = 1
    claim(state, first, 64)
    while enqueue(state.home, 64) == first:
        claim(state, first, 64)
        turns += 1
    assert turns == QUOTA // 64


async def test_the_home_follows_the_claims(state: EngineState) -> None:
    first = enqueue(state.home, 10)
    other = (first + 3) % 8
    claim(state, other, 10)
    assert enqueue(state.home, 10) == other


async def test_a_shard_without_capacity_is_left_within_the_turn(state: EngineState) -> None:
    home = state.home
    first = enqueue(home, 1)
    state.shards[first].coalescer.waiting = 1024
    following = home.current()
    assert following is not None
    assert following.index != first
    for shard in state.shards:
        shard.coalescer.waiting = 1024
    lines = Counter[int]()
    for _ in range(16 * QUOTA):  # nobody has capacity: the lines are of one length
        shard = home.current()
        assert shard is not None
        home.stayed += 1
        lines[shard.index] += 1
    assert max(lines.values()) - min(lines.values()) <= QUOTA
    for shard in state.shards:
        shard.coalescer.waiting = 0


async def test_only_a_store_without_a_shard_that_takes_writes_refuses(state: EngineState) -> None:
    for shard in state.shards[1:]:
        shard.coalescer.enter(STALLED)
    assert enqueue(state.home, 1) == 0
    state.shards[0].coalescer.enter(STALLED)
    assert enqueue(state.home, 1) in range(8)
    error = StoragePoisonedError("gone")
    for shard in state.shards:
        shard.coalescer.enter(FAILED, error)
    state.home.is_chosen = False
    assert state.home.current() is None
    with pytest.raises(StoragePoisonedError):
        state.healthy_slot()
    with pytest.raises(StoragePoisonedError):
        state.healthy_id(1)


async def test_a_store_of_one_shard_that_takes_nothing_refuses_and_draws_no_id() -> None:
    async with open_in_memory(clock=ManualClock(), rng=SeededRng(7), reaper=False) as engine:
        state = engine._state
        state.healthy_id(1)
        left = list(state.ids._tails)
        state.shards[0].coalescer.enter(FAILED, StoragePoisonedError("gone"))
        with pytest.raises(StoragePoisonedError):
            state.healthy_slot()
        with pytest.raises(StoragePoisonedError):
            state.healthy_id(1)
        assert state.ids._tails == left


# -- slots -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 3, 7, 8, 100])
@pytest.mark.parametrize("is_many", [False, True])
def test_slots_are_uniform_within_a_shard(shards: int, is_many: bool) -> None:
    ids = IdSource(SeededRng(11))
    for shard in {0, shards // 2, shards - 1}:
        first = first_slot_of(shard, shards)
        count = first_slot_of(shard + 1, shards) - first
        drawn = 60 * count
        if is_many:
            seen = Counter(ids.slot_within(first, count) for _ in range(drawn))
        else:
            seen = Counter(ids.new_within(5, first, count).slot for _ in range(drawn))
        assert {shard_of_slot(slot, shards) for slot in seen} == {shard}
        chi_square = sum((seen[first + n] - 60) ** 2 / 60 for n in range(count))
        assert abs(chi_square - (count - 1)) < 4 * (2 * (count - 1)) ** 0.5  # four sigma


def test_of_all_slots_the_same_id_comes_out() -> None:
    """So a store with one shard and one with several draw alike."""
    one, other = IdSource(SeededRng(3)), IdSource(SeededRng(3))
    for ms in range(2000):
        assert one.new_unkeyed(ms) == other.new_within(ms, 0, SLOTS)
        assert one.slot() == other.slot_within(0, SLOTS)


# -- the whole -------------------------------------------------------------------------


async def test_ids_of_one_turn_lie_on_one_shard_whatever_call_they_come_from() -> None:
    async with open_in_memory(clock=ManualClock(), shards=8, reaper=False) as engine:
        queue = engine.queue("mail")
        seen = Counter[int]()
        for _ in range(40):
            one, two, many, late = await asyncio.gather(
                queue.enqueue(b"a"),
                queue.enqueue(b"b", priority=9),
                queue.enqueue_many([lodeq.NewTask(b"c")] * 3),
                queue.enqueue(b"d", delay=60.0),
            )
            ids = [one.id, two.id, late.id, *(receipt.id for receipt in many)]
            shards = {shard_of_slot(task_id.slot, 8) for task_id in ids}
            assert len(shards) == 1
            seen += Counter(shards)
        assert max(seen.values()) == min(seen.values()) == 5
