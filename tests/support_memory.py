"""What is still there of payloads, anywhere in the process."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["only_new", "payloads_held"]


@contextmanager
def only_new() -> Iterator[None]:
    """Whoever counts inside counts what was made inside: the rest need not be gone through."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def payloads_held(least: int) -> int:
    """How many bytes objects of ``least`` bytes and more something holds on to.

    Counted among what all containers refer to, so whoever looks must not have any in a local.
    """
    gc.collect()
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    todo = gc.get_objects()
    while todo:
        inside = gc.get_referents(*todo)
        todo = []
        for one in inside:
            if isinstance(one, bytes | bytearray):
                if len(one) >= least:
                    found[id(one)] = one
            elif not gc.is_tracked(one) and id(one) not in seen and type(one) in (tuple, dict):
                seen[id(one)] = one  # the collector leaves out what holds no containers
                todo.append(one)
    return len(found)
