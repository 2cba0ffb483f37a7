"""Where a store is served: a note in its folder, for whoever finds the store held.

::

    <path>/served.json    {"address": "unix:///run/jobs.sock", "pid": 4711, "boot_id": "…"}

The server writes it once it listens, and removes it at its end. A server that was killed leaves it.
So a note is *trusted* only while the process that wrote it holds the store's lock, in this boot,
and if it belongs to us or to root. It never holds a token.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from typing import Final, NamedTuple

from ...errors import LockedError
from .durable_files import replace_file
from .lockfile import boot_id, is_held_by
from .paths import lock_path, normal_path

__all__ = [
    "Note",
    "find_served",
    "forget_note",
    "is_socket_trusted",
    "leave_note",
    "note_path",
    "read_note",
    "with_address",
]

_BYTES_MAX: Final = 4096
_SCHEMES: Final = ("unix://", "http://", "https://")
_ROOT: Final = 0


class Note(NamedTuple):
    """The address that ``lodeq.connect`` takes, and the process that serves there."""

    url: str
    pid: int
    boot_id: str


def note_path(store: str | os.PathLike[str]) -> str:
    """The path of the note in a store's folder."""
    return os.path.join(normal_path(store), "served.json")


def leave_note(store: str | os.PathLike[str], url: str) -> None:
    """Write that this process serves the store at ``url``. Replaces another note whole."""
    pid = os.getpid()
    note = json.dumps({"address": url, "pid": pid, "boot_id": boot_id()}).encode()
    replace_file(note_path(store), note, suffix=f".{pid}", is_durable=False)
    with suppress(OSError):  # the note's name before; nobody reads it
        os.unlink(os.path.join(normal_path(store), "serve.json"))


def forget_note(store: str | os.PathLike[str]) -> None:
    """Remove our own note; one that another server has written since is left alone."""
    note = read_note(store)
    if note is not None and (note.pid, note.boot_id) == (os.getpid(), boot_id()):
        with suppress(OSError):
            os.unlink(note_path(store))


def read_note(store: str | os.PathLike[str]) -> Note | None:
    """The note, whoever holds the store; None: there is none that is whole, and ours or root's."""
    try:
        fd = os.open(note_path(store), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or not _is_ours(info):
                return None
            found = json.loads(file.read(_BYTES_MAX))
        url, pid, boot = found["address"], found["pid"], found["boot_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not (isinstance(url, str) and url.startswith(_SCHEMES)):
        return None
    if type(pid) is not int or not isinstance(boot, str):
        return None
    return Note(url, pid, boot)


def find_served(store: str | os.PathLike[str]) -> Note | None:
    """The note of the process that holds the store at this moment; None: it left none."""
    note = read_note(store)
    if note is None or note.boot_id != boot_id():
        return None
    if not is_held_by(lock_path(normal_path(store)), note.pid):
        return None
    return note if is_socket_trusted(note.url) else None


def is_socket_trusted(url: str) -> bool:
    """False if what lies at a unix address belongs to another user than us and root.

    A folder that others can write to lets them put a socket of theirs in its place.
    """
    if not url.startswith("unix://"):
        return True
    try:
        info = os.lstat(url.removeprefix("unix://"))
    except OSError:
        return True  # connecting reports what is wrong with it
    return stat.S_ISSOCK(info.st_mode) and _is_ours(info)


def with_address(error: LockedError, store: str | os.PathLike[str]) -> LockedError:
    """The error, with the address where the store is served, if its holder serves it."""
    note = find_served(store)
    if note is None:
        return error
    if note.pid == os.getpid():
        return LockedError(str(error), pid=note.pid, address=note.url)
    return LockedError(
        f"{normal_path(store)} is open already: process {note.pid} has it, and serves it; use "
        f"lodeq.connect({note.url!r}), or App(…, serve=…, join=True)",
        pid=note.pid,
        address=note.url,
    )


def _is_ours(info: os.stat_result) -> bool:
    return info.st_uid in (os.geteuid(), _ROOT)
