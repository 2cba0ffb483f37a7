"""LedgerQ as a source: a queue, or a queue of dead letters, which is a folder like any other.

A message that has been read there is over, unless it failed and nobody has acknowledged it since:
LedgerQ never hands such a message out again; here it is imported with its failures counted.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgpack

from ...engine.records.face import NO_FACE, Face, unpack_face
from ...errors import SegmentCorruptError, UsageError
from ...repository.model.faces import labels_of, packed_face
from ...segments.detect import DetectedPath
from ...segments.formats.ledgerq.codec import DATA, content
from ...segments.formats.ledgerq.folder import Directory, dead_letter, read_directory
from ...segments.formats.ledgerq.state import DedupEntry, RetryEntry
from ...segments.item import Damage, Record
from .entries import Entry, SourceItem, Unreadable, digest
from .logs import LogSource

__all__ = ["PRIORITIES", "TASK_HEADER", "LedgerQ"]

# Low is what a message has unless it says otherwise, and so is 5.
PRIORITIES: Final = (5, 7, 9)
TASK_HEADER: Final = "lodeq.task"  # what an export could not say otherwise
_DEAD_HEADERS: Final = frozenset(
    {"dlq.original_msg_id", "dlq.retry_count", "dlq.failure_reason", "dlq.last_failure"}
)
_NS_PER_MS: Final = 1_000_000
_KINDS: Final = range(3)
_MS_MAX: Final = 1 << 47
_HEADERS_B64_MAX: Final = 1 << 17
_READ: Final = "read already"


class LedgerQ(LogSource):
    """A folder, or a single segment: that has neither position nor failures, so all is unread."""

    kind = "ledgerq"
    formats = frozenset({"ledgerq"})

    def __init__(self, detected: DetectedPath) -> None:
        super().__init__(detected)
        self._directory: Directory | None = None
        self._highest = 0
        self._failures: Mapping[int, RetryEntry] = {}
        self._keys: dict[int, DedupEntry] = {}
        if detected.is_folder:
            self._directory = read_directory(detected.path)
            self._failures = self._directory.failures
            dedup = self._directory.dedup
            self._keys = {key.message_id: key for key in dedup.entries} if dedup else {}

    def _beside(self) -> Iterator[Unreadable]:
        for problem in self._directory.problems if self._directory else ():
            yield Unreadable(problem.file, problem.damage)

    def _behind(self) -> Iterator[Unreadable]:
        """Messages that LedgerQ had counted, but that a crash kept out of its segments."""
        metadata = self._directory.metadata if self._directory else None
        if metadata is not None and self._highest < metadata.next_id - 1:
            first, last = self._highest + 1, metadata.next_id - 1
            reason = f"messages {first} to {last} were accepted and are in no segment"
            yield Unreadable("metadata.dat", Damage(4, 8, reason))

    def _found(self, file: str, record: Record) -> SourceItem | None:
        self._highest = max(self._highest, record.sequence)
        if record.kind != DATA:
            self.left_out["no message"] += 1
            return None
        failure = self._failures.get(record.sequence)
        key = self._keys.get(record.sequence)
        is_over = failure is None and not (
            self._directory is None or self._directory.is_unread(record)
        )
        if is_over:
            self.left_out[_READ] += 1
            if key is None:
                return None
        try:
            payload = b"" if is_over else content(record)
        except SegmentCorruptError as exc:
            return Unreadable(file, Damage(record.offset, record.size, exc.reason))
        return _entry(file, record, payload, failure, key, is_over=is_over)


def _entry(
    file: str,
    record: Record,
    payload: bytes,
    failure: RetryEntry | None,
    key: DedupEntry | None,
    *,
    is_over: bool,
) -> Entry:
    dead = dead_letter(record)
    headers: dict[str, Any] = dict(record.headers)
    died_ms: int | None = None
    attempts, reason = (failure.retry_count, failure.failure_reason) if failure else (0, "")
    if dead is not None:
        headers = {name: text for name, text in headers.items() if name not in _DEAD_HEADERS}
        attempts, reason = dead.retry_count, dead.failure_reason
        at_ns = dead.last_failure.ns if dead.last_failure else record.timestamp_ns
        died_ms = max(0, at_ns // _NS_PER_MS)
    task = _exported_fields(headers.pop(TASK_HEADER, ""))
    headers = dict(map(_sound, headers.items()))
    priority = task.get("priority")
    return Entry(
        file=file,
        offset=record.offset,
        end=record.offset + record.size,
        identity=f"{record.sequence}:{record.timestamp_ns}:{digest(record.payload)}",
        payload=payload,
        kind=task.get("kind", 0),
        headers=task.get("headers", headers),
        face=task.get("face", NO_FACE),
        priority=PRIORITIES[min(record.priority or 0, 2)] if priority is None else priority,
        created_us=record.timestamp_ns // 1000,
        due_ms=task.get("due_ms", 0),
        expires_ms=-(-record.expires_ns // _NS_PER_MS),
        attempts=attempts,
        reason=reason,
        died_ms=died_ms,
        dedup_key=key.dedup_id if key else "",
        dedup_until_ms=key.expires_ns // _NS_PER_MS if key else 0,
        is_over=is_over,
    )


def _sound(header: tuple[str, str]) -> tuple[str, str | bytes]:
    """A header whose text, if it is not UTF-8, stays bytes; its name is escaped."""
    name, text = header
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    raw = text.encode("utf-8", "surrogateescape")
    try:
        return name, raw.decode()
    except UnicodeDecodeError:
        return name, raw


def _exported_fields(text: str) -> dict[str, Any]:
    """Fields that our export put into its header; anything else in there is ignored."""
    try:
        fields = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    numbers = {"priority": range(10), "kind": _KINDS, "due_ms": range(_MS_MAX)}
    task: dict[str, Any] = {
        name: fields[name]
        for name, allowed in numbers.items()
        if type(fields.get(name)) is int and fields[name] in allowed
    }
    face = _face(fields.get("face"))
    if face is not None:
        task["face"] = face
    headers = _headers(fields.get("headers"))
    return {**task, "headers": headers} if headers is not None else task


def _face(found: object) -> Face | None:
    """A face as our export writes it; what no task can have is ignored."""
    if not isinstance(found, list) or len(found) != 3 or not isinstance(found[2], list):
        return None
    function, preview, labels = found
    if not all(isinstance(label, str) and "=" in label for label in labels):
        return None
    try:
        return unpack_face(packed_face(function, preview, labels_of(tuple(labels))))
    except UsageError:
        return None


def _headers(packed: object) -> dict[str, Any] | None:
    if not isinstance(packed, str) or len(packed) > _HEADERS_B64_MAX:
        return None
    try:
        found = msgpack.unpackb(base64.b64decode(packed, validate=True), timestamp=3)
    except (
        binascii.Error,
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
        msgpack.exceptions.UnpackException,
    ):
        return None
    is_map = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    return found if is_map else None
