"""The soak itself, tested: it sees what it is there to see, and a few seconds of it run in CI."""

import asyncio
import random

import pytest
from soak import figures
from soak.book import Book, BrokenError
from soak.load import Load, number_of
from soak.one_life import LEFT_MAX, one_life
from soak.steady import Steady
from soak.supervise import soak

import lodeq
from lodeq.testing import ManualClock

MIB = 1 << 20


# -- the book --------------------------------------------------------------------------------------


@pytest.fixture
def book():
    """Task 1 is there, 2 may be, 3 is being completed, 4 is over."""
    one = Book()
    for number in (1, 3, 4):
        one.take("invoked", number)
        one.take("enqueued", number)
    one.take("invoked", 2)
    for number in (3, 4):
        one.take("claimed", number)
        one.take("ending", number)
    one.take("completed", 4)
    return one


@pytest.mark.parametrize("found", [[1], [1, 2], [1, 3], [1, 2, 3]])
def test_what_is_open_may_go_either_way_once(book, found):
    book.look(found)
    book.look(found)
    with pytest.raises(BrokenError, match="lost"):
        book.look(found[1:])


@pytest.mark.parametrize(
    ("found", "why"),
    [([], "lost"), ([2, 3], "lost"), ([1, 4], "over"), ([1, 5], "over")],
)
def test_what_is_acknowledged_holds(book, found, why):
    with pytest.raises(BrokenError, match=why):
        book.look(found)


@pytest.mark.parametrize("number", [4, 5])
def test_nothing_is_delivered_after_its_end_or_out_of_nowhere(book, number):
    with pytest.raises(BrokenError, match="delivered"):
        book.take("claimed", number)


def test_nothing_is_completed_twice(book):
    with pytest.raises(BrokenError, match="twice"):
        book.take("completed", 4)


def test_a_refused_complete_leaves_it_there(book):
    book.take("kept", 3)
    with pytest.raises(BrokenError, match="lost"):
        book.look([1])


def test_a_duplicate_is_never_there(book):
    book.take("refused", 2)
    with pytest.raises(BrokenError, match="over"):
        book.look([1, 2])


def test_a_worker_may_be_quicker_than_the_producer(book):
    for what in ("claimed", "ending", "completed", "enqueued"):
        book.take(what, 2)
    book.look([1])


def test_numbers_are_read_from_payloads():
    assert number_of(b"17:abc") == 17
    assert number_of(b"ttl:") is None


# -- the verdict -----------------------------------------------------------------------------------


def samples(hours=2.0, **changes):
    """A sound run; a change is a function of the share of it that has passed."""
    steady = {
        "rss": 200 * MIB,
        "held": 200 * MIB,
        "blocks": 100_000,
        "fds": 40,
        "threads": 4,
        "disk": 60 * MIB,
        "live": 20 * MIB,
        "ops": 900,
        "p50_ms": 0.5,
        "p99_ms": 4.0,
        "lag_s": 0.0,
        "poisoned": 0,
    }
    count = int(hours * 360)
    return [
        {**steady, "at": 10.0 * (n + 1), **{name: at(n / count) for name, at in changes.items()}}
        for n in range(count)
    ]


def test_a_sound_run():
    draw = random.Random(1)  # the noise of allocators: by life, not by sample
    lives = [draw.choice((0, 2)) + draw.random() for _ in range(121)]
    noise = samples(held=lambda x: (200 + lives[int(120 * x)]) * MIB)
    told = figures.verdict(noise, warm_s=120)
    assert (told.failures, told.unjudged) == ([], [])
    assert abs(told.figures["held_mib_h"]) < 0.5


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"held": lambda x: (200 + 4 * x) * MIB}, "memory grows by 2"),
        ({"blocks": lambda x: 100_000 + 20_000 * x}, "blocks"),
        ({"fds": lambda x: 40 + int(60 * x)}, "file descriptors"),
        ({"p99_ms": lambda x: 4 + 20 * x}, "p99"),
        ({"disk": lambda x: (60 + 300 * x) * MIB}, "on disk"),
        ({"poisoned": lambda x: int(x > 0.5)}, "poisoned"),
        ({"ops": lambda x: 0 if 0.5 < x < 0.6 else 900}, "nothing was done"),
    ],
    ids=["memory", "objects", "files", "latency", "disk", "poison", "standstill"],
)
def test_what_a_soak_is_for_is_seen(changes, why):
    (failure,) = figures.verdict(samples(**changes)).failures
    assert why in failure


def test_growth_that_ends_is_no_leak():
    assert not figures.verdict(samples(held=lambda x: (200 + 80 * min(x, 0.4)) * MIB)).failures


def test_a_slope_over_minutes_is_not_judged():
    told = figures.verdict(samples(hours=0.5, held=lambda x: (200 + 4 * x) * MIB))
    assert told.failures == []
    assert "memory" in told.unjudged[0]


def test_too_few_samples_are_no_soak():
    assert figures.verdict(samples(hours=0.005)).failures


def test_warming_up_is_the_same_work_faster():
    config = {
        "path": "nowhere",
        "seconds": 100.0,
        "pace": 40.0,
        "burst_s": 20.0,
        "verify_s": 60.0,
        "copy_s": 300.0,
        "reopen_s": 600.0,
    }
    assert Steady(config).pace() == config
    warm = Steady({**config, "warm_s": 600.0}).pace()
    assert warm["pace"] > config["pace"]
    assert all(warm[name] < config[name] for name in ("burst_s", "verify_s", "copy_s", "reopen_s"))


async def numbers_while_time_passes():
    clock = ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        load = Load(engine, lambda what, number: None, seed=1, first=1, pace=1.0)
        (queue, _) = load.queues
        await queue.enqueue(b"1:", delay=0.5)
        await queue.enqueue(b"2:")
        await queue.claim(lease=0.2)

        class Slow:
            async def list(self, state, **more):
                found = await queue.list(state, **more)
                clock.advance(1.0)
                return found

        load.queues = [Slow()]
        return await load.numbers()


def test_what_moves_while_the_book_is_compared_is_seen():
    assert set(asyncio.run(numbers_while_time_passes())) == {1, 2}


# -- a few seconds of it ---------------------------------------------------------------------------


@pytest.mark.slow
def test_one_life(tmp_path):
    left = asyncio.run(one_life(tmp_path / "s", 3, size=5000, times=4))
    assert max(left) <= LEFT_MAX


@pytest.mark.slow
@pytest.mark.crash
def test_a_short_soak(tmp_path):
    config = {
        "seed": 1,
        "seconds": 2.5,
        "pace": 40.0,
        "sample_s": 0.3,
        "verify_s": 0.5,
        "burst_s": 1.0,
        "copy_s": 0.4,
        "reopen_s": 1.0,
    }
    run = soak(tmp_path, config, kill_s=(0.3, 0.8))
    assert run["broken"] == []
    assert run["kills"] >= 2
    assert run["looks"] >= 2
    assert run["acked"] >= 10  # that it worked; how much is the machine's matter
    final = run["final"]
    assert final["acked"] >= 10
    assert final["ended"] > 100
    assert min(final["opens"], final["verified"], final["copies"]) >= 2
    told = figures.verdict(run["samples"])
    assert [text for text in told.failures if "p99" not in text] == []  # over seconds: noise
