"""A record that waits for those whom the last one answered: for how long, and when it does not."""

from random import Random

import pytest

from lodeq.coalescer.linger import SKIPPED_MAX, WAIT_S_MAX, Linger


class World:
    """One leader's log, and the time it takes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.linger = Linger(lambda: self.now)

    def append(self, took_s: float, answers: int, meanwhile: int = 0) -> None:
        """One record from its departure to its answer; ``meanwhile`` others came."""
        self.linger.left()
        self.now += took_s
        self.linger.came += meanwhile
        self.linger.entered()
        self.linger.answered(answers)


@pytest.fixture
def world() -> World:
    return World()


def test_who_is_in_line_waits_for_those_answered(world: World) -> None:
    world.append(0.002, answers=10, meanwhile=4)
    assert world.linger.wait_s() == pytest.approx(0.0015)
    world.linger.came += 8
    assert world.linger.wait_s() == pytest.approx(0.0015)
    world.linger.came += 1
    assert world.linger.wait_s() == 0


def test_the_time_that_has_passed_counts(world: World) -> None:
    world.append(0.002, answers=10)
    world.now += 0.001
    assert world.linger.wait_s() == pytest.approx(0.0005)
    world.now += 0.001
    assert world.linger.wait_s() == 0


def test_a_slow_log_is_not_waited_for_as_long(world: World) -> None:
    world.append(3.0, answers=10)
    assert world.linger.wait_s() == pytest.approx(WAIT_S_MAX)


def test_a_lone_caller_does_not_wait_for_itself(world: World) -> None:
    for _ in range(3):
        world.append(0.002, answers=1)
        world.linger.came += 1
        assert world.linger.wait_s() == 0


def test_of_several_groups_all_are_waited_for(world: World) -> None:
    world.append(0.002, answers=64)
    world.linger.answered(64)
    world.linger.came += 64
    assert world.linger.wait_s() > 0
    world.linger.came += 52
    assert world.linger.wait_s() == 0


def test_answers_after_the_wait_begin_another(world: World) -> None:
    world.append(0.002, answers=10)
    world.now += 0.1
    world.linger.answered(2)  # who waited for a sync, say
    assert world.linger.wait_s() == pytest.approx(0.0015)
    world.linger.came += 2
    assert world.linger.wait_s() == 0


def waits(world: World, records: int, answers: int, meanwhile: int) -> list[bool]:
    """Which of so many records waited, if nobody comes back."""
    waited = []
    for _ in range(records):
        world.append(0.002, answers, meanwhile)
        wait_s = world.linger.wait_s()
        waited.append(wait_s > 0)
        if wait_s:
            world.now += wait_s
            world.linger.give_up()
    return waited


def test_in_vain_it_waits_ever_more_rarely(world: World) -> None:
    waited = waits(world, 64, 10, meanwhile=2)
    assert [at for at, one in enumerate(waited) if one] == [0, 2, 5, 10, 19, 36]


def test_it_never_gives_up_for_good(world: World) -> None:
    waits(world, 1000, 10, meanwhile=2)
    waited = waits(world, 2 * SKIPPED_MAX, 10, meanwhile=2)
    assert sum(waited) == 2


def test_once_it_is_worth_it_again_it_waits_each_time(world: World) -> None:
    waits(world, 37, 10, meanwhile=2)
    waited = []
    for _ in range(200):
        world.append(0.002, answers=10)
        waited.append(world.linger.wait_s() > 0)
        world.linger.came += 10
        world.linger.wait_s()
    assert waited == [False] * 32 + [True] * 168


def test_after_waits_that_were_worth_it_one_in_vain_costs_little(world: World) -> None:
    waits(world, 64, 10, meanwhile=2)
    for _ in range(200):
        world.append(0.002, answers=10)
        world.linger.wait_s()
        world.linger.came += 10
        world.linger.wait_s()
    assert waits(world, 4, 10, meanwhile=2) == [True, False, True, False]


def test_who_is_back_at_once_says_nothing_of_waits(world: World) -> None:
    """One that comes when nobody is in line has not been waited for."""
    waits(world, 37, 10, meanwhile=2)
    for _ in range(200):
        world.append(0.002, answers=1)
        world.linger.came += 1
        assert world.linger.wait_s() == 0
    assert waits(world, 66, 10, meanwhile=2) == [True] + [False] * 64 + [True]


@pytest.mark.parametrize("each_append", [0.3, 1, 2, 3, 8, 10, 30, 100])
def test_new_callers_at_a_steady_rate_are_hardly_held_up(world: World, each_append: float) -> None:
    """They are nobody's return: three quarters of an append bring fewer than it answers."""
    random, took_s = Random(each_append), 0.002
    next_at, records, waited_s = world.now, 5000, 0.0

    def arrive(until: float) -> int:
        nonlocal next_at
        came = 0
        while next_at < until:
            came += 1
            next_at += random.expovariate(each_append / took_s)
        return came

    answers, in_line = 0, arrive(next_at + 1e-9)
    for _ in range(records):
        world.linger.left()
        world.now += took_s
        answers, in_line = in_line, arrive(world.now)
        world.linger.came += in_line
        world.linger.entered()
        world.linger.answered(answers)
        if not in_line:  # the next record leaves with the first who comes
            world.now = next_at
            in_line = arrive(next_at + 1e-9)
            world.linger.came += in_line
        began = world.now
        while wait_s := world.linger.wait_s():
            world.now += min(wait_s, took_s / 100)
            came = arrive(world.now)
            in_line += came
            world.linger.came += came
        waited_s += world.now - began
    assert waited_s < 0.05 * records * took_s
