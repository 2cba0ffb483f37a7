"""Export of a queue's tasks for others to read: a LedgerQ folder, lines of JSON, a Rust queue.

It is a copy: the store keeps its tasks. Files are written under a temporary name and renamed at the
end, so a file or folder that has the name is whole.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ...engine.files.disk_errors import error_class
from ...engine.files.durable_files import new_file, write_new
from ...engine.files.paths import fsync_dir
from ...engine.records.face import unpack_face
from ...engine.records.policy import decode_policy
from ...errors import (
    CorruptionError,
    UsageError,
)
from ...repository.api.engine import Engine
from ...repository.api.view import EngineView, view_of
from ...repository.bulk.export_scan import ExportedTask, UnreadableTask
from ...repository.model.arguments import names_of
from ...repository.model.codec import RAW, decode_headers
from ...repository.model.faces import labels_of
from ...repository.model.json_values import dumps, rendered
from ...segments.formats.ledgerq.codec import encode
from ...segments.formats.ledgerq.folder import write_directory as write_ledgerq
from ...segments.formats.ledgerq.state import (
    GoTime,
    RetryEntry,
    RetryState,
    encode_retry,
    format_time,
)
from ...segments.formats.rust_queue.writer import write_directory as write_rust
from ...segments.item import Record
from .ledgerq import PRIORITIES, TASK_HEADER

__all__ = ["EXPORT_FORMATS", "ExportReport", "check_apart", "export_queue"]

_KINDS: Final = ("bytes", "msgpack", "codec")
_RETRY_FILE: Final = ".retry_state.json"
_LOST_MAX: Final = 1000
_US: Final = 1000  # nanoseconds

OnLost = Callable[[str, str], None]


@dataclass(slots=True)
class ExportReport:
    """Counts of an export. ``lost`` has the first 1,000 tasks left out: the id, and the reason.

    ``loosened`` counts tasks that lost something the format has no place for, by what that is:
    another reader takes them for ordinary ones.
    """

    exported: int = 0
    dead: int = 0
    losses: int = 0
    lost: list[tuple[str, str]] = field(default_factory=list)
    loosened: dict[str, int] = field(default_factory=dict)


def export_queue(
    engine: Engine,
    queue: str,
    to: str | os.PathLike[str],
    *,
    tenant: str = "",
    format: str = "ledgerq",
    dead: bool = False,
    on_lost: OnLost = lambda _id, _why: None,
) -> ExportReport:
    """Copy the tasks of a queue that wait, in the order of claims. Blocks until it is done.

    Args:
        engine: one that nobody else is using, best without a reaper: the copy is of one moment
            only if nothing moves.
        queue: its name.
        to: a folder (``jsonl``: a file) that does not exist.
        tenant: whose.
        format: one of ``EXPORT_FORMATS``.
        dead: dead letters as well. LedgerQ's are a folder of their own, ``to`` with ``.dead``.
        on_lost: called with the id of each task that cannot be read, or that the format cannot
            hold, and the reason.

    Raises:
        UsageError: ``to`` is there already or would lie within the store, the queue is empty, or
            the format cannot do it.
        StorageError: it cannot be written; nothing of it is left.

    Durability: the export survives a power cut on return.
    Cancellation: does not wait.
    """
    form = _FORMS.get(format)
    if form is None:
        raise UsageError(f"expected a format among {', '.join(EXPORT_FORMATS)}, got {format!r}")
    if form.refuses_dead and dead:
        raise UsageError(form.refuses_dead)
    if engine.path is not None:
        check_apart(engine.path, to)
    out = os.path.abspath(to)
    targets = [out, f"{out}.dead"] if dead and form.is_dead_apart else [out]
    for path in [*targets, *(f"{path}.unfinished" for path in targets)]:
        if os.path.lexists(path):
            raise UsageError(f"{path!r} exists: give another --to, or move it away")
    view, names = view_of(engine), names_of(queue, tenant)
    if not view.has_tenant_queue(*names):
        there = ", ".join(view.queue_names()) or "none"
        raise UsageError(
            f"queue {queue!r} (tenant {tenant!r}) is empty; queues of the store: {there}"
        )
    export = _Export(view, *names, on_lost)
    try:
        form.write(export, f"{out}.unfinished", dead and not form.is_dead_apart)
        if dead and form.is_dead_apart:
            form.write(export, f"{out}.dead.unfinished", True)
        for path in reversed(targets):
            os.rename(f"{path}.unfinished", path)
        fsync_dir(os.path.dirname(out))
    except OSError as exc:
        _remove(targets)
        raise error_class(exc)(f"cannot write {out!r}: {exc.strerror}") from exc
    except BaseException:
        _remove(targets)
        raise
    return export.report


def check_apart(
    store: str | os.PathLike[str], to: str | os.PathLike[str], option: str = "--to"
) -> None:
    """Refuse a target within a store, or a checkpoint: only its own files belong there.

    Args:
        store: its folder.
        to: the target.
        option: that has named it.
    """
    within = os.path.join(os.path.realpath(store), "")
    if os.path.join(os.path.realpath(to), "").startswith(within):
        raise UsageError(f"{os.fspath(to)!r} lies within the store: give another {option}")


def _remove(targets: Iterable[str]) -> None:
    for path in targets:
        fresh = f"{path}.unfinished"
        if os.path.isdir(fresh):
            shutil.rmtree(fresh, ignore_errors=True)
        elif os.path.lexists(fresh):
            os.unlink(fresh)


class _Export:
    """One export."""

    def __init__(self, view: EngineView, queue: bytes, tenant: bytes, on_lost: OnLost) -> None:
        self.report = ExportReport()
        self._view = view
        self._queue = queue
        self._tenant = tenant
        self._on_lost = on_lost

    def _tasks(self, *, dead: bool) -> Iterator[ExportedTask]:
        for found in self._view.exported(self._queue, self._tenant, dead=dead):
            if isinstance(found, UnreadableTask):
                self._lose(str(found.task_id), found.why)
            else:
                yield found

    def _lose(self, task_id: str, why: str) -> None:
        report = self.report
        report.losses += 1
        if len(report.lost) < _LOST_MAX:
            report.lost.append((task_id, why))
        self._on_lost(task_id, why)

    def _loosen(self, what: str) -> None:
        self.report.loosened[what] = self.report.loosened.get(what, 0) + 1

    def _done(self, task: ExportedTask) -> None:
        self.report.exported += 1
        self.report.dead += task.state == "dead"

    # --- LedgerQ --------------------------------------------------------------------------------

    def ledgerq(self, fresh: str, is_dead: bool) -> None:
        """Write the waiting tasks, or the dead letters, as a folder that LedgerQ opens."""
        failed: list[RetryEntry] = []
        most = 0

        def records() -> Iterator[Record]:
            nonlocal most
            number = 0
            for task in self._tasks(dead=is_dead):
                if (task.state == "dead") is not is_dead:
                    continue
                try:
                    record = _record(task, number + 1)
                    encode(record)
                except (UsageError, CorruptionError) as exc:
                    self._lose(str(task.task_id), str(exc))
                    continue
                number += 1
                self._done(task)
                self._note_loose(task, is_dead=is_dead)
                most = max(most, decode_policy(task.task.policy).max_attempts)
                if task.attempts and not is_dead:
                    reason = task.reason.decode("utf-8", "replace")
                    at = GoTime(task.since_us * _US)
                    failed.append(RetryEntry(number, task.attempts, at, reason))
                yield record

        write_ledgerq(fresh, records())
        if failed:
            state = encode_retry(RetryState(most, tuple(failed)))
            write_new(os.path.join(fresh, _RETRY_FILE), state)
            fsync_dir(fresh)

    def _note_loose(self, task: ExportedTask, *, is_dead: bool) -> None:
        if task.due_ms:
            self._loosen("delayed: LedgerQ would hand them out at once")
        if task.state == "waiting":
            self._loosen(
                "waiting for other tasks, or for their key: they would be handed out at once"
            )
        if task.task.priority not in PRIORITIES and not is_dead:
            self._loosen("priorities other than 5, 7 and 9: LedgerQ has three")

    # --- others ---------------------------------------------------------------------------------

    def jsonl(self, fresh: str, dead: bool) -> None:
        """Write one object a line, with all fields of a task."""
        with new_file(fresh) as file:
            for task in self._tasks(dead=dead):
                try:
                    line = dumps(_object(task))
                except CorruptionError as exc:
                    self._lose(str(task.task_id), str(exc))
                    continue
                file.write(line.encode() + b"\n")
                self._done(task)

    def rust(self, fresh: str, dead: bool) -> None:
        """Write the payloads alone."""
        seconds = self._view.clock.wall_us() / 1e6

        def payloads() -> Iterator[bytes]:
            for task in self._tasks(dead=dead):
                if not task.payload:
                    self._lose(str(task.task_id), "an empty payload reads as the end of the data")
                    continue
                self._done(task)
                self._loosen("a Rust queue has payloads, and nothing else of a task")
                yield task.payload

        write_rust(
            fresh, payloads(), day=datetime.datetime.fromtimestamp(seconds, datetime.UTC).date()
        )


class _Form(NamedTuple):
    """A format that is written: ``write`` takes the new path, and whether dead letters go in.

    ``is_dead_apart``: dead letters have a place of their own, and are written there alone.
    """

    write: Callable[[_Export, str, bool], None]
    is_dead_apart: bool = False
    refuses_dead: str = ""


_FORMS: Final = {
    "ledgerq": _Form(_Export.ledgerq, is_dead_apart=True),
    "jsonl": _Form(_Export.jsonl),
    "rust-queue": _Form(
        _Export.rust, refuses_dead="a Rust queue has no dead letters: leave out dead (--dead)"
    ),
}
EXPORT_FORMATS: Final = tuple(_FORMS)


def _record(task: ExportedTask, number: int) -> Record:
    """A task as a record of LedgerQ; fields that it lacks go into a header."""
    extra: dict[str, Any] = {}
    given = decode_headers(task.task.headers)
    headers = {name: value for name, value in given.items() if isinstance(value, str)}
    if headers != given or TASK_HEADER in given or any(name.startswith("dlq.") for name in given):
        extra["headers"] = base64.b64encode(task.task.headers).decode()
        headers = {name: text for name, text in headers.items() if not name.startswith("dlq.")}
    priority = task.task.priority
    if priority not in PRIORITIES:
        extra["priority"] = priority
    if task.kind != RAW:
        extra["kind"] = task.kind
    if task.task.face:
        extra["face"] = list(unpack_face(task.task.face))
    if task.due_ms:
        extra["due_ms"] = task.due_ms
    if extra:
        headers[TASK_HEADER] = json.dumps(extra, separators=(",", ":"))
    if task.state == "dead":
        headers |= {
            "dlq.original_msg_id": str(number),
            "dlq.retry_count": str(task.attempts),
            "dlq.failure_reason": task.reason.decode("utf-8", "replace"),
            "dlq.last_failure": format_time(GoTime(task.since_us * _US)),
        }
    created_ns = max(1, task.task.created_us * _US)
    expires_ns = task.expires_ms * _US * _US
    return Record(
        0,
        0,
        task.payload,
        sequence=number,
        timestamp_ns=created_ns,
        expires_ns=max(expires_ns, created_ns + 1) if expires_ns else 0,
        priority=2 if priority >= PRIORITIES[2] else 1 if priority >= PRIORITIES[1] else 0,
        headers=headers,
    )


def _object(task: ExportedTask) -> Mapping[str, Any]:
    record = task.task
    headers, face = decode_headers(record.headers), unpack_face(record.face)
    document: dict[str, Any] = {
        "id": str(task.task_id),
        "queue": record.queue.decode(),
        "tenant": record.tenant.decode(),
        "state": task.state,
        "priority": record.priority,
        "attempts": task.attempts,
        "max_attempts": decode_policy(record.policy).max_attempts,
        "reason": task.reason.decode("utf-8", "replace"),
        "enqueued_at": _time(record.created_us * _US),
        "since": _time(task.since_us * _US),
        "due_at": _time(task.due_ms * _US * _US),
        "expires_at": _time(task.expires_ms * _US * _US),
        "headers": headers,
        "function": face.function,
        "preview": face.preview,
        "labels": labels_of(face.labels),
        "payload_kind": _KINDS[task.kind],
        "payload": base64.b64encode(task.payload).decode(),
    }
    if not rendered(headers).is_exact:  # bytes, times: JSON has no such things
        document["headers"] = None
        document["headers_msgpack"] = base64.b64encode(record.headers).decode()
    return document


def _time(ns: int) -> str | None:
    try:
        return format_time(GoTime(ns)) if ns else None
    except UsageError:
        return None
