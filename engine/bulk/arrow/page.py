"""A page: some rows of one table, on their way to become columns. It holds what all tables share.

Records begin with a header of fixed offsets, so the headers of a page, put together, *are* a table:
NumPy reads a field of all of them at once. Only what a wanted column needs is touched. Tails
(names, payloads) of different sizes are sliced row by row, which costs about 0.1 µs each.

Whatever is believed has been checked: type, version, and that lengths add up, for all rows at once;
the checksum of each record where that is asked for. (Below, RocksDB has checked the block.) Where a
check fails, the plain decoder of the record says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from ....errors import InvariantError, RecordCorruptError
from ...records.compression import inflate
from ...records.fixed_fields import FixedFields
from ...records.frame import checksum
from ...records.rows import BodyRow
from ...store.port import Rows
from ..reader import ShardReader

__all__ = [
    "KINDS",
    "TYPES",
    "Bodies",
    "Numbers",
    "Page",
    "Slices",
    "fixed",
    "layout",
    "layout_of",
    "pick",
    "timestamps",
    "uuids",
]

# Reads a payload of a shard out of a body file. None: it is not there.
Bodies = Callable[[int, BodyRow], bytes | None]
Numbers = Any  # an array of numbers
Slices = list[bytes]

TYPES: Final = {
    "binary": pa.binary(), "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(),
    "map": pa.map_(pa.string(), pa.string()), "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
# By the codes of ``struct``; those of bytes have none.
_TYPES: Final = {"B": "u1", "H": "<u2", "I": "<u4", "i": "<i4", "Q": "<u8", "q": "<i8"}
KEY_BYTES: Final = 18  # of a family's two letters and an id
KINDS: Final = pa.array(["raw", "msgpack", "codec", None])


def layout(size: int, **fields: tuple[str, int]) -> Any:
    """NumPy type of ``size`` bytes, from the type and the offset of each field."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [at for _, at in fields.values()],
            "itemsize": size,
        }
    )


def layout_of(fields: FixedFields, **more: tuple[str, int]) -> Any:
    """NumPy type of the fixed fields of a record.

    Args:
        fields: their table; bytes that mean nothing are left out.
        more: type and offset of what is read in another way than the table has it, by name.
    """
    found = {
        name: (_TYPES.get(code, f"V{code[:-1]}"), fields.at[name])
        for name, code in fields.codes.items()
        if code != "x"
    }
    return layout(fields.whole.size, **found | more)


def _oddity(key: bytes) -> int:
    return abs(len(key) - KEY_BYTES)


def pick(data: bytes, starts: Numbers, size: int) -> Any:
    """``size`` bytes of ``data`` from each of ``starts``; the caller knows that they are there."""
    first = np.frombuffer(data, np.dtype(f"V{size}"), 1)
    windows = np.lib.stride_tricks.as_strided(first, (len(data) - size + 1,), (1,), writeable=False)
    return windows[starts]


def timestamps(us: Numbers, *, is_null: Numbers = None) -> Any:
    """Microseconds; 0 is null unless said otherwise."""
    us = np.ascontiguousarray(us, np.int64)
    mask = us == 0 if is_null is None else is_null
    return pa.array(us, mask=mask if mask.any() else None).cast(TYPES["timestamp"])


def fixed(data: Any, size: int) -> Any:
    """Values of ``size`` bytes each, which ``data`` has one after the other."""
    count = len(data) // size
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def uuids(data: bytes) -> Any:
    """Ids as text, of ids one after the other."""
    count = len(data) // 16
    digits = np.frombuffer(data.hex().encode("ascii"), np.uint8).reshape(count, 32)
    text = np.full((count, 36), ord("-"), np.uint8)
    for to, at, size in ((0, 0, 8), (9, 8, 4), (14, 12, 4), (19, 16, 4), (24, 20, 12)):
        text[:, to : to + size] = digits[:, at : at + size]
    offsets = np.arange(count + 1, dtype=np.int32) * 36
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


