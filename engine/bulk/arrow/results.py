"""Results as columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...records.result import (
    HAS_FACE,
    HAS_HISTORY,
    HAS_VALUE,
    RESULT_FIELDS,
    Status,
    decode_result,
)
from .faces import FacePage
from .page import KINDS, Numbers, Slices, layout_of, timestamps

__all__ = ["ResultPage"]

_OUTCOMES: Final = pa.array([None, *(status.name.lower() for status in Status)])
_RESULT = layout_of(RESULT_FIELDS, kind=("<u2", 0))


class ResultPage(FacePage):
    """Rows of ``r/``."""

    head, kind = _RESULT, 0x0152
    decode = staticmethod(decode_result)

    def is_sound(self, sizes: Numbers) -> bool:
        """See ``Page``."""
        h = self.heads
        whole = self._value_at + h["value"] + np.where(h["flags"] & HAS_HISTORY, 4, 0)
        is_known = (h["status"] >= 1) & (h["status"] <= len(Status))
        is_face = (h["flags"] & HAS_FACE == 0) | (self._face_bytes > 0)
        return bool((whole == sizes).all() and is_known.all() and is_face.all())

    @cached_property
    def _worker_at(self) -> Numbers:
        h = self.heads
        return self.head.itemsize + h["queue"].astype(np.int64) + h["tenant"]

    @cached_property
    def _error_at(self) -> Numbers:
        return self._worker_at + self.field("worker")

    @cached_property
    def _face_at(self) -> Numbers:
        """Where the face is, or its length before it, or if there is none the value."""
        return self._error_at + self.field("error")

    @cached_property
    def due_ms(self) -> Numbers:
        """When the sweep has to look at each, wall milliseconds; 0: never."""
        has_history = (self.field("flags") & HAS_HISTORY).tolist()
        seconds = [
            int.from_bytes(value[-12:-8], "little") if has else 0
            for value, has in zip(self.values, has_history, strict=True)
        ]
        history = np.array(seconds, np.int64) * 1000
        kept = self.field("retention").astype(np.int64)
        by_history = (history > kept) & ~self._is_kept
        until = np.where(by_history, history, kept)
        return np.where(until > 0, self.field("finished") // 1000 + until, 0)

    @cached_property
    def _face_bytes(self) -> Numbers:
        sizes = np.zeros(self.count, np.int64)
        at = self._face_at
        for place in np.flatnonzero(self.field("flags") & HAS_FACE).tolist():
            begin = int(at[place])
            sizes[place] = int.from_bytes(self.values[place][begin : begin + 2], "little")
        return sizes

    @cached_property
    def _value_at(self) -> Numbers:
        size = self._face_bytes
        return self._face_at + np.where(size > 0, size + 2, 0)

    def packed_faces(self) -> Slices:
        """See ``FacePage``."""
        size = self._face_bytes
        return self.slices(self._face_at + np.where(size > 0, 2, 0), size)

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
