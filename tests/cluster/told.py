"""Calls of a cluster's clients and their answers, as records for the history checker.

``lodeq.testing.Recorder`` records the calls of one engine in its own process; here several clients
share one list of records. Nodes die and nobody notices: to a client a cluster is one store that is
never killed. So a lost claim is never resolved by an open, and from the beginning on a few of them
may hold any task: order (rule 7) is not judged, and an attempt may be skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import lodeq
from lodeq.repository.api.read_only import open_read_only
from lodeq.testing import BrokenError, History
from lodeq.testing.history.capture.contents import HEADER, contents

LOST_CLAIMS = 4  # so many of the checker's lost claims count
NOTHING_DONE = (lodeq.NotLeaderError, lodeq.UnreachableError, lodeq.LeaseLostError)
DAY_S = 86_400
ATTEMPTS = 60_000


class Told:
    """One history.

    Args:
        queue: the queue that all tasks are in.
        shards: of the cluster.
        may_break: keep the first broken rule in ``broken`` instead of raising it.
    """

    def __init__(self, queue: str, shards: int, *, may_break: bool = False) -> None:
        self.history = History(shards, tracks_power=False)
        self.broken: BrokenError | None = None
        self.records = 0
        self._may_break = may_break
        self._queue = queue
        self._ops = self._numbers = 0
        self._named: dict[str, int] = {}
        for _ in range(LOST_CLAIMS):
            op = self._begin("claim", queues=[[queue, ""]], limit=1, lease_us=0, exported=True)
            self._take("u", op, "CommitUnknownError", None)

    def _take(self, *record: Any) -> None:
        if self.broken is not None:
            return  # what follows a broken rule rests on it
        self.records += 1
        try:
            self.history.take([*record, time.time_ns() // 1000, time.monotonic_ns() // 1000])
        except BrokenError as error:
            self.broken = error
            if not self._may_break:
                raise

    def _begin(self, kind: str, **params: Any) -> int:
        self._ops += 1
        self._take("i", self._ops, kind, params)
        return self._ops

    async def _call(self, op: int, kind: str, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except asyncio.CancelledError:
            self._take("c", op)
            raise
        except Exception as error:
            name = type(error).__name__
            is_sure = isinstance(error, NOTHING_DONE) and kind != "claim"
            self._take("e" if is_sure else "u", op, name, None)
            raise

    async def enqueue(self, queue: Any, payload: bytes, key: str | None) -> Any:
        """Enqueue a task, whose number travels in a header."""
        self._numbers += 1
        number = self._numbers
        task: dict[str, Any] = {
            "n": number,
            "queue": self._queue,
            "tenant": "",
            "attempts": ATTEMPTS,
            "retention_us": DAY_S * 1_000_000,
        }
        if key is not None:
            task |= {"key": key, "windowed": True, "conflict": "return"}
        op = self._begin("enqueue", tasks=[task])
        receipt = await self._call(
            op,
            "enqueue",
            queue.enqueue(
                payload,
                headers={HEADER: number},
                dedup_key=key,
                dedup_window=DAY_S if key else None,
            ),
        )
        name = receipt.id.hex()
        holder = self._named.get(name)
        if receipt.duplicate and holder is None:
            # Of a call whose answer is still to come; or this one's own, sent a second time.
            self._take("u", op, "duplicate", None)
        else:
            self._named.setdefault(name, number)
            is_duplicate = holder is not None and holder != number
            self._take("a", op, [[name, is_duplicate, None]])
        return receipt

    async def claim(self, queue: Any, *, limit: int, lease_s: float, wait_s: float) -> list[Any]:
        """Claim some tasks."""
        op = self._begin(
            "claim",
            queues=[[self._queue, ""]],
            limit=limit,
            lease_us=int(lease_s * 1e6),
            exported=True,
        )
        leases = await self._call(op, "claim", queue.claim(limit=limit, lease=lease_s, wait=wait_s))
        for lease in leases:
            self._named.setdefault(lease.task_id.hex(), lease.headers[HEADER])
        found = [[x.headers[HEADER], x.task_id.hex(), x.attempt, x.epoch] for x in leases]
        self._take("a", op, found)
        return leases

    async def call(self, lease: Any, kind: str) -> Any:
        """Call ``complete``, ``nack``, ``release`` or ``heartbeat`` of a lease."""
        params: dict[str, Any] = {"n": lease.headers[HEADER], "epoch": lease.epoch}
        given: dict[str, Any] = {}
        if kind == "nack":
            given["delay"] = params["delay_us"] = 0
        elif kind == "heartbeat":
            params["seconds_us"] = int(lease.granted.lease_s * 1e6)
        elif kind == "complete":
            params["value"] = False
        op = self._begin(kind, **params)
        answer = await self._call(op, kind, getattr(lease, kind)(**given))
        self._take("a", op, None)
        return answer

    async def cancel(self, engine: Any, lease: Any) -> bool:
        """Cancel the task of a lease; whether it was there."""
        op = self._begin("cancel", id=lease.task_id.hex())
        was_there = bool(await self._call(op, "cancel", engine.cancel(lease.task_id)))
        self._take("a", op, was_there)
        return was_there

    async def look(self, path: Path) -> None:
        """Compare with the rows of a closed node that has all entries; all tasks must be over."""
        async with open_read_only(path) as engine:
            findings = [repr(finding) for finding in (await engine.verify()).findings]
            found = {**contents(engine), "findings": findings}
        found.pop("lost")
        self._take("kill")  # nothing is under way any more
        self._take("found", found)
        self._take("drained")
