"""Rounds of kills: one store, opened, looked at, worked and killed, again and again."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from crash.nursery import Nursery

from lodeq.testing import BrokenError, History

ROUND_CYCLES = 25
WORK_OPS_MAX = 60  # acknowledged before a kill
OPEN_S_MAX = 0.05
KILL_S_MAX = 0.005
SILENCE_S_MAX = 120.0  # of a child: it hangs


class Round:
    """One store, killed again and again."""

    def __init__(self, nursery: Nursery, path: Path, mode: str, shards: int, seed: int) -> None:
        self.nursery = nursery
        self.random = random.Random(seed)
        self.history = History(shards, durability=mode, tracks_power=False)
        path.mkdir()
        journal = self.random.choice((None, "tasks"))
        self.fixed = {
            "path": str(path / "store"),
            "mode": mode,
            "shards": shards,
            "journal": journal,
        }

    def start(self, *, drain: bool = False):
        draw = self.random
        return self.nursery.start(
            "crash.load",
            {
                **self.fixed,
                "drain": drain,
                "seed": draw.randrange(1 << 32),
                "first": self.history.next_number,
                "commit_batch_max": draw.choice((1, 4, 64)),
                "submit_queue_max": draw.choice((8, 1024)),
                "body_bytes_min": draw.choice((None, 64, 1000)),
            },
        )

    def cycle(self) -> None:
        """Open, look, work, kill. One in eight does not live to look.

        The others die a moment after so many operations, however long those took.
        """
        draw, history = self.random, self.history
        child = self.start()
        looked, acked, wanted = history.found, history.acked, draw.randrange(WORK_OPS_MAX)
        is_doomed = draw.random() < 0.125
        patience = draw.random() * OPEN_S_MAX if is_doomed else SILENCE_S_MAX
        until = time.monotonic() + patience
        while not child.is_over and time.monotonic() < until:
            for record in child.read(until):
                history.take(record)
                if not is_doomed:
                    until = time.monotonic() + SILENCE_S_MAX
            if history.found == looked:
                acked = history.acked
            elif not is_doomed and history.acked >= acked + wanted:
                is_doomed = True
                until = time.monotonic() + draw.random() * KILL_S_MAX
        status = self.nursery.kill(child)
        for record in child.rest():
            history.take(record)
        history.killed()
        if status != -signal.SIGKILL:
            raise BrokenError(f"a child ended by itself, with {status}")
        if not is_doomed:
            raise BrokenError(f"a child was silent for {SILENCE_S_MAX:.0f} s")

    def run(self, cycles: int) -> None:
        """All of it; what is wrong is told with the cycle."""
        for cycle in range(cycles):
            try:
                self.cycle()
            except BrokenError as error:
                raise BrokenError(f"cycle {cycle}: {error}") from error
        self.drain()

    def drain(self) -> None:
        """The rest, without a kill: every task ends."""
        child = self.start(drain=True)
        for record in child.rest():
            self.history.take(record)
        status = self.nursery.wait(child)
        if status:
            raise BrokenError(f"the last child ended with {status}")
