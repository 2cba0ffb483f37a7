"""One share of the images: record a trace, cut it at many points, judge what each cut leaves.

Run as a process of its own, preloaded with the recorder: ``python -m power.campaign '<json>'``. It
opens nothing itself (a process that has used a store cannot fork into one that opens another) and
prints a JSON line per trace.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from power.disk import CUT, DIED, ENTRY, MARK, POLICIES, Disk, Event, lay_out, read_back
from power.judge import FAILED, verdict
from power.knowledge import Knowledge, LostError
from power.record import read, record, settings, start, wait
from power.shim import Shim, scratch

import lodeq.engine.runtime.on_asyncio  # noqa: F401 - loaded once, before the forks

BATCH = 12  # images a child judges; then its memory goes
DRAINS_EVERY = 8
WHY_MAX = 3000
FAILURES_MAX = 3
Cut = tuple[int, str, int]  # after so many events, policy, seed


def choose(seed: int, events: list[Event], images: int) -> list[Cut]:
    """Where to cut: anywhere (but an earlier cut's image is one step), every policy as often."""
    draw = random.Random(seed)
    steps = [i for i, event in enumerate(events) if event[0] not in {CUT, ENTRY}]
    cuts = sorted(
        (draw.choice(steps), POLICIES[i % len(POLICIES)], draw.randrange(1 << 32))
        for i in range(images - 1)
    )
    return [*cuts, (len(events), "drop", 0)]  # the last: what every life has told is read


class Replay:
    """A trace up to a point: the disk, and what is known."""

    def __init__(self, config: dict, events: list[Event]) -> None:
        self.config, self.events, self.at = config, events, 0
        self.disk, self.knowledge = Disk(), Knowledge(is_fsync=config["mode"] == "fsync")

    def go_to(self, until: int) -> None:
        """Forward."""
        for event in self.events[self.at : until]:
            self.disk.feed(event)
            if event[0] == MARK:
                self.knowledge.feed(json.loads(event[4]))
            elif event[0] == DIED:
                self.knowledge.died()
        self.at = until

    def judge(self, cuts: list[Cut], first: int, folder: Path, writer: int) -> None:
        """In a forked child: build and judge one image after another, and tell of each."""
        loop = asyncio.new_event_loop()
        for i, (until, policy, seed) in enumerate(cuts, first):
            try:
                self.go_to(until)
            except LostError:
                return  # the parent comes to the same point, and tells
            path = f"{folder}/image{i}"  # each its own: those that are not drained stay open
            lay_out(self.disk.image(policy, random.Random(seed)), path)
            drains = i % DRAINS_EVERY == 0
            told = loop.run_until_complete(
                verdict(path, self.knowledge, self.config, drains=drains)
            )
            line = json.dumps({**told, "why": told["why"][:WHY_MAX], "cut": [until, policy, seed]})
            shutil.rmtree(path, ignore_errors=True)  # a store still open may be at work in it
            os.write(writer, line.encode() + b"\n")


def judge_cuts(config: dict, events: list[Event], cuts: list[Cut], folder: Path) -> list[dict]:
    """The verdict on each cut, in their order. A judge that dies fails the image it was at."""
    replay = Replay(config, events)
    verdicts: list[dict] = []
    while len(verdicts) < len(cuts):
        first = len(verdicts)
        batch = cuts[first : first + BATCH]
        try:
            replay.go_to(batch[0][0])
        except LostError as error:
            verdicts.append({"outcome": "lost", "why": str(error), "cut": [*cuts[first]]})
            break
        reader, writer = os.pipe()
        pid = start(partial(replay.judge, batch, first, folder, writer))
        os.close(writer)
        with open(reader, "rb") as pipe:
            verdicts += [json.loads(line) for line in pipe]
        status = wait(pid)
        if status and len(verdicts) < first + len(batch):
            why = f"the judge ended with {status}"
            verdicts.append({"outcome": "lost", "why": why, "cut": [*cuts[len(verdicts)]]})
    return verdicts


def keep(raw: bytes, seed: int, where: str) -> str:
    """A trace that led to a failure, for ``run.py --again``."""
    Path(where).mkdir(parents=True, exist_ok=True)
    path = Path(where) / f"trace-{seed}.z"
    path.write_bytes(zlib.compress(raw, 9))
    return str(path)


def one_trace(
    shim: Shim, seed: int, images: int, where: str = "", fixed: dict | None = None
) -> dict[str, Any]:
    """Record, cut, judge; what came of it. ``fixed`` overrides what the seed draws."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="lodeq-power-") as name:
        folder = Path(name)
        raw = record(shim, folder, {**settings(seed), **(fixed or {})})
        config, events = read(raw)
        recorded = time.monotonic()
        verdicts = judge_cuts(config, events, choose(seed, events, images), folder)
    counts = Counter(f"{told['cut'][1]} {told['outcome']}" for told in verdicts)
    failures = [told for told in verdicts if told["outcome"] in FAILED]
    return {
        "seed": seed,
        "images": len(verdicts),
        "counts": counts,
        "events": len(events),
        "failed": len(failures),
        "failures": failures[:FAILURES_MAX],
        "kept": keep(raw, seed, where) if failures and where else "",
        "record_s": recorded - started,
        "seconds": time.monotonic() - started,
    }


def control(shim: Shim, seed: int) -> dict[str, Any]:
    """Where the model, with everything kept, differs from what lies on the real disk."""
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="lodeq-power-") as name:
        config = {**settings(seed), "copies": 1, "ends": ["die", "cut", "close"]}
        config, events = read(record(shim, Path(name), config))
        real = read_back(f"{name}/root")
    replay = Replay(config, events)
    replay.go_to(len(events))
    model = replay.disk.image("all", random.Random(0))
    differs = [path for path in {**real, **model} if real.get(path, 0) != model.get(path, 0)]
    return {"seed": seed, "differs": sorted(differs), "files": len(real)}


def main() -> None:
    """See the module's docstring."""
    order = json.loads(sys.argv[1])
    shim = Shim()
    gc.collect()
    gc.freeze()
    for seed in order["seeds"]:
        if order.get("control"):
            told = control(shim, seed)
        else:
            told = one_trace(shim, seed, order["images"], order.get("keep", ""), order.get("fixed"))
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
