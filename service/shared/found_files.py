"""Files of found tasks: lines of JSON, CSV, Parquet; written as the tasks come, slice by slice.

A file has what is known of a task but its payload: function, preview, labels and reason are as they
were stored, after the application's ``redact=``. Payloads are not redacted: they are there only
where they are asked for, as JSON in ``payload`` or, as they are stored, in ``payload_base64`` with
their ``payload_kind``: bytes, what msgpack or a codec has packed, and values larger than 64 KiB.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import Any, Final, Protocol

from ...errors import UsageError
from ...repository.model.codec import MSGPACK, CodecBytes, PackedBytes, decode_value
from ...repository.model.filters import FINAL
from ...repository.model.json_values import RENDERED, dumps, rendered
from ...repository.model.values import Task

__all__ = [
    "FOUND_FORMATS",
    "MEDIA_TYPES",
    "check_found_format",
    "formats_here",
    "found_chunks",
]

MEDIA_TYPES: Final[Mapping[str, str]] = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
FOUND_FORMATS: Final = tuple(MEDIA_TYPES)
_NUMBERS: Final = ("priority", "attempts", "max_attempts")
_TIMES: Final = ("enqueued_at", "due_at", "expires_at", "finished_at")
_COLUMNS: Final = (
    "id",
    "state",
    "queue",
    "tenant",
    "function",
    "preview",
    "labels",
    *_NUMBERS,
    *_TIMES,
    "worker",
    "reason",
)
_PAYLOAD: Final = ("payload", "payload_base64", "payload_kind", "payload_problem")
_DECODED_BYTES: Final = 64 << 10  # a larger value is passed on as it is stored
_CHUNK_ROWS: Final = 256
_CHUNK_BYTES: Final = 256 << 10
GROUP_ROWS: Final = 1024  # of a row group of Parquet: it is built in one turn of the loop
_GROUP_BYTES: Final = 8 << 20
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class _Writer(Protocol):
    """Encodes rows of one format."""

    def add(self, row: dict[str, Any]) -> None:
        """Take one row."""

    def take(self, *, is_last: bool) -> bytes:
        """The bytes that are ready; at the end all of them."""


def check_found_format(name: str) -> str:
    """One of ``FOUND_FORMATS``, and what it needs is installed; or ``UsageError``."""
    if name not in FOUND_FORMATS:
        raise UsageError(f"expected a format among {', '.join(FOUND_FORMATS)}, got {name!r:.40}")
    if name == "parquet":
        _arrow()
    return name


def formats_here() -> tuple[str, ...]:
    """Those of ``FOUND_FORMATS`` for which all is installed."""
    has_arrow = find_spec("pyarrow") is not None
    return tuple(name for name in FOUND_FORMATS if has_arrow or name != "parquet")


def found_chunks(
    tasks: AsyncIterator[Task],
    format: str,
    *,
    payloads: bool,
    turn: Callable[[], Awaitable[None]] | None = None,
    group_rows: int = GROUP_ROWS,
) -> AsyncIterator[bytes]:
    """Chunks of a file, as the tasks come; a few hundred KiB are in memory, of Parquet 8 MiB.

    Args:
        tasks: from ``Engine.find_all``, with payloads if ``payloads``.
        format: one of ``FOUND_FORMATS``.
        payloads: whether the file has them.
        turn: lets others use the loop, after each chunk; None where there are none.
        group_rows: rows of a row group of Parquet.

    Raises:
        UsageError: there is no such format, or Parquet needs an extra that is not installed.
    """
    check_found_format(format)
    names = _COLUMNS + (_PAYLOAD if payloads else ())
    writer: _Writer
    if format == "parquet":
        writer = _Parquet(names, group_rows)
    else:
        writer = _Csv(names) if format == "csv" else _Lines(names)
    return _chunks(tasks, writer, payloads, turn)


async def _chunks(
    tasks: AsyncIterator[Task],
    writer: _Writer,
    payloads: bool,
    turn: Callable[[], Awaitable[None]] | None,
) -> AsyncIterator[bytes]:
    n = size = 0
    async for task in tasks:
        row = _row(task)
        if payloads:
            value = _payload(task)
            row |= value
            size += sum(len(text) for text in value.values() if text is not None)
        writer.add(row)
        n += 1
        if n >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            n = size = 0
            chunk = writer.take(is_last=False)
            if chunk:
                yield chunk
            if turn is not None:
                await turn()
    yield writer.take(is_last=True)


def _row(task: Task) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(task, name) for name in _COLUMNS}
    row["id"] = str(task.id)
    row["labels"] = dict(task.labels)
    return row


def _payload(task: Task) -> dict[str, str | None]:
    """The payload as text; why not, where it cannot be."""
    found: dict[str, str | None] = dict.fromkeys(_PAYLOAD)
    if task.state in FINAL:
        return found  # it went with the task
    try:
        value = task.payload
        if isinstance(value, PackedBytes) and len(value) <= _DECODED_BYTES:
            value = decode_value(MSGPACK, 0, value, len(value), None)
        if isinstance(value, bytes | bytearray):
            kinds = {PackedBytes: "msgpack", CodecBytes: "codec"}
            found["payload_kind"] = kinds.get(type(value), "bytes")
            found["payload_base64"] = base64.b64encode(value).decode("ascii")
        else:
            shown = rendered(value)
            found["payload"] = dumps(shown.value, is_ascii=False)
            if not shown.is_exact:
                found["payload_kind"] = RENDERED
    except Exception as error:  # noqa: BLE001 - damage, or a codec of the user's: others go on
        found["payload_problem"] = str(error)[:200] or type(error).__name__
    return found


class _Lines:
    """A JSON object a line."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lines: list[str] = []

    def add(self, row: dict[str, Any]) -> None:
        whole = {name: row[name] for name in self._names if name not in _PAYLOAD}
        text = dumps(whole)
        if row.get("payload") is not None:  # JSON already
            text = f'{text[:-1]},"payload":{_ascii(row["payload"])}}}'
        for name in _PAYLOAD[1:]:
            if row.get(name) is not None:
                text = f"{text[:-1]},{json.dumps(name)}:{json.dumps(row[name])}}}"
        self._lines.append(text + "\n")

    def take(self, *, is_last: bool) -> bytes:
        del is_last
        lines, self._lines = self._lines, []
        return "".join(lines).encode("ascii")


