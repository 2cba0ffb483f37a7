"""Where a task stands that waits until there is room under the limit of its key.

It is a delayed row (``keyspace.py``) whose due time is none: bit 62, then 58 bits of the key's
hash, then 4 of the inverted priority. So the rows of one key lie side by side in the order in which
they are let go: priority, then seq. All of them stand behind what waits for a time, and behind what
waits for other tasks (``workflow.HELD_MS``).

A key is a label of the task, ``customer=acme``; whose value counts is a setting of the queue.
"""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

from ..face import label_in
from ..keyspace import DUE_AT, SEQ_AT

__all__ = [
    "KEY_WAIT_MS",
    "NO_KEY",
    "first_due",
    "is_key_wait",
    "key_hash",
    "key_of_row",
    "label_key",
    "wait_due",
]

KEY_WAIT_MS: Final[int] = 1 << 62
NO_KEY: Final = 0
_HASH_MASK: Final = (1 << 58) - 1


def key_hash(label: str) -> int:
    """The key of a label, ``name=value``: 58 bits, never ``NO_KEY``."""
    return (xxh3_64_intdigest(label.encode("utf-8", "surrogatepass")) & _HASH_MASK) or 1


def label_key(face: bytes, start: str) -> int:
    """The key of the label that begins with ``start``, such as ``customer=``; ``NO_KEY``: none."""
    label = label_in(face, start)
    return NO_KEY if label is None else key_hash(label)


def first_due(key: int) -> int:
    """The least due time of all rows that wait for ``key``; that of ``key + 1`` is behind them."""
    return KEY_WAIT_MS | key << 4


def wait_due(key: int, priority: int) -> int:
    """The due time of a row that waits for ``key``; ``priority``: 0 to 9."""
    return KEY_WAIT_MS | key << 4 | (9 - priority)


def is_key_wait(row_key: bytes) -> bool:
    """Whether a delayed row waits for its key."""
    return int.from_bytes(row_key[DUE_AT:SEQ_AT], "big") >= KEY_WAIT_MS


def key_of_row(row_key: bytes) -> int:
    """The key that a row waits for."""
    return (int.from_bytes(row_key[DUE_AT:SEQ_AT], "big") & (KEY_WAIT_MS - 1)) >> 4