class Page:
    """Some rows of one table. A method a column; what several need is found once."""

    head: ClassVar[Any] = None  # the layout of the header
    kind: ClassVar = 0  # its first two bytes: type and version

    def __init__(
        self,
        reader: ShardReader,
        rows: Rows,
        bodies: Bodies | None = None,
        *,
        verify: bool = False,
    ) -> None:
        self.reader, self.rows, self.bodies = reader, rows, bodies
        self.values = [value for _, value in rows]
        self.count = len(rows)
        if self.head is not None:
            self._check(verify=verify)

    @cached_property
    def keys(self) -> list[bytes]:
        """In order."""
        return [key for key, _ in self.rows]

    # -- headers -----------------------------------------------------------------------

    @cached_property
    def heads(self) -> Any:
        """The headers, as a structured array."""
        return pick(self._joined, self._starts, self.head.itemsize).view(self.head)

    def field(self, name: str) -> Numbers:
        """A field of all headers."""
        return self.heads[name]

    def _check(self, *, verify: bool) -> None:
        sizes = np.fromiter(map(len, self.values), np.int64, self.count)
        if (sizes < self.head.itemsize + 8).any():
            raise self.refusal()
        self._joined, self._starts = b"".join(self.values), np.cumsum(sizes) - sizes
        if (self.field("kind") != self.kind).any():
            raise self.refusal()
        if not self.is_sound(sizes - 8):
            raise self.refusal()
        if verify and any(checksum(value[:-8]) != value[-8:] for value in self.values):
            raise self.refusal()

    @staticmethod
    def decode(raw: bytes) -> object:
        """The plain decoder of a value: it says what is wrong."""
        raise NotImplementedError

    def is_sound(self, sizes: Numbers) -> bool:
        """Whether headers can be believed, of records of so many bytes before the checksum."""
        raise NotImplementedError

    def refusal(self) -> Exception:
        """The error for the first row that does not decode."""
        for key, value in self.rows:
            try:
                type(self).decode(value)
            except RecordCorruptError as exc:
                return self.strange(key, exc)
        return InvariantError(f"shard {self.reader.shard}: rows are refused that can be decoded")

    def strange(self, key: bytes, why: object) -> RecordCorruptError:
        """The error for one row that does not decode."""
        return RecordCorruptError(f"shard {self.reader.shard}, row {key!r}: {why}")

    # -- tails -------------------------------------------------------------------------

    def slices(self, start: Numbers, size: Numbers) -> Slices:
        """The slice of each value that begins at ``start`` and has ``size`` bytes."""
        start, end = np.broadcast_to(start, self.count), np.broadcast_to(start + size, self.count)
        if self.count and (start == start[0]).all() and (end == end[0]).all():
            a, b = int(start[0]), int(end[0])
            return [value[a:b] for value in self.values]
        spans = zip(self.values, start.tolist(), end.tolist(), strict=True)
        return [value[a:b] for value, a, b in spans]

    def binary(self, start: Numbers, size: Numbers) -> Any:
        """The same as a column; quicker where they are all of one size, as names often are."""
        size = np.broadcast_to(size, self.count)
        if (size == size[0]).all() and size[0] > 0:
            found = pick(self._joined, self._starts + start, int(size[0]))
            return fixed(found.tobytes(), int(size[0]))
        return pa.array(self.slices(start, size), pa.binary())

    def text(self, parts: Any) -> Any:
        """UTF-8, a binary column or a list of bytes and None, as a column of text."""
        try:
            if not isinstance(parts, pa.Array):
                parts = pa.array(parts, pa.binary())
            return parts.cast(pa.string())
        except pa.ArrowInvalid as exc:
            raise RecordCorruptError(
                f"shard {self.reader.shard}, rows {self.keys[0]!r} to {self.keys[-1]!r}: {exc}"
            ) from exc

    def opened(self, stored: Slices, kept: Numbers) -> list[bytes | None]:
        """Payloads or results as they were handed in; None for those that are not ``kept``."""
        codes = self.field("flags") >> 2 & 3
        if kept.all() and not codes.any():
            return list(stored)
        return [
            (inflate(code, data, size) if code else data) if is_kept else None
            for data, code, size, is_kept in zip(
                stored, codes.tolist(), self.field("raw").tolist(), kept.tolist(), strict=True
            )
        ]

    # -- columns that most tables have -------------------------------------------------

    @cached_property
    def ids(self) -> bytes:
        """All ids, one after the other."""
        ids: bytes = self.key_ids().tobytes()
        return ids

    def key_ids(self) -> Numbers:
        """The last sixteen bytes of each key."""
        joined = b"".join(self.keys)
        if set(map(len, self.keys)) != {KEY_BYTES}:
            raise self.strange(max(self.keys, key=_oddity), "the key is not of an id")
        return np.frombuffer(joined, np.uint8).reshape(self.count, KEY_BYTES)[:, 2:]

    def shard(self) -> Any:
        return pa.array(np.full(self.count, self.reader.shard, np.int32))

    def id(self) -> Any:
        return fixed(self.ids, 16)

    def task_id(self) -> Any:
        return uuids(self.ids)

    def id_at(self) -> Any:
        ms = np.frombuffer(self.ids, ">u8")[::2] >> 16
        return timestamps(ms.astype(np.int64) * 1000)

    def priority(self) -> Any:
        return pa.array(self.field("priority").astype(np.int32))

    def attempts(self) -> Any:
        return pa.array(self.field("attempts").astype(np.int32))

    def max_attempts(self) -> Any:
        return pa.array(self.field("attempts_max").astype(np.int32))

    def queue(self) -> Any:
        return self.text(self.binary(self.head.itemsize, self.field("queue").astype(np.int64)))

    def tenant(self) -> Any:
        start = self.head.itemsize + self.field("queue").astype(np.int64)
        return self.text(self.binary(start, self.field("tenant").astype(np.int64)))

    def created_at(self) -> Any:
        return timestamps(self.field("created"))

    def expires_at(self) -> Any:
        return timestamps(self.field("expires") * 1000)

    def record_bytes(self) -> Any:
        return pa.array(self.field("record").astype(np.int64))