def _ascii(text: str) -> str:
    """JSON in ASCII alone: outside of strings it has nothing else."""
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)


class _Csv:
    """CSV with a head; labels and payloads are JSON, times ISO 8601."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._file = io.StringIO()
        self._out = csv.writer(self._file)
        self._out.writerow(names)

    def add(self, row: dict[str, Any]) -> None:
        self._out.writerow([_cell(row[name]) for name in self._names])

    def take(self, *, is_last: bool) -> bytes:
        del is_last
        text = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return text.encode("utf-8", "backslashreplace")


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False) if value else ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


class _Parquet:
    """Row groups of a Parquet file, each written out as it is full."""

    def __init__(self, names: Sequence[str], group_rows: int) -> None:
        self._group_rows = group_rows
        self._pa, self._pq = _arrow()
        pa = self._pa
        text = pa.string()
        kinds = dict.fromkeys(_NUMBERS, pa.int64())
        kinds |= dict.fromkeys(_TIMES, pa.timestamp("us", tz="UTC"))
        kinds["labels"] = pa.map_(text, text)
        self._schema = pa.schema([(name, kinds.get(name, text)) for name in names])
        self._file = io.BytesIO()
        self._sink = _Forward(self._file)
        self._out = self._pq.ParquetWriter(self._sink, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def add(self, row: dict[str, Any]) -> None:
        row["labels"] = list(row["labels"].items())
        self._rows.append(row)
        self._size += 256 + sum(len(row.get(name) or "") for name in _PAYLOAD)

    def take(self, *, is_last: bool) -> bytes:
        if self._rows and (
            is_last or len(self._rows) >= self._group_rows or self._size >= _GROUP_BYTES
        ):
            rows, self._rows, self._size = self._rows, [], 0
            self._out.write_table(self._pa.Table.from_pylist(rows, schema=self._schema))
        if is_last:
            self._out.close()
        data = self._file.getvalue()
        self._file.seek(0)
        self._file.truncate()
        return data


class _Forward(io.RawIOBase):
    """A file that is written once, front to back: it knows its place, and keeps nothing."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__()
        self._out = out
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        n = self._out.write(data)
        self._at += n
        return n

    def tell(self) -> int:
        return self._at


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as exc:
        raise UsageError(
            'Parquet needs pyarrow: pip install pyarrow, or "lodeq[spark]"; or take csv or jsonl'
        ) from exc
    return pa, pq
