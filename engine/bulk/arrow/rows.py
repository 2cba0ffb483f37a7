"""Index rows, dedup keys and undecoded rows as columns."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from ....errors import InvariantError, RecordCorruptError
from ...records import keyspace as ks
from ...records.rows import GHOST_FIELDS, INDEX_FIELDS, decode_ghost, decode_index_row
from ...records.workflow import HELD_MS
from .page import Numbers, Page, fixed, layout, layout_of, timestamps

__all__ = ["DeadPage", "DelayedPage", "GhostPage", "IndexPage", "RawPage", "ReadyPage"]

_INDEX = layout_of(INDEX_FIELDS, kind=("<u2", 0))
_GHOST = layout_of(GHOST_FIELDS, kind=("<u2", 0))
# How index keys end.
_READY_KEY = layout(26, kind=("u1", 0), priority=("u1", 1), at=(">i8", 2), id=("V16", 10))
_DELAYED_KEY = layout(33, kind=("u1", 0), at=(">i8", 1), id=("V16", 17))
_DEAD_KEY = layout(25, kind=("u1", 0), at=(">i8", 1), id=("V16", 9))
# What stands before that: queue and tenant.
_TENANT_QUEUE: Final = re.compile(rb"q/([^\0]+)\0([^\0]*)\0")


class IndexPage(Page):
    """Rows of one kind under ``q/``. Their keys say as much as their values."""

    head, kind = _INDEX, 0x0149
    decode = staticmethod(decode_index_row)
    tail: ClassVar[Any]
    letter: ClassVar[bytes]

    def is_sound(self, sizes: Numbers) -> bool:
        """See ``Page``."""
        h = self.heads
        return bool(
            (self.head.itemsize + h["reason"] == sizes).all() and (h["priority"] <= 9).all()
        )

    @cached_property
    def ids(self) -> bytes:
        """See ``Page``: here they are behind the rest."""
        ids: bytes = self.ends["id"].tobytes()
        return ids

    @cached_property
    def ends(self) -> Any:
        """The part of the keys behind queue and tenant, as a structured array."""
        size = self.tail.itemsize
        ends = b"".join([key[-size:] for key in self.keys])
        if len(ends) != size * self.count:
            raise self._strange_key()
        found = np.frombuffer(ends, self.tail)
        if (found["kind"] != self.letter[0]).any():
            raise self._strange_key()
        return found

    def _strange_key(self) -> Exception:
        for key in self.keys:
            try:
                if ks.decode_index_key(key).kind != self.letter:
                    return self.strange(key, f"not a key of the kind {self.letter!r}")
            except RecordCorruptError as exc:
                return self.strange(key, exc)
        return InvariantError(f"shard {self.reader.shard}: keys are refused that can be decoded")

    @cached_property
    def _tenant_queues(self) -> tuple[Any, Any]:
        """Queue and tenant, of few different ones."""
        size = self.tail.itemsize
        tenant_queues = pa.array(
            [key[:-size] for key in self.keys], pa.binary()
        ).dictionary_encode()
        found = [
            _TENANT_QUEUE.fullmatch(tenant_queue.as_py())
            for tenant_queue in tenant_queues.dictionary
        ]
        names = [match.groups() for match in found if match is not None]
        if len(names) != len(found):
            raise self._strange_key()
        return tuple(
            self.text([name[i] for name in names]).take(tenant_queues.indices) for i in range(2)
        )

    def queue(self) -> Any:
        return self._tenant_queues[0]

    def tenant(self) -> Any:
        return self._tenant_queues[1]

    def reason(self) -> Any:
        return self.text(self.binary(self.head.itemsize, self.field("reason").astype(np.int64)))


class ReadyPage(IndexPage):
    """Rows that can be claimed."""

    tail, letter = _READY_KEY, ks.READY

    def ready_at(self) -> Any:
        return timestamps(self.ends["at"])


class DelayedPage(IndexPage):
    """Rows with a time ahead."""

    tail, letter = _DELAYED_KEY, ks.DELAYED

    def due_at(self) -> Any:
        at = self.ends["at"].astype(np.int64)
        return timestamps(np.where(at >= HELD_MS, 0, at) * 1000)  # none: it waits for others


class DeadPage(IndexPage):
    """Dead letters."""

    tail, letter = _DEAD_KEY, ks.DEAD

    def died_at(self) -> Any:
        return timestamps(self.ends["at"].astype(np.int64) * 1000)

    def forget_at(self) -> Any:
        return timestamps(self.field("expires") * 1000)


class GhostPage(Page):
    """Rows of ``g/``."""

    head, kind = _GHOST, 0x0147
    decode = staticmethod(decode_ghost)

    def is_sound(self, sizes: Numbers) -> bool:
        """See ``Page``."""
        return bool((sizes >= self.head.itemsize).all())

    @cached_property
    def ids(self) -> bytes:
        """See ``Page``: here they are in the values."""
        ids: bytes = self.heads["id"].tobytes()
        return ids

    def dedup_hash(self) -> Any:
        return fixed(self.key_ids().tobytes(), 16)


class RawPage(Page):
    """Rows as they are."""

    def family(self) -> Any:
        return self.text([key.partition(b"/")[0] for key in self.keys])

    def key(self) -> Any:
        return pa.array(self.keys, pa.binary())

    def value(self) -> Any:
        return pa.array(self.values, pa.binary())
