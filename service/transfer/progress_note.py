"""Progress of an import: a small file in the store's folder, ``import-<hash>.json``.

It is a shortcut, never the truth. Dedup keys keep an import from taking anything over twice; the
note spares a repeated import the reading of entries that they would turn away. So a note that is
damaged, missing, or of another source is ignored. It is written, durably, only after everything it
stands for is durable in the store; and its mark counts only if the entry there is unchanged.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from ...engine.files.durable_files import replace_file
from ...errors import StorageError
from ...segments.item import Damage
from .entries import Mark, Unreadable

__all__ = ["Note", "note_path", "read_note", "write_note"]

_VERSION: Final = 1
_BYTES_MAX: Final = 4 << 20
_UNREADABLE_MAX: Final = 1000


@dataclass(slots=True)
class Note:
    """Counts of everything up to ``mark``. ``unreadable`` has the first 1,000."""

    mark: Mark
    entries: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    unreadables: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)


def note_path(store: str, *who: str) -> str:
    """The path of the note of this import: from this source, into this queue."""
    name = xxh3_64_hexdigest("\0".join(who).encode("utf-8", "surrogateescape"))
    return os.path.join(store, f"import-{name}.json")


def read_note(path: str) -> Note | None:
    """The note; None if there is none that can be understood."""
    try:
        with open(path, "rb") as file:
            fields = json.loads(file.read(_BYTES_MAX))
        return _note_of(fields) if fields["version"] == _VERSION else None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        return None


def _note_of(fields: Any) -> Note:
    file, offset, payload = fields["mark"]
    counts = (offset, fields["entries"], fields["unreadables"], *fields["left_out"].values())
    if not (isinstance(file, str) and isinstance(payload, str)) or any(
        type(count) is not int or count < 0 for count in counts
    ):
        raise ValueError("no note of ours")
    return Note(
        Mark(file, offset, payload),
        fields["entries"],
        dict(fields["left_out"]),
        fields["unreadables"],
        [
            Unreadable(str(name), Damage(int(at), int(size), str(reason)))
            for name, (at, size, reason) in fields["unreadable"]
        ],
    )


def write_note(path: str, note: Note) -> None:
    """Replace the note, durably.

    Raises:
        StorageError: it cannot be written; the one before is still there.
    """
    fields = asdict(note)
    fields["version"] = _VERSION
    fields["mark"] = list(note.mark)
    fields["unreadable"] = [
        (one.file, (one.damage.offset, one.damage.size, one.damage.reason))
        for one in note.unreadable[:_UNREADABLE_MAX]
    ]
    try:
        replace_file(path, json.dumps(fields, separators=(",", ":")).encode())
    except OSError as exc:
        raise StorageError(f"cannot write {path!r}: {exc.strerror}") from exc
