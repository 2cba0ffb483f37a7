"""A limit of keys on one queue of a simulated world: what is set, and that no key is above it.

The judge of histories does not count keys: this looks into the lease table after every step that
has granted something, by the labels of the leases. That nothing waits for ever is shown by the last
life, which works without faults for a while, and then drains all queues with the limit as it is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import lodeq
from lodeq.coalescer.shard_status import FAILED
from lodeq.engine.records.face import unpack_face
from lodeq.engine.records.keyspace import DELAYED, INDEX, decode_index_key
from lodeq.engine.records.lease import DEAD_LEASE
from lodeq.engine.records.queues.key_waits import KEY_WAIT_MS
from lodeq.repository.state.limits import key_limit
from lodeq.repository.tasks import claim, key_waits
from lodeq.testing import BrokenError
from lodeq.testing.simulation.disk import SimDisk

KNOBS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (key_waits, "SLICE", (1, 3)),
    (claim, "ASIDE_ROWS", (1, 4)),
    (key_limit, "KEYS_KEPT", (1,)),
)
LABELS = ("customer", "region")


class SimKeys:
    """The limit of one world; draws of its own, so that a world without one stays what it was."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(f"{seed} keys")
        self.queue = draw.choice(("alpha", "alpha", "beta"))
        self.values = draw.choice(("a", "ab", "ab", "abc"))
        self.pause_s = draw.choice((0.1, 4.0, 20.0))  # between two changes, at most
        self.is_set = False
        self.checked = 0  # claims that were looked at
        self.aside = 0  # rows that a kill found set aside
        self._holds: set[str | None] = {None}  # what may hold
        self._engine: lodeq.Engine | None = None
        self._before: Counter[tuple[str, str]] = Counter()
        self._claimed = 0

    @contextmanager
    def turned(self) -> Iterator[None]:
        """Some sizes made small, as ``knobs.py`` does."""
        with ExitStack() as stack:
            for module, name, values in KNOBS:
                if self.draw.random() < 0.4:
                    stack.enter_context(patch.object(module, name, self.draw.choice(values)))
            yield

    def labels(self) -> dict[str, str] | None:
        """Those of a new task: most have both."""
        draw = self.draw
        return {name: draw.choice(self.values) for name in LABELS if draw.random() < 0.85} or None

    # -- the setting -----------------------------------------------------------------------

    async def begin(self, engine: lodeq.Engine) -> None:
        """A life has begun: one of the settings that may hold does."""
        found = (await engine.settings(self.queue)).key_concurrency
        if found not in self._holds:
            raise BrokenError(f"{self.queue} has the limit {found}, and not one of {self._holds}")
        self._holds = {found}
        self._engine = engine
        self._look_anew()

    def opening(self) -> dict[str, Any] | None:
        """Settings at the beginning of a life; None: those that are there."""
        if self.is_set and self.draw.random() < 0.7:
            return None
        self.is_set = True
        return self.drawn(likely=0.95)

    def drawn(self, *, likely: float = 0.8) -> dict[str, Any]:
        """Other settings."""
        draw = self.draw
        label = draw.choice(("customer", "customer", "region"))
        text = f"{draw.choice((1, 1, 1, 2, 3))}/{label}" if draw.random() < likely else None
        return {"key_concurrency": text, "concurrency": draw.choice((None, None, None, 4))}

    def changing(self, text: str | None) -> None:
        """It is about to be changed."""
        self._holds.add(text)

    def changed(self, text: str | None) -> None:
        """It has been."""
        self._holds = {text}
        self._look_anew()

    # -- what is leased --------------------------------------------------------------------

    def check(self) -> None:
        """After a step: nothing was granted of a key that was full."""
        if self._engine is None:
            return
        claimed = self._engine._state.totals.claimed
        if claimed == self._claimed or len(self._holds) > 1:
            return
        self._claimed = claimed
        (text,) = self._holds
        if text is None:
            return
        counts, most = self._counts(text), int(text.split("/")[0])
        for key, count in counts.items():
            if count > max(most, self._before[key]):
                raise BrokenError(f"{self.queue} {key}: {count} leases, where {text} may be")
        self._before = counts
        self.checked += bool(counts)

    def _look_anew(self) -> None:
        """Tasks that are leased when a limit begins to hold may be more than it allows."""
        (text,) = self._holds
        self._before = Counter() if text is None else self._counts(text)
        assert self._engine is not None
        self._claimed = self._engine._state.totals.claimed

    def _counts(self, text: str) -> Counter[tuple[str, str]]:
        assert self._engine is not None
        start, found = text.split("/")[1] + "=", Counter[tuple[str, str]]()
        for lease in self._engine._state.leases.values():
            is_known = lease.shard_queue.shard.coalescer.status < FAILED
            if lease.queue == self.queue and is_known and not lease.flags & DEAD_LEASE:
                for label in unpack_face(lease.face).labels if lease.face else ():
                    if label.startswith(start):
                        found[lease.tenant, label] += 1
        return found

    def over(self, disk: SimDisk) -> None:
        """A life is over: how much is set aside on the disk."""
        self._engine = None
        for platter in disk.platters:
            keys = (decode_index_key(key) for key in platter.rows if key.startswith(INDEX))
            self.aside += sum(key.kind == DELAYED and key.at >= KEY_WAIT_MS for key in keys)
