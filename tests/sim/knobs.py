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

from lodeq.coalescer import coalescer, syncing
from lodeq.repository import (
    admin,
    chunks,
    core,
    hot,
    loading,
    picking,
    reading,
    reaper,
    sweep,
    window,
)

KNOBS: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (coalescer, "TICK_OPS_MAX", (8, 40)),
    (coalescer, "GROUP_BYTES_MAX", (600, 4000)),
    (coalescer, "ALONE_TICKS_MIN", (1, 3)),
    (coalescer, "INLINE_MAX", (1, 4)),
    (syncing, "SYNC_COMMITS_MAX", (2, 9)),
    (syncing, "FLUSH_COMMITS_MAX", (5, 30)),
    (core, "HELD_BYTES_MAX", (0, 500)),
    (hot, "MANY_MAX", (1, 3)),
    (chunks, "CHUNK_TASKS_MAX", (1, 3)),
    (picking, "CLAIM_BYTES_MAX", (300, 2000)),
    (reading, "SCAN_ROWS_MIN", (1, 2)),
    (loading, "SLICE", (1, 3)),
    (reaper, "SLICE", (1, 3)),
    (sweep, "SLICE", (1, 3)),
    (sweep, "SLICE_FINAL", (1, 3)),
    (admin, "SLICE", (1, 3)),
)
WINDOW_ROWS = (1, 2, 5)


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
            cap = draw.choice(WINDOW_ROWS)
            stack.enter_context(patch.object(window, "WINDOW_ROWS", cap))
            stack.enter_context(patch.object(picking, "REFILL_ROWS", draw.randint(1, cap)))
        yield names
