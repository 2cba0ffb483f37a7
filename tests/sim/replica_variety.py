"""Rarer calls of a simulated cluster's clients: delays, cancels, waits for results.

It has draws of its own, so that worlds without it are what they were. The rules, beside those of
``replicas.Judge``:

8. A wait for the result of an acknowledged task never hears that there is no such task, and ends.
9. A task ends once: it is completed or cancelled, whatever was acknowledged to whom. Once its
   cancel was acknowledged, no claim that begins gets it, and no call with a lease succeeds.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim.rules import RuleBrokenError

import lodeq

WAIT_S = (1.0, 8.0)
WAITS_MAX = 6  # at a time
OVER_S = 60.0  # all waits end in it, once nothing is wrong any more


class Variety:
    """The rest of what clients do in one world.

    Args:
        seed: of the world.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"{seed} variety")
        self.tried: set[lodeq.TaskId] = set()  # to be cancelled: that may have happened
        self.cancelled: dict[lodeq.TaskId, int] = {}  # for certain, and at which moment
        self.answers = 0  # results that somebody waited for
        self._waits: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def enqueue_options(self) -> dict[str, Any]:
        """Those of a new task."""
        draw, options = self.draw, {}
        if draw.random() < 0.4:
            options["delay"] = draw.choice((0.01, 1.0, 4.0, 9.0)) * draw.random()
        if draw.random() < 0.4:
            options["priority"] = draw.randrange(1, 10)
        return options

    def nack_delay_s(self) -> float:
        """How long a task rests that somebody has failed."""
        return self.draw.choice((0.0, 0.0, 0.5, 6.0)) * self.draw.random()

    # -- cancels ---------------------------------------------------------------------------

    def begin_cancel(self, judge: Any) -> lodeq.TaskId | None:
        """Draw a task to be cancelled; whatever is heard of it, it may be gone from now on."""
        known = sorted(judge.acknowledged - self.tried)
        if not known:
            return None
        task_id = self.draw.choice(known)
        self.tried.add(task_id)
        judge.ready.discard(task_id)
        return task_id

    def cancel_answered(self, judge: Any, task_id: lodeq.TaskId, *, was_there: bool) -> None:
        """Take the answer of a cancel."""
        if not was_there:
            return
        if task_id in judge.completed:
            raise RuleBrokenError(f"rule 9: {task_id} was completed, and is cancelled")
        self.cancelled[task_id] = judge.moment
        judge.moment += 1

    def check_claim(self, task_id: lodeq.TaskId, began: int) -> None:
        """A claim has got a task; ``began``: the moment at which it did."""
        if began > self.cancelled.get(task_id, began):
            raise RuleBrokenError(f"rule 9: {task_id} was cancelled and is claimed")

    def check_end(self, judge: Any, task_id: lodeq.TaskId, status: str) -> None:
        """A task has ended so, at least as somebody knows."""
        may_be = {"completed", "cancelled"} if task_id in self.tried else {"completed"}
        if task_id in self.cancelled:
            may_be.discard("completed")
        if task_id in judge.completed:
            may_be.discard("cancelled")
        if status not in may_be:
            raise RuleBrokenError(f"rule 9: {task_id} is {status}, and not one of {sorted(may_be)}")

    # -- waits -----------------------------------------------------------------------------

    def wait(self, judge: Any, process: Any, engine: lodeq.Engine) -> None:
        """Wait for the result of a task at some node, be it a leader or not."""
        known = sorted(judge.acknowledged)
        if not known or len(self._waits) >= WAITS_MAX:
            return
        task_id, wait_s = self.draw.choice(known), self.draw.choice(WAIT_S)

        async def waiting() -> None:
            try:
                result = await process.ask(lambda: engine.result(task_id, wait=wait_s))
            except lodeq.TaskNotFoundError as error:
                self._failure = RuleBrokenError(f"rule 8: {task_id} was acknowledged: {error}")
                return
            except Exception:  # noqa: BLE001 - the node has gone, or leads no more
                return
            if result is not None:
                self.answers += 1
                try:
                    self.check_end(judge, task_id, result.status)
                except RuleBrokenError as error:
                    self._failure = error

        task = asyncio.ensure_future(waiting())
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    async def over(self) -> None:
        """All waits have ended, and none has heard what cannot be."""
        if self._waits:
            _, left = await asyncio.wait(set(self._waits), timeout=OVER_S)
            if left:
                raise RuleBrokenError(f"rule 8: {len(left)} waits for results never end")
        if self._failure is not None:
            raise self._failure
