"""SIGKILL at random instants under a full load, thousands of times: nothing acknowledged is lost.

A round is one store: cycles of open, look, work, kill; then a full drain. The number of cycles is
``LODEQ_CRASH_CYCLES`` (500), spread over both durability modes and one and four shards;
``LODEQ_CRASH_SEED`` repeats the choices of a failed run (when the kill falls is up to the
scheduler, too).
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.history import Broken, History
from crash.nursery import Nursery

CYCLES = int(os.environ.get("LODEQ_CRASH_CYCLES", "500"))
SEED = int(os.environ.get("LODEQ_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
ROUND_CYCLES = 25
WORK_S_MAX = 0.06
OPEN_S_MAX = 0.05
LIFE_S_MAX = 120.0  # of a child that should have told something long ago

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


class Round:
    """One store, killed again and again."""

    def __init__(self, nursery: Nursery, path: Path, mode: str, shards: int, seed: int) -> None:
        self.nursery = nursery
        self.random = random.Random(seed)
        self.history = History(shards)
        self.fixed = {"path": str(path / "store"), "mode": mode, "shards": shards}

    def start(self, *, drain: bool = False):
        draw = self.random
        return self.nursery.start("crash.load", {
            **self.fixed, "drain": drain, "seed": draw.randrange(1 << 32),
            "first": self.history.next_number + 1,
            "merge_max": draw.choice((1, 4, 64)), "queue_max": draw.choice((8, 1024)),
        })  # fmt: skip

    def cycle(self) -> None:
        """Open, look, work, kill. One in eight does not live to look."""
        history = self.history
        child = self.start()
        looked = history.found
        until = time.monotonic() + LIFE_S_MAX
        if self.random.random() < 0.125:
            until = time.monotonic() + self.random.random() * OPEN_S_MAX
            looked = -1
        while not child.is_over and time.monotonic() < until:
            for record in child.read(until):
                history.take(record)
            if history.found == looked + 1:
                until = time.monotonic() + self.random.random() * WORK_S_MAX
                looked = -1
        status = self.nursery.kill(child)
        for record in child.rest():
            history.take(record)
        history.killed()
        if status != -signal.SIGKILL:
            raise Broken(f"a child ended by itself, with {status}")

    def drain(self) -> None:
        """The rest, without a kill: every task ends."""
        child = self.start(drain=True)
        for record in child.rest():
            self.history.take(record)
        status = self.nursery.wait(child)
        if status:
            raise Broken(f"the last child ended with {status}")
        self.history.ended()


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_a_kill_at_any_instant_loses_nothing_and_repeats_nothing(
    nursery: Nursery, tmp_path: Path, mode: str, shards: int
) -> None:
    cycles = -(-CYCLES // 4)
    acked = tasks = 0
    started = time.monotonic()
    sizes = [min(ROUND_CYCLES, cycles - at) for at in range(0, cycles, ROUND_CYCLES)]
    for number, size in enumerate(sizes):
        seed = SEED + number
        one = Round(nursery, tmp_path / str(number), mode, shards, seed)
        cycle = 0
        try:
            for cycle in range(size):
                one.cycle()
            one.drain()
        except Broken as error:
            pytest.fail(
                f"{mode}, {shards} shards, cycle {cycle} of round {number}: {error}\n"
                f"repeat with LODEQ_CRASH_SEED={seed}"
            )
        acked += one.history.acked
        tasks += len(one.history.tasks)
    took = time.monotonic() - started
    sys.stdout.write(
        f"{mode}, {shards} shards: {cycles} kills in {took:.0f} s ({cycles / took * 60:.0f} a "
        f"minute), {tasks} tasks, {acked} acknowledged operations, seed {SEED}\n"
    )
    assert acked > cycles, "the load did nothing"


def test_the_history_bites() -> None:
    """Planted in the records of a run: each broken promise is found."""
    good = [
        ["i", 1, "enqueue", {"tasks": [[1, 0, None, 2, False]], "conflict": "return"}],
        ["a", 1, [["aa" * 16, False, None]]],
        ["i", 2, "claim", {"queues": [0], "limit": 1, "short": False}],
        ["a", 2, [[1, "aa" * 16, 1, 5]]],
        ["i", 3, "complete", {"n": 1, "epoch": 5, "then": [[2, 0, None, 2, False]]}],
        ["a", 3, None],
    ]
    nothing = {"findings": [], "anomalies": [], "rows": {}, "counted": {}, "results": []}
    done = [["aa" * 16, "completed", 1]]
    follow = ["bb" * 16, 2, [["ready", 0, 0]]]
    whole = {**nothing, "tasks": [follow], "results": done}
    again = ["i", 4, "claim", {"queues": [0], "limit": 9, "short": False}]

    def run(*records: list) -> None:
        history = History(1)
        for record in records:
            if record == "kill":
                history.killed()
            else:
                history.take(record)

    run(*good, "kill", ["found", whole])
    run(*good[:5], "kill", ["found", whole])
    run(*good[:5], "kill", ["found", {**nothing, "tasks": [["aa" * 16, 1, [["ready", 1, 0]]]]}])
    broken = {
        "lost": [*good[:2], "kill", ["found", {**nothing, "tasks": []}]],
        "phantom": [["found", {**nothing, "tasks": [["cc" * 16, 7, [["ready", 0, 0]]]]}]],
        "after its complete": [*good, again, ["a", 4, [[1, "aa" * 16, 2, 9]]]],
        "two leases": [*good[:4], again, ["a", 4, [[1, "aa" * 16, 2, 9]]]],
        "two places": [*good[:2], "kill", ["found", {**nothing, "tasks": [
            ["aa" * 16, 1, [["ready", 0, 0], ["leased", 1, 5]]]]}]],
        "attempts": [*good[:4], "kill", ["found", {**nothing, "tasks": [
            ["aa" * 16, 1, [["ready", 2, 0]]]]}]],
        "claimed by nobody": [*good[:2], "kill", ["found", {**nothing, "tasks": [
            ["aa" * 16, 1, [["ready", 1, 0]]]]}]],
        "torn": [*good[:5], "kill", ["found", {**nothing, "tasks": [], "results": done}]],
        "torn the other way": [*good[:5], "kill", ["found", {**nothing, "tasks": [
            ["aa" * 16, 1, [["ready", 1, 0]]], follow]}]],
        "counters": [["found", {**nothing, "tasks": [], "counted": {"a": {"ready": 1}}}]],
    }  # fmt: skip
    for what, records in broken.items():
        with pytest.raises(Broken):
            run(*records)
            pytest.fail(f"not noticed: {what}")


def test_the_automaton_is_finite() -> None:
    """Every pair of operations on every state ends, and never loses the state it started from."""
    from crash.states import after, leased, pending, reachable

    names = ("enqueue", "redrive", "cancel", "replace", "complete", "nack", "release", "bury")
    for state, (a, b) in itertools.product(
        [pending(0), pending(1), leased(1, 7, is_short=True)], itertools.combinations(names, 2)
    ):
        states = reachable(frozenset([state]), ((a, 7), (b, 7)), 1, 2, 3)
        assert state in states
        assert {new for op in (a, b) if (new := after(state, (op, 7), 3))} <= states
