"""Results as columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...records.result import HAS_VALUE, RESULT_HEAD, Status, decode_result
from .page import KINDS, Numbers, Page, layout, timestamps

__all__ = ["ResultPage"]

_OUTCOMES: Final = pa.array([None, *(status.name.lower() for status in Status)])
_RESULT = layout(
    RESULT_HEAD.size,
    kind=("<u2", 0),
    flags=("<u2", 2),
    status=("u1", 4),
    priority=("u1", 5),
    attempts=("<u2", 6),
    created=("<i8", 24),
    ready=("<i8", 32),
    leased=("<i8", 40),
    finished=("<i8", 48),
    retention=("<u8", 56),
    value=("<u4", 64),
    raw=("<u4", 68),
    error=("<u4", 72),
    worker=("<u2", 76),
    queue=("u1", 78),
    tenant=("u1", 79),
)


class ResultPage(Page):
    """Rows of ``r/``."""

    head, kind = _RESULT, 0x0152
    decode = staticmethod(decode_result)

    def is_sound(self, sizes: Numbers) -> bool:
        """See ``Page``."""
        h = self.heads
        whole = self._value_at + h["value"]
        is_known = (h["status"] >= 1) & (h["status"] <= len(Status))
        return bool((whole == sizes).all() and is_known.all())

    @cached_property
    def _worker_at(self) -> Numbers:
        h = self.heads
        return self.head.itemsize + h["queue"].astype(np.int64) + h["tenant"]

    @cached_property
    def _error_at(self) -> Numbers:
        return self._worker_at + self.field("worker")

    @cached_property
    def _value_at(self) -> Numbers:
        return self._error_at + self.field("error")

    @cached_property
    def _is_kept(self) -> Numbers:
        return self.field("flags") & HAS_VALUE != 0

    def outcome(self) -> Any:
        return _OUTCOMES.take(pa.array(self.field("status")))

    def error(self) -> Any:
        return self.text(self.binary(self._error_at, self.field("error").astype(np.int64)))

    def worker(self) -> Any:
        return self.text(self.binary(self._worker_at, self.field("worker").astype(np.int64)))

    def ready_at(self) -> Any:
        return timestamps(self.field("ready"))

    def leased_at(self) -> Any:
        return timestamps(self.field("leased"))

    def finished_at(self) -> Any:
        return timestamps(self.field("finished"))

    def retention_ms(self) -> Any:
        return pa.array(self.field("retention").astype(np.int64))

    def value(self) -> Any:
        stored = self.slices(self._value_at, self.field("value").astype(np.int64))
        return pa.array(self.opened(stored, self._is_kept), pa.binary())

    def value_kind(self) -> Any:
        return KINDS.take(pa.array(np.where(self._is_kept, self.field("flags") & 3, 3)))

    def value_bytes(self) -> Any:
        return pa.array(self.field("raw").astype(np.int64))
