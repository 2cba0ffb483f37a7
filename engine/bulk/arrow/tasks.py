"""Tasks as columns, each with where it is."""

from __future__ import annotations

import base64
import json
from functools import cached_property
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa

from ....errors import CorruptionError, RecordCorruptError, UsageError
from ...records import keyspace as ks
from ...records.rows import decode_body, decode_moved
from ...records.task import BODY_FLAG, NO_GHOST, TASK_FIELDS, decode_task
from ...records.workflow import HELD_MS
from .faces import FacePage
from .leases import LeasePage
from .page import KINDS, TYPES, Numbers, Slices, layout_of, timestamps

__all__ = ["TaskPage"]

_STATES: Final = pa.array(["ready", "delayed", "leased", "dead", "waiting"])
_READY, _DELAYED, _LEASED, _DEAD, _WAITING = range(5)
_STATE_OF: Final = {ks.READY: _READY, ks.DELAYED: _DELAYED, ks.DEAD: _DEAD}
_GHOST_AT: Final = TASK_FIELDS.at["ghost"]
_NOT_PLAIN: Final = BODY_FLAG | 3 << 2  # in a body file, or compressed
_TASK = layout_of(TASK_FIELDS, kind=("<u2", 0), attempts_max=("<u2", TASK_FIELDS.at["policy"]))


