"""Sizes that production never changes, made small: what is rare there is common in a simulation.

A window of 1,024 rows is refilled once in a thousand claims, a chunk holds 4,096 tasks: in a run of
some hundred operations none of that would ever happen. So a seed may shrink each of them. None is
part of a format, and none may change what an engine answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from lodeq.coalescer import commit_loop, fsync
from lodeq.repository.background import expiry_sweep, reaper
from lodeq.repository.state import engine_state, pages
from lodeq.repository.state.caches import ready_cache
from lodeq.repository.tasks import batches, claim_order, fast_path, record_fetch
from lodeq.repository.tasks.operators import admin

KNOBS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (commit_loop, "TICK_OPS_MAX", (8, 40)),
    (commit_loop, "GROUP_BYTES_MAX", (600, 4000)),
    (commit_loop, "ALONE_TICKS_MIN", (1, 3)),
    (commit_loop, "INLINE_MAX", (1, 4)),
    (fsync, "SYNC_COMMITS_MAX", (2, 9)),
    (fsync, "FLUSH_COMMITS_MAX", (5, 30)),
    (engine_state, "HELD_BYTES_MAX", (0, 500)),
    (fast_path, "MANY_MAX", (1, 3)),
    (batches, "CHUNK_TASKS_MAX", (1, 3)),
    (claim_order, "CLAIM_BYTES_MAX", (300, 2000)),
    (record_fetch, "SCAN_ROWS_MIN", (1, 2)),
    (pages, "SLICE", (1, 3)),
    (reaper, "SLICE", (1, 3)),
    (expiry_sweep, "SLICE", (1, 3)),
    (expiry_sweep, "SLICE_FINAL", (1, 3)),
    (admin, "SLICE", (1, 3)),
)
READY_ROWS = (1, 2, 5)


@contextmanager
def turned(draw: random.Random, likely: float) -> Iterator[set[str]]:
    """Each knob turned with the probability ``likely``; their names."""
    names: set[str] = set()
    with ExitStack() as stack:
        for module, name, values in KNOBS:
            if draw.random() < likely:
                stack.enter_context(patch.object(module, name, draw.choice(values)))
                names.add(name)
        if draw.random() < likely:
            cap = draw.choice(READY_ROWS)
            stack.enter_context(patch.object(ready_cache, "READY_ROWS", cap))
            stack.enter_context(patch.object(claim_order, "REFILL_ROWS", draw.randint(1, cap)))
        yield names
