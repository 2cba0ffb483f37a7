"""Two folders change names, in one step where the system can.

Where it cannot, two renames leave a moment in which nothing has the name of the store, and an open
would begin an empty one. So a *note* beside it says what is going on, durable before the first of
them: whoever opens the store meanwhile finishes the move, or refuses.

In one step or in two, the names are durable only once the folder above is synced. If that fails,
the note stays, and the next open syncs it before it writes anything: a store that took commits
under a name that a power cut gives back to the other would lose them.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
from contextlib import suppress
from typing import Final

from ...errors import StorageError, StorePathError
from .disk_errors import path_error
from .durable_files import replace_file
from .lockfile import LockFile
from .paths import check_root, fsync_dir, fsync_file, lock_path

__all__ = [
    "UnconfirmedError",
    "begin_move",
    "drop_note",
    "end_move",
    "exchange",
    "finish_move",
    "move_twice",
]

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class UnconfirmedError(OSError):
    """The names have changed; a power cut may still undo that. The note stays."""


def exchange(one: str, other: str) -> bool:
    """Let each have the other's name. Raises ``OSError``; then nothing has changed.

    Returns: False where the system or the file system cannot; nothing has changed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)  # glibc 2.28, musl 1.2.5
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), one, None, other)


def begin_move(work: str, root: str, aside: str) -> None:
    """Write the note, durably. Raises ``OSError``; then there is none."""
    note = _note_path(root)
    names = {"work": os.path.basename(work), "aside": os.path.basename(aside)}
    try:
        replace_file(note, json.dumps(names).encode())
    except OSError:
        drop_note(root)
        raise


def drop_note(root: str) -> None:
    """Nothing is moved after all. One that stays the next open removes."""
    with suppress(OSError):
        os.unlink(_note_path(root))


def end_move(root: str) -> None:
    """Make the new names durable, then remove the note.

    Raises ``UnconfirmedError``: the sync failed.
    """
    parent = os.path.dirname(root)
    try:
        fsync_dir(parent)
    except OSError as exc:
        raise UnconfirmedError(exc.errno, exc.strerror, parent) from exc
    drop_note(root)
    with suppress(OSError):  # a note that comes back is removed by the next open
        fsync_dir(parent)


def move_twice(work: str, root: str, aside: str) -> None:
    """``root`` becomes ``aside``, and ``work`` ``root``; the note says so meanwhile.

    Raises ``OSError``; then ``root`` is what it was, and nothing is left beside it. But after an
    ``UnconfirmedError`` it is done.
    """
    begin_move(work, root, aside)
    try:
        os.rename(root, aside)
    except OSError:
        drop_note(root)
        raise
    try:
        os.rename(work, root)
    except OSError:
        os.rename(aside, root)
        os.unlink(_note_path(root))
        raise
    end_move(root)


def finish_move(root: str) -> None:
    """Finish what a kill, or a sync that failed, has left of a move. Blocks.

    Raises:
        LockedError: it is going on.
        StorePathError: it cannot be finished; nothing has changed.
    """
    note = _note_path(root)
    if not os.path.lexists(note):
        return
    parent = os.path.dirname(root)
    try:
        if os.path.lexists(root):  # not begun, or done
            if _is_note(note, parent):
                LockFile.check(lock_path(root))  # whoever is at it needs the note
                fsync_dir(parent)  # that of the move may have failed
                os.unlink(note)
                fsync_dir(parent)
            return
        work, aside = _read_note(note, parent)
        if not check_root(work):
            raise StorePathError(
                f"{root} was being replaced when the process ended, and {work} is not there: the "
                f"store as it was is {aside}: rename it to {root}, and remove {note}"
            )
        LockFile.check(lock_path(work))
        os.rename(work, root)
        fsync_dir(parent)
        os.unlink(note)
        fsync_dir(parent)
    except OSError as exc:
        text = (
            f"{root} was being replaced when the process ended; finishing that failed: "
            f"{exc.strerror} ({exc.filename})"
        )
        raise path_error(exc, text) from exc


def _note_path(root: str) -> str:
    return f"{root}.moving"


def _is_note(note: str, parent: str) -> bool:
    """Or somebody's file that has the name of one."""
    try:
        _read_note(note, parent)
    except (StorageError, StorePathError):
        return False
    return True


def _read_note(note: str, parent: str) -> tuple[str, str]:
    """Paths of the new folder and of the old one."""
    try:
        info = os.lstat(note)
        if not stat.S_ISREG(info.st_mode):  # to open a pipe is to wait
            raise ValueError("no plain file")
        if info.st_uid != os.geteuid():
            raise ValueError("another user's")
        fsync_file(note)
        with open(note, encoding="utf-8") as file:
            moved = json.loads(file.read(4096))
        names = [str(moved[key]) for key in ("work", "aside")]
        if any(os.path.basename(name) != name or name in ("", ".", "..") for name in names):
            raise ValueError("names of other folders")
    except (ValueError, KeyError, TypeError, OSError) as exc:
        raise StorePathError(
            f"{note} says that a store was being replaced, and cannot be read ({exc}): look which "
            "folder beside it holds the store, give it its name back, and remove the note"
        ) from exc
    work, aside = (os.path.join(parent, name) for name in names)
    return work, aside
