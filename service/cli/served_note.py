"""Where a store is served: a note in its folder, for commands that find the store held.

::

    <path>/serve.json     {"url": "unix:///run/jobs.sock", "pid": 4711}

The server writes it once it listens, and removes it at its end. A server that was killed leaves it:
whoever follows it finds nobody there, and says so. The folder belongs to the store's owner alone,
so the note is theirs; a socket of the server's own lies elsewhere (a store holds plain files only).
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Final, NamedTuple

from ...engine.files.durable_files import replace_file
from ...engine.files.paths import normal_path

__all__ = ["Note", "forget_note", "leave_note", "note_path", "read_note"]

_BYTES_MAX: Final = 4096
_SCHEMES: Final = ("unix://", "http://", "https://")


class Note(NamedTuple):
    """The address that ``lodeq.connect`` takes, and the process that wrote it."""

    url: str
    pid: int


def note_path(store: str | os.PathLike[str]) -> str:
    """The path of the note in a store's folder."""
    return os.path.join(normal_path(store), "serve.json")


def leave_note(store: str | os.PathLike[str], url: str) -> None:
    """Write that the store is served at ``url``. Replaces another note, whole or not at all."""
    pid = os.getpid()
    note = json.dumps({"url": url, "pid": pid}).encode()
    replace_file(note_path(store), note, suffix=f".{pid}", is_durable=False)


def forget_note(store: str | os.PathLike[str]) -> None:
    """Remove our own note; one that another server has written since is left alone."""
    note = read_note(store)
    if note is not None and note.pid == os.getpid():
        with suppress(FileNotFoundError):
            os.unlink(note_path(store))


def read_note(store: str | os.PathLike[str]) -> Note | None:
    """The note, or None if there is none that can be read."""
    try:
        fd = os.open(note_path(store), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            found = json.loads(file.read(_BYTES_MAX))
        url, pid = found["url"], found["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (isinstance(url, str) and url.startswith(_SCHEMES) and type(pid) is int):
        return None
    return Note(url, pid)
