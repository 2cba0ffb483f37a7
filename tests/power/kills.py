"""Kill at every n-th call that changes the store, and judge what lies there.

A script of operations, one after another, is cut into segments; each starts from the folder the
one before has left (closed, or as its process died), so that a kill late in a long script costs
as little as an early one. Odd n tear the write they fall on in half. After every third kill the
open that follows is killed as well, somewhere.

``python -m power.kills '<json>'``, preloaded with the recorder, prints a JSON line per combination.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import power.campaign  # noqa: F401 - loads what the children need before the forks
from power.disk import MARK, Image, lay_out, parse, read_back
from power.judge import FAILED, verdict
from power.knowledge import Knowledge, LostError
from power.record import fork, settings, start, wait
from power.shim import Shim, scratch

COMBINATIONS = (("fsync", 1), ("nosync", 1), ("fsync", 4), ("nosync", 4))
SEGMENT_OPS = 100
REOPEN_STEPS_MAX = 120
DRAINS_EVERY = 4


def marks(trace: Path) -> list[list]:
    """What the workload has told."""
    return [json.loads(event[4]) for event in parse(trace.read_bytes()) if event[0] == MARK]


class Segments:
    """One combination: the script up to a segment, and kills in that segment."""

    def __init__(self, shim: Shim, folder: Path, mode: str, shards: int, ops: int) -> None:
        self.shim, self.folder = shim, folder
        self.config = {
            **settings(0),
            "mode": mode,
            "shards": shards,
            "sizes": (0, 90, 900),
            "copies": 0,
            "commit_batch_max": 64,
            "interval": 0.003,
            "sync_us": 0,
            "flush_max": 40,
            "ops": ops,
            "in_order": True,
            "body_bytes_min": None,
            "journal": None,
        }
        self.image: Image = {}
        self.knowledge = Knowledge(is_fsync=True, is_power=False)
        self.number = 0

    def live(self, root: Path, trace: Path, **more: Any) -> int:
        """One life of this segment."""
        first = self.number * 10_000
        return fork(
            self.shim,
            {
                **self.config,
                "seed": self.number,
                "root": str(root),
                "trace": str(trace),
                "life": 0,
                "first": first,
                "first_op": first,
                "end": ("die", "close")[self.number % 2],
                "kill_at": 0,
                "is_torn": False,
                **more,
            },
        )

    def advance(self) -> None:
        """The next segment: run this one to its end."""
        root, trace = self.folder / "whole", self.folder / "whole.trace"
        lay_out(self.image, str(root))
        if self.live(root, trace):
            raise RuntimeError(f"segment {self.number}: {marks(trace)[-1]}")
        for record in marks(trace):
            self.knowledge.feed(record)
        self.knowledge.died()
        self.image = read_back(str(root))
        shutil.rmtree(root)
        trace.unlink()
        self.number += 1

    def kill(self, n: int) -> dict[str, Any] | None:
        """Die at the n-th call; what was found then. None: there are not so many."""
        root, trace = self.folder / "root", self.folder / "trace"
        trace.unlink(missing_ok=True)
        lay_out(self.image, str(root))
        try:
            status = self.live(root, trace, kill_at=n, is_torn=n % 2 == 1)
            if status == 0:
                return None
            told = marks(trace) if trace.exists() else []
            if status != -signal.SIGKILL:
                why = f"the workload ended with {status}: {told[-1:]}"
                return {"outcome": "lost", "why": why, "n": n}
            if n % 3 == 0:
                again = random.Random(n).randrange(1, REOPEN_STEPS_MAX)
                self.live(root, self.folder / "again", kill_at=again, ops=0, end="die")
                (self.folder / "again").unlink(missing_ok=True)
            return {**self._judge(root, told, drains=n % DRAINS_EVERY == 0), "n": n}
        finally:
            shutil.rmtree(root)

    def _judge(self, root: Path, told: list[list], *, drains: bool) -> dict[str, Any]:
        answer = self.folder / "answer"
        answer.unlink(missing_ok=True)

        def judge() -> None:
            try:
                for record in told:
                    self.knowledge.feed(record)
                self.knowledge.died()
                looking = verdict(str(root), self.knowledge, self.config, drains=drains)
                found = asyncio.new_event_loop().run_until_complete(looking)
            except LostError as error:
                found = {"outcome": "lost", "why": str(error)}
            answer.write_text(json.dumps(found))

        if status := wait(start(judge)):
            return {"outcome": "lost", "why": f"the judge ended with {status}"}
        return json.loads(answer.read_text())


def kill_all(shim: Shim, order: dict, mode: str, shards: int) -> dict[str, Any]:
    """Every n of the segments asked for, one combination."""
    started = time.monotonic()
    kills, failures, n_first = 0, [], order.get("n_first", 1)
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="lodeq-kills-") as name:
        run = Segments(shim, Path(name), mode, shards, order["ops"])
        for segment in range(max(order["segments"]) + 1):
            for n in (
                range(n_first, n_first + order["n_max"]) if segment in order["segments"] else ()
            ):
                told = run.kill(n)
                if told is None:
                    break
                kills += 1
                if told["outcome"] in FAILED:
                    failures.append({**told, "segment": segment})
            if segment < max(order["segments"]):
                run.advance()
    return {
        "mode": mode,
        "shards": shards,
        "kills": kills,
        "failed": len(failures),
        "failures": failures[:3],
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    """See the module's docstring."""
    order = json.loads(sys.argv[1])
    shim = Shim()
    gc.collect()
    gc.freeze()
    for mode, shards in order["combinations"]:
        sys.stdout.write(json.dumps(kill_all(shim, order, mode, shards)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
