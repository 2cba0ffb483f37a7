"""The best embedded peer in our load shapes: a hand-written SQLite queue, one caller.

It is called on the loop's own thread, so it pays for no thread and no await. More callers make it
slower (writers take turns on one lock), so one stands beside any number of ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from load import PAYLOAD
from peers.by_hand import SqliteFull, SqliteNormal

__all__ = ["Hand"]

FEW = 1000


class Hand:
    """A SQLite queue in ``folder``, with ``waiting`` tasks in it; kept if the folder is."""

    def __init__(
        self,
        folder: Path,
        waiting: int = 0,
        kind: type[SqliteNormal] | type[SqliteFull] = SqliteNormal,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        peer = kind(folder)
        peer.open()
        self.session = peer.session()
        self.waiting = waiting
        self.refill()

    def __enter__(self) -> Hand:
        return self

    def __exit__(self, *exc: object) -> None:
        self.session.close()

    def refill(self) -> None:
        """Put until as many wait as it began with."""
        (n,) = self.session.db.execute("SELECT count(*) FROM task WHERE state = 0").fetchone()
        for at in range(n, self.waiting, FEW):
            self.session.put_many([PAYLOAD] * min(FEW, self.waiting - at))

    async def burst(self, n: int) -> float:
        """Put ``n`` tasks, then take and end them. Cycles per second."""
        began = time.perf_counter()
        for _ in range(n):
            self.session.put(PAYLOAD)
        self._take(n)
        return n / (time.perf_counter() - began)

    async def drain(self, n: int) -> float:
        """Take and end ``n``. Tasks per second."""
        began = time.perf_counter()
        self._take(n)
        return n / (time.perf_counter() - began)

    async def turnover(self, seconds: float) -> float:
        """Put, take and end, in turn. Cycles per second."""
        done, began = 0, time.perf_counter()
        while not done or time.perf_counter() < began + seconds:
            self.session.put(PAYLOAD)
            self._take(1)
            done += 1
        return done / (time.perf_counter() - began)

    async def batches(self, n: int, size: int) -> float:
        """The same in batches. Cycles per second."""
        payloads, began = [PAYLOAD] * size, time.perf_counter()
        for _ in range(n // size):
            self.session.put_many(payloads)
            self.session.done_many(self.session.take_many(size), b"ok")
        return n // size * size / (time.perf_counter() - began)

    def _take(self, n: int) -> None:
        for _ in range(n):
            self.session.done(self.session.take(), b"ok")

    @staticmethod
    def columns(own: Sequence[float], by_hand: Sequence[float]) -> dict[str, float]:
        """The figures of each round, for a result."""
        shares = [a / b for a, b in zip(own, by_hand, strict=True)]
        return {
            "sqlite_by_hand": round(statistics.median(by_hand)),
            "of_sqlite": round(statistics.median(shares), 2),
        }
