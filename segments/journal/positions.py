"""Where named tailers go on: one small file each, replaced whole.

The file, not the process, is the tailer: whoever reads next under that name goes on from it. It is
not synced: after a power cut a tailer may get again what it had before, never less. Nor are the
records, always: a cut may keep a place and take records before it, whose numbers come again. So a
place behind the end of the journal is put back to it, by whoever opens the journal.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ...engine.files.durable_files import replace_file
from ...errors import CorruptionError, RecordCorruptError, StorageError
from .layout import TEMPORARY, is_tailer, tailer_path, tailers_folder
from .small_files import TAILER_BYTES, TailerPosition, decode_place, encode_place

__all__ = ["forget_place", "list_places", "put_back_places", "read_place", "store_place"]


def read_place(root: str, name: str) -> TailerPosition | None:
    """None: nobody has read under that name.

    Raises:
        InvalidNameError: it is no name.
        CorruptionError: the file is damaged. Remove it to begin anew.
    """
    path = tailer_path(root, name)
    try:
        with open(path, "rb") as file:
            return decode_place(file.read(TAILER_BYTES + 1))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StorageError(f"cannot read {path!r}: {exc.strerror}") from exc
    except RecordCorruptError as exc:
        raise CorruptionError(f"{path!r}: {exc}: remove it, and the tailer begins anew") from exc


def store_place(root: str, name: str, place: TailerPosition) -> None:
    """From here on it is the place, for every process."""
    path = tailer_path(root, name)
    try:
        os.makedirs(tailers_folder(root), mode=0o700, exist_ok=True)
        replace_file(path, encode_place(place), suffix=TEMPORARY, is_durable=False)
    except OSError as exc:
        raise StorageError(f"cannot write {path!r}: {exc.strerror}") from exc


def forget_place(root: str, name: str) -> None:
    """Retention keeps nothing for it any more. Idempotent."""
    try:
        os.unlink(tailer_path(root, name))
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise StorageError(f"cannot remove {exc.filename!r}: {exc.strerror}") from exc


def list_places(root: str) -> list[tuple[str, TailerPosition]]:
    """Positions of all named tailers."""
    found = [(name, read_place(root, name)) for name in _names(root)]
    return [(name, place) for name, place in found if place is not None]


def put_back_places(root: str, following: int, now_us: int) -> list[tuple[str, TailerPosition]]:
    """Put tailers that are behind the end of the journal back to it; these, with their old places.

    One that cannot be read is left to whoever asks for it.

    Args:
        root: the journal's folder.
        following: number of the next record.
        now_us: Unix microseconds.
    """
    found: list[tuple[str, TailerPosition]] = []
    for name in _names(root):
        with suppress(CorruptionError):
            place = read_place(root, name)
            if place is not None and place.following > following:
                store_place(root, name, TailerPosition(following, now_us))
                found.append((name, place))
    return found


def _names(root: str) -> list[str]:
    try:
        return [name for name in sorted(os.listdir(tailers_folder(root))) if is_tailer(name)]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StorageError(f"cannot list {exc.filename!r}: {exc.strerror}") from exc
