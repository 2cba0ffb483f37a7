"""The lock of a store: one process owns it, and a second one learns who.

RocksDB locks each shard for itself, but its refusal names nobody and comes after files have been
touched. So the whole store has one file, ``flock``'d from before the first shard is opened until
after the last is closed. The kernel drops the lock with the process, however it dies; the file
stays, because unlinking a lock file is a race.

The holder's pid, boot id and start time are written into it for the message. Nothing is decided on
them: pids are reused and mean nothing across containers. Only whether they are still there counts:
``release`` takes them out, so what is found was left by a process that died.

A forked child shares the open file and would keep the lock after its parent's death, so the
child drops its copy at once (closing, never ``LOCK_UN``, which would unlock the parent).
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...errors import LockedError, StorageError, StorePathError
from .disk_errors import is_full, path_error

__all__ = ["LockFile", "boot_id", "is_held_by", "without_cure"]

_TRIES_MAX = 8  # only a store deleted and created again at this very moment needs a second one
_TEXT_BYTES_MAX = 512
_CURES: Final = (
    "close it first",
    "close that engine first",
    (
        "one process owns a store: close it there first, or let it serve the store (lodeq.open(…, "
        "serve=True), App(…, serve=True), 'lodeq serve') and use lodeq.connect"
    ),
)


class LockFile:
    """A held lock. ``release`` (idempotent) or the end of the process frees it."""

    __slots__ = ("__weakref__", "_fd", "path", "was_left")

    def __init__(self, path: str, fd: int, *, was_left: bool = False) -> None:
        self.path = path
        self.was_left = was_left  # by a holder that did not release it
        self._fd = fd
        _held.add(self)

    @classmethod
    def acquire(cls, path: str, free_bytes: Callable[[], int] = lambda: 0) -> LockFile:
        """Take it without waiting; ``LockedError`` names the process that has it.

        Args:
            path: of the lock file.
            free_bytes: frees bytes of its volume, and returns how many; asked once it is locked, if
                there is no space to write down who holds it.

        Raises ``StorageFullError`` if there is none.
        """
        for _ in range(_TRIES_MAX):
            fd = _open(path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(fd, path):
                    was_left = os.fstat(fd).st_size > 0
                    _write_owner(fd, free_bytes)
                    return cls(path, fd, was_left=was_left)
                os.close(fd)
            except BlockingIOError as exc:
                error = _held_by(fd, path)
                os.close(fd)
                raise error from exc
            except OSError as exc:
                os.close(fd)
                raise _error(exc, f"{path} cannot be locked") from exc
        raise StorePathError(f"{path} keeps changing: is something replacing the store?")

    @classmethod
    def check(cls, path: str) -> None:
        """``LockedError`` if somebody has it. Writes nothing: what a dead holder left stays."""
        if not os.path.exists(path):
            return
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # closing drops it
        except BlockingIOError as exc:
            raise _held_by(fd, path) from exc
        finally:
            os.close(fd)

    @property
    def is_held(self) -> bool:
        """False once released, and in a forked child."""
        return self._fd >= 0

    def release(self, *, is_sound: bool = True) -> None:
        """Let go. Idempotent. If not ``is_sound``, leave it as a process that dies does."""
        if self._fd >= 0 and is_sound:
            with suppress(OSError):  # then the next holder takes it for left: no harm
                os.ftruncate(self._fd, 0)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_held: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _drop_in_child() -> None:
    for lock in list(_held):
        lock.release(is_sound=False)


os.register_at_fork(after_in_child=_drop_in_child)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise _error(exc, f"{path} cannot be opened") from exc


def _error(exc: OSError, what: str) -> StorePathError | StorageError:
    return path_error(exc, f"{what}: {exc.strerror}")


def _held_by(fd: int, path: str) -> LockedError:
    pid, text = _describe(fd)
    return LockedError(f"{os.path.dirname(path)} is open already: {text}", pid=pid)


def _is_at(fd: int, path: str) -> bool:
    """Whether the locked file is still the one at ``path``: the store may have been removed."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def boot_id() -> str:
    """Name of this boot of the machine; ``-`` where it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "-"


def _start(pid: int) -> str:
    """When a process started, in clock ticks since boot; ``-`` if there is none or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may hold spaces; the 22nd field is the 20th behind it.
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"


def _write_owner(fd: int, free_bytes: Callable[[], int]) -> None:
    pid = os.getpid()
    text = f"lodeq 1\npid {pid}\nboot {boot_id()}\nstart {_start(pid)}\n".encode("ascii")
    # Written before it is cut, so that a reader never finds it empty.
    try:
        os.pwrite(fd, text, 0)
    except OSError as exc:
        if not is_full(exc) or not free_bytes():
            raise
        os.pwrite(fd, text, 0)
    os.ftruncate(fd, len(text))


def is_held_by(path: str, pid: int) -> bool:
    """Whether this process, of this boot, holds the lock at ``path``.

    What the holder wrote is compared with the process that has its pid now. Only if that is not the
    holder, which may have died or be in another container, the lock itself is tried: shared, and
    for the moment of the call.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fields = _fields(os.pread(fd, _TEXT_BYTES_MAX, 0).decode("ascii", "replace"))
        if fields.get("pid") != str(pid) or fields.get("boot") != boot_id():
            return False
        start = _start(pid)
        if start != "-" and fields.get("start") == start:
            return True
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _fields(raw: str) -> dict[str, str]:
    """Names and values of what a holder has written."""
    return dict(line.split(" ", 1) for line in raw.splitlines() if " " in line)


def without_cure(text: str) -> str:
    """The text of a ``LockedError`` without what to do, for a caller that has better advice."""
    for cure in _CURES:
        text = text.removesuffix(f"; {cure}")
    return text


def _describe(fd: int) -> tuple[int | None, str]:
    """(pid, who holds it and what to do)."""
    try:
        raw = os.pread(fd, _TEXT_BYTES_MAX, 0).decode("ascii", "replace")
    except OSError:
        raw = ""  # it is locked all the same
    fields = _fields(raw)
    pid_text = fields.get("pid", "")
    if not pid_text.isdecimal():
        return None, f"by a process that has not left its name; {_CURES[0]}"
    pid = int(pid_text)
    if pid == os.getpid() and fields.get("start") == _start(pid):
        return pid, f"in this process; {_CURES[1]}"
    if fields.get("boot") == boot_id() and fields.get("start") != _start(pid):
        return pid, f"by process {pid}, which is not to be seen from here (another container?)"
    return pid, f"by process {pid}; {_CURES[2]}"
