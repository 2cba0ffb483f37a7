"""Rules of a queue, as its state in memory has them: read without a lookup.

``QueueState.rules`` is one of these; ``UNSET`` where nothing is set. An object never changes: new
settings make a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....engine.records.queues.queue_settings import key_setting
from ....engine.values import Setting

__all__ = ["NOT_SET", "UNSET", "QueueRules"]

NOT_SET: Final = -1  # of a number: the default holds


class QueueRules:
    """The settings of one queue, in the units of the engine."""

    __slots__ = (
        "concurrency",
        "dead_bytes",
        "dead_max",
        "has_faces",
        "history_bytes",
        "history_ms",
        "history_rows",
        "key_label",
        "key_n",
        "rate_n",
        "rate_period_ms",
        "stored",
    )

    def __init__(self, stored: Mapping[str, Setting]) -> None:
        self.stored = stored
        self.history_ms = _number(stored, "history")  # 0: no history
        self.history_rows = _number(stored, "history_rows")
        self.history_bytes = _number(stored, "history_bytes")
        self.dead_max = _number(stored, "dead_max")
        self.dead_bytes = _number(stored, "dead_bytes")
        faces = stored.get("faces")
        self.has_faces = faces is None or faces.value is not False
        self.concurrency = _number(stored, "concurrency")
        self.rate_n = self.rate_period_ms = NOT_SET
        rate = stored.get("rate")
        if rate is not None and isinstance(rate.value, tuple) and len(rate.value) == 2:
            self.rate_n, self.rate_period_ms = rate.value
        self.key_n, self.key_label = NOT_SET, ""
        keys = stored.get("key_concurrency")
        if keys is not None and isinstance(keys.value, tuple) and keys.value:
            self.key_n, self.key_label = key_setting(keys.value)


def _number(stored: Mapping[str, Setting], name: str) -> int:
    one = stored.get(name)
    if one is None or isinstance(one.value, bool) or not isinstance(one.value, int):
        return NOT_SET
    return one.value


UNSET: Final = QueueRules({})
