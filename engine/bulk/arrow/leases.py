"""Leases as columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ...records.lease import DEAD_LEASE, EXPORTED, LEASE_END_US, LEASE_FIELDS, decode_lease
from .page import Numbers, Page, layout_of, timestamps

__all__ = ["LeasePage"]

_LEASE = layout_of(LEASE_FIELDS, kind=("<u2", 0), attempts_max=("<u2", LEASE_FIELDS.at["policy"]))


class LeasePage(Page):
    """Rows of ``l/``. Their tokens are nobody's business."""

    head, kind = _LEASE, 0x014C
    decode = staticmethod(decode_lease)

    def is_sound(self, sizes: Numbers) -> bool:
        """See ``Page``."""
        h = self.heads
        whole = self._worker_at + h["worker"]
        is_dead = h["flags"] & DEAD_LEASE != 0  # the row it goes back as stands behind
        fits = np.where(is_dead, whole < sizes, whole == sizes)
        return bool(fits.all() and (h["priority"] <= 9).all())

    @cached_property
    def _worker_at(self) -> Numbers:
        h = self.heads
        return self.head.itemsize + h["queue"].astype(np.int64) + h["tenant"]

    def workers(self) -> list[bytes]:
        """By whom they are held."""
        return self.slices(self._worker_at, self.field("worker"))

    def worker(self) -> Any:
        return self.text(self.workers())

    def epoch(self) -> Any:
        return pa.array(self.field("epoch").astype(np.int64))

    def exported(self) -> Any:
        return pa.array(self.field("flags") & EXPORTED != 0)

    def ready_at(self) -> Any:
        return timestamps(self.field("seq"))

    def leased_at(self) -> Any:
        return timestamps(self.field("leased"))

    def until(self) -> Numbers:
        """When they end: a row that was written after a heartbeat says so."""
        end, lease_ms = self.field("end"), self.field("lease_ms")
        after = np.where(end != 0, end * np.int64(LEASE_END_US), lease_ms * np.int64(1000))
        return np.asarray(self.field("leased") + after)

    def lease_until(self) -> Any:
        return timestamps(self.until())