def _header_text(value: object) -> str:
    """Text as it is, bytes in base64, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return json.dumps(value, default=_header_text_of, ensure_ascii=False)


def _header_text_of(value: object) -> str:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


class TaskPage(FacePage):
    """Rows of ``t/``, joined with what ``s/`` and ``l/`` say of the same ids.

    All three are in the order of the id, so a page needs one short range of each; and of neither,
    as long as no wanted column says where a task is.
    """

    head, kind = _TASK, 0x0154
    decode = staticmethod(decode_task)

    def is_sound(self, sizes: Numbers) -> bool:
        """See ``Page``."""
        h = self.heads
        whole = self._payload_at + h["payload"]
        first = h["first"]
        is_first = (first == ord("r")) | (first == ord("d"))
        return bool((whole == sizes).all() and (h["priority"] <= 9).all() and is_first.all())

    @cached_property
    def _headers_at(self) -> Numbers:
        h = self.heads
        return self.head.itemsize + h["queue"].astype(np.int64) + h["tenant"]

    @cached_property
    def _payload_at(self) -> Numbers:
        return self._face_at + self.field("face")

    @cached_property
    def _face_at(self) -> Numbers:
        return self._headers_at + self.field("headers")

    def packed_faces(self) -> Slices:
        """See ``FacePage``."""
        return self.slices(self._face_at, self.field("face").astype(np.int64))

    # -- where they are ----------------------------------------------------------------

    def _beside(self, family: bytes) -> list[tuple[int, bytes, bytes]]:
        """Rows of another family of the same ids: place on the page, key and value."""
        first, last = self.keys[0][ks.ROW_ID], self.keys[-1][ks.ROW_ID]
        found = [
            row
            for batch in self.reader.batches(family + first, family + last + b"\0")
            for row in batch
        ]
        if not found:
            return []
        places = {key[ks.ROW_ID]: place for place, key in enumerate(self.keys)}
        rows = ((places.get(key[ks.ROW_ID]), key, value) for key, value in found)
        return [(place, key, value) for place, key, value in rows if place is not None]

    @cached_property
    def _leases(self) -> tuple[list[int], LeasePage] | None:
        """Which are leased, and their leases."""
        found = self._beside(ks.LEASE)
        if not found:
            return None
        rows = [(key, value) for _, key, value in found]
        return [place for place, _, _ in found], LeasePage(self.reader, rows)

    @cached_property
    def places(self) -> dict[str, Numbers]:
        """State, attempts and the times that go with it, of every task."""
        h, n = self.heads, self.count
        is_ready = h["first"] == ord("r")
        times = {name: np.zeros(n, np.int64) for name in ("leased", "until", "died")}
        found = {
            "state": np.where(is_ready, _READY, _DELAYED),
            "attempts": np.zeros(n, np.int32),
            "ready": np.where(is_ready, h["seq"], 0),
            "due": np.where(is_ready, 0, h["due"]),
            **times,
        }
        for place, key, value in self._beside(ks.MOVED):
            self._move(found, place, key, value)
        if self._leases is not None:
            at, page = self._leases
            found["state"][at] = _LEASED
            found["due"][at] = found["died"][at] = 0
            found["attempts"][at] = page.field("attempts")
            found["ready"][at] = page.field("seq")
            found["leased"][at] = page.field("leased")
            found["until"][at] = page.until()
        held = (found["state"] == _DELAYED) & (found["due"] >= HELD_MS)
        found["state"][held] = _WAITING
        found["due"][held] = 0
        return found

    def _move(self, found: dict[str, Numbers], place: int, key: bytes, value: bytes) -> None:
        """To the index key of an ``s/`` row."""
        try:
            if len(value) < 12 or value[:2] != b"\x53\x01":
                decode_moved(value)  # says why
            rest = value[4:-8].split(b"\0", 2)[2]
            kind, at = rest[:1], int.from_bytes(rest[1:9], "big")
            state = _STATE_OF[kind]
        except (LookupError, RecordCorruptError) as exc:
            raise self.strange(key, exc) from exc
        found["state"][place] = state
        found["attempts"][place] = int.from_bytes(value[2:4], "little")
        found["ready"][place] = int.from_bytes(rest[2:10], "big") if state == _READY else 0
        found["due"][place] = at if state == _DELAYED else 0
        found["died"][place] = at if state == _DEAD else 0

    @cached_property
    def _workers(self) -> list[bytes | None]:
        workers: list[bytes | None] = [None] * self.count
        if self._leases is not None:
            for place, worker in zip(self._leases[0], self._leases[1].workers(), strict=True):
                workers[place] = worker
        return workers

    # -- columns -----------------------------------------------------------------------

    def state(self) -> Any:
        return _STATES.take(pa.array(self.places["state"]))

    def attempts(self) -> Any:
        return pa.array(self.places["attempts"].astype(np.int32))

    def run_at(self) -> Any:
        due = self.field("due")
        return timestamps(np.where(due >= HELD_MS, 0, due) * 1000)

    def ready_at(self) -> Any:
        return timestamps(self.places["ready"])

    def due_at(self) -> Any:
        return timestamps(self.places["due"] * 1000)

    def leased_at(self) -> Any:
        return timestamps(self.places["leased"])

    def lease_until(self) -> Any:
        return timestamps(self.places["until"])

    def died_at(self) -> Any:
        return timestamps(self.places["died"] * 1000)

    def worker(self) -> Any:
        return self.text(self._workers)

    def dedup_hash(self) -> Any:
        hashes = self.slices(_GHOST_AT, 16)
        return pa.array([None if one == NO_GHOST else one for one in hashes], pa.binary())

    def dedup_until(self) -> Any:
        return timestamps(self.field("ghost_until") * 1000)

    def headers(self) -> Any:
        sizes = self.field("headers")
        if not sizes.any():
            return self._maps([{}] * self.count)
        packed = self.slices(self._headers_at, sizes)
        return self._maps(
            [
                self._headers_of(key, raw) if raw else {}
                for key, raw in zip(self.keys, packed, strict=True)
            ]
        )

    def _headers_of(self, key: bytes, raw: bytes) -> dict[str, str]:
        try:
            found = msgpack.unpackb(raw, timestamp=3, strict_map_key=False)
            return {str(name): _header_text(value) for name, value in found.items()}
        except (
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            msgpack.exceptions.UnpackException,
        ) as exc:
            raise self.strange(key, f"headers: {exc}") from exc

    def _maps(self, maps: list[dict[str, str]]) -> Any:
        return pa.array([list(one.items()) for one in maps], TYPES["map"])

    def payload(self) -> Any:
        size, flags = self.field("payload").astype(np.int64), self.field("flags")
        if not (flags & _NOT_PLAIN).any():
            return self.binary(self._payload_at, size)
        stored, is_outside = self.slices(self._payload_at, size), flags & BODY_FLAG != 0
        kept = np.ones(self.count, np.bool_)
        for place in np.flatnonzero(is_outside).tolist():
            body = self._body(self.keys[place])
            kept[place] = body is not None
            stored[place] = body or b""
        return pa.array(self.opened(stored, kept), pa.binary())

    def _body(self, key: bytes) -> bytes | None:
        """A payload out of a body file; None if it is known to be lost."""
        if self.bodies is None:
            raise UsageError("payloads lie in body files: give a reader of them (bodies=…)")
        raw = self.reader.get(ks.BODY + key[ks.ROW_ID])
        if raw is None:
            raise self.strange(key, "no row says where its payload lies")
        row = decode_body(raw)
        if not row.size:
            return None
        body = self.bodies(self.reader.shard, row)
        if body is None:
            raise CorruptionError(f"shard {self.reader.shard}, row {key!r}: {row} is not there")
        return body

    def payload_kind(self) -> Any:
        return KINDS.take(pa.array(self.field("flags") & 3))

    def payload_bytes(self) -> Any:
        return pa.array(self.field("raw").astype(np.int64))
