"""Every place a fault can strike, one after another: SQLite's loop.

A *plan* is a store (mode, shards), an operation on a kind of file, and how it fails. Its sites are
n = 1, 2, … until a life ends without having made the n-th such call.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from crash.nursery import Nursery
from fault.judge import BrokenError, Judge, demand

LIFE_S_MAX = 20.0
STRIDE = 10_000  # sites are numbered plan * STRIDE + n - 1
STORES = (("nosync", 1), ("fsync", 1), ("nosync", 4), ("fsync", 4))
SITES = {
    "write": ("wal", "sst", "manifest", "current", "watermark", "lock", "other"),
    "sync": ("wal", "sst", "manifest", "current", "options", "watermark", "folder", "other"),
    "open": ("wal", "sst", "manifest", "current", "options", "watermark", "lock", "folder",
             "other"),
    "rename": ("current", "watermark", "folder"),
    "truncate": ("wal", "sst", "manifest", "lock"),
    "unlink": ("wal", "sst", "manifest"),
    "link": ("sst", "wal", "options"),
    "mkdir": ("folder",),
    "read": ("wal", "sst", "manifest", "current", "watermark", "lock"),
}  # fmt: skip


class Plan(NamedTuple):
    mode: str
    shards: int
    op: str
    kind: str
    error: str
    sticky: bool
    torn: bool
    old: bool = False  # a store that was killed is opened, used briefly and closed

    def __str__(self) -> str:
        how = ("sticky " if self.sticky else "") + ("torn " if self.torn else "")
        store = f"{self.mode}/{self.shards}" + (" killed" if self.old else "")
        return f"{store}: {how}{self.error} on {self.op} {self.kind}"


def plans() -> list[Plan]:
    """All of them, in an order that never changes: long gates count on it."""
    found = []
    for (mode, shards), old, op in itertools.product(STORES, (False, True), SITES):
        for kind, sticky in itertools.product(SITES[op], (False, True)):
            for error in ("EIO",) if op in {"read", "unlink"} else ("EIO", "ENOSPC"):
                found.append(Plan(mode, shards, op, kind, error, sticky, torn=False, old=old))
                if op == "write" and kind in {"wal", "manifest", "sst", "watermark"}:
                    found.append(Plan(mode, shards, op, kind, error, sticky, torn=True, old=old))
    return found


class Killed:
    """A store of each sort that was killed at work, and what its calls told. Made once."""

    def __init__(self, nursery: Nursery, library: Path, folder: Path) -> None:
        self.nursery, self.library, self.folder = nursery, library, folder
        self.made: dict[tuple[str, int], list[list]] = {}

    def copied_to(self, target: Path, mode: str, shards: int) -> list[list]:
        """A copy at ``target``; the records of its life."""
        base = self.folder / f"killed-{mode}-{shards}"
        if (mode, shards) not in self.made:
            base.mkdir()
            child = self.nursery.start(
                "fault.child",
                {
                    "folder": str(base),
                    "library": str(self.library),
                    "mode": mode,
                    "shards": shards,
                    "ends": "kill",
                },
            )
            records = child.rest()
            demand(self.nursery.wait(child) == 0, records[-1:])
            self.made[mode, shards] = [r for r in records if r[0] not in {"hits", "events"}]
        shutil.copytree(base / "store", target / "store")
        return self.made[mode, shards]


class Site:
    """One life with one fault, and the look at what it left."""

    def __init__(
        self,
        nursery: Nursery,
        library: Path,
        folder: Path,
        plan: Plan,
        nth: int,
        killed: Killed | None = None,
    ) -> None:
        self.nursery = nursery
        self.killed = killed
        self.folder = folder
        self.plan = plan
        self.nth = nth
        self.judge = Judge(plan.shards)
        # A third of the lives is not closed; half of those that meet a full disk stay full.
        self.config: dict[str, Any] = {
            "folder": str(folder),
            "library": str(library),
            "mode": plan.mode,
            "shards": plan.shards,
            "ends": "kill" if nth % 3 == 0 else "close",
            "heals": nth % 2 == 1,
        }

    def run(self, plant: str = "") -> bool:
        """Whether the fault was met. Raises ``BrokenError``."""
        plan, judge = self.plan, self.judge
        fault = {
            "op": plan.op,
            "kind": plan.kind,
            "nth": self.nth,
            "error": plan.error,
            "sticky": plan.sticky,
            "torn": plan.torn,
        }
        is_dropping = plan.op == "sync" and plan.kind == "wal" and plan.mode == "fsync"
        if is_dropping:
            self.config["ends"] = "kill"
        self.folder.mkdir()
        if self.killed is not None and plan.old:
            for record in self.killed.copied_to(self.folder, plan.mode, plan.shards):
                judge.take(record)
            judge.restarted()
            self.config |= {"first": len(judge.tasks), "is_brief": True}
        self._child(**self.config, fault=fault, plant=plant)
        if self.config["ends"] == "kill":
            judge.settle_unanswered()
            if is_dropping:
                for path, size in judge.dropped().items():
                    if os.path.exists(path):  # as the kernel does with pages it could not write
                        os.truncate(path, size)
            self._child(**self.config, looks_only=True)
        demand({"found", "drained"} <= judge.ends, "it was not looked at:", judge.ends)
        demand(not list(judge.unanswered()), "no answer:", list(judge.unanswered()))
        if not judge.hits:
            demand(
                judge.is_open and not judge.errors,
                "errors without a fault",
                judge.errors,
                judge.refusal,
            )
        self._judge_the_outcome()
        shutil.rmtree(self.folder, ignore_errors=True)
        return judge.hits > 0

    def _judge_the_outcome(self) -> None:
        """A log that could not be written or synced must have been heard of."""
        plan, judge = self.plan, self.judge
        if not judge.hits or not judge.is_open:
            return
        failed = [e for e in judge.events if e.failed]
        is_heard = bool(judge.errors) or (judge.last is not None and not judge.last[0])
        is_commit = plan.kind == "wal" and (
            plan.op == "sync" or (plan.op == "write" and plan.error == "EIO")
        )
        if is_commit and failed and self.config["ends"] == "kill":
            demand(is_heard, "nobody heard of", failed)
        if plan.op == "write" and plan.kind == "wal" and plan.error == "ENOSPC":
            # It may, where RocksDB took the disk for healed at once and kept the log that failed,
            # or does not come back.
            is_kept = any(
                "Writer has previous error" in error or "does not come back" in error
                for error in judge.errors
            )
            demand(not judge.is_poisoned or is_kept, "a full disk poisoned:", judge.errors)

    def _child(self, **config: Any) -> None:
        child = self.nursery.start("fault.child", config)
        until = time.monotonic() + LIFE_S_MAX
        while not child.is_over:
            for record in child.read(until):
                self.judge.take(record)
            if not child.is_over and time.monotonic() >= until:
                self.nursery.kill(child)
                raise BrokenError(f"it hangs: {list(self.judge.unanswered())}")
        os.close(child.fd)
        status = self.nursery.wait(child)
        if status:
            name = signal.Signals(-status).name if status < 0 else status
            raise BrokenError(f"the child ended with {name}")


def met(
    nursery: Nursery, library: Path, folder: Path, plan: Plan, nth: int, killed: Killed
) -> bool:
    """Judge one site; whether there is one. Adds the site to what is broken."""
    site = Site(nursery, library, folder, plan, nth, killed)
    try:
        return site.run()
    except BrokenError as error:
        failed = [
            f"{e.op} {'/'.join(e.path.split('/')[-2:])}" for e in site.judge.events if e.failed
        ]
        raise BrokenError(
            f"{plan}, call {nth} (failed: {failed[:4]}): {error}\n  errors: {site.judge.errors[:4]}"
            f"\n  refusal: {site.judge.refusal}\n  repeat with: tests/fault/run.py "
            f"--plan {plans().index(plan)} --nth {nth}"
        ) from error


def scratch() -> str | None:
    """Where stores are made: memory, if there is such a folder. What is failed is the same."""
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK) else None
