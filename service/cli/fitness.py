"""Checks of this disk, its file system, and this process: are they fit for a store?

A property is tried rather than looked up wherever possible: a lock that a second file cannot take,
a hole that gives space back, the cost of an fsync.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Final, NamedTuple

from ...engine.files.durable_files import sync_data
from ...engine.runtime.clock import SystemClock
from ...segments.bodies.punch import punch
from ..shared.build import BUILD
from .display import size

__all__ = ["BAD", "OK", "WARN", "Check", "Fsync", "checks", "mount_of", "time_fsync"]

OK: Final = "ok"
WARN: Final = "warning"
BAD: Final = "bad"

_FSYNCS: Final = 40
_FSYNC_BYTES: Final = 4096
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"}
)
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
_FREE_BYTES_MIN: Final = 1 << 30
_FILES_MIN: Final = 4096
_MEMORY_BYTES_MIN: Final = 1 << 30


class Check(NamedTuple):
    """One check: its name, its verdict, what was found, and what to do if that is not ``ok``."""

    name: str
    verdict: str
    found: str
    advice: str = ""


class Fsync(NamedTuple):
    """The time that making 4 KiB durable takes."""

    p50_us: float
    p99_us: float


def checks(path: str, work: str, fsync: Fsync | None) -> Iterator[Check]:
    """Run all checks; without ``fsync`` those that write nothing.

    Args:
        path: where a store is to lie.
        work: an empty folder there.
        fsync: what making 4 KiB durable takes there; None: nothing can be written there.
    """
    yield _python()
    yield Check("build", OK, BUILD)
    yield _rocksdict()
    yield _file_system(path)
    if fsync is not None:
        yield _fsync(fsync)
    tries: tuple[tuple[str, Callable[[str], None], str], ...] = (
        ("locks", _try_lock, "two processes could open one store: choose another file system"),
        ("hard links", _try_link, "checkpoints copy instead of linking: they cost time and space"),
        ("holes", _try_hole, "space of dead payloads comes back only with whole files"),
    )
    for name, attempt, advice in tries if fsync is not None else ():
        yield _tried(name, attempt, work, advice)
    yield _space(path)
    yield _files()
    yield _memory()


def _python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.implementation.name != "cpython":
        return Check("python", BAD, found, "rocksdict is built for CPython: use that")
    is_free = not getattr(sys, "_is_gil_enabled", lambda: True)()
    advice = "lodeq is not tested without the GIL: use the ordinary build" if is_free else ""
    return Check("python", WARN if is_free else OK, found, advice)


def _rocksdict() -> Check:
    return Check("rocksdict", OK, f"{version('rocksdict')} on {platform.machine()}")


# -- the disk --------------------------------------------------------------------------


def mount_of(path: str) -> tuple[str, str, frozenset[str]]:
    """(type, mount point, options) of the file system that a path lies on."""
    best = ("unknown", "/", frozenset[str]())
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return best
    whole, longest = os.path.realpath(path), -1
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        point = fields[4].encode().decode("unicode_escape")
        is_above = whole == point or whole.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= longest:  # of two at one point the later one is on top
            longest = len(point)
            best = (kind[0], point, frozenset(fields[5].split(",")))
    return best


def _file_system(path: str) -> Check:
    kind, point, options = mount_of(path)
    found = f"{kind} at {point}"
    if "ro" in options:
        return Check("file system", BAD, f"{found}, read-only", "choose another path")
    if kind in _REMOTE or kind.startswith("fuse.sshfs"):
        return Check(
            "file system",
            BAD,
            found,
            "over a network neither locks nor fsync can be relied on: use a disk of this machine",
        )
    if kind in _VOLATILE:
        advice = "it lies in memory: nothing survives a power cut, whatever the mode"
        return Check("file system", WARN, found, advice)
    if kind == "overlay":
        advice = "this layer is deleted with the container: mount a volume"
        return Check("file system", WARN, found, advice)
    if kind.startswith("fuse"):
        return Check("file system", WARN, found, "check in its manual that an fsync reaches a disk")
    return Check("file system", OK, found)


def time_fsync(work: str) -> Fsync:
    """Append 4 KiB and fdatasync, a few times. Blocks."""
    clock, spans = SystemClock(), []
    block = b"\xa5" * _FSYNC_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(work, "fsync"), flags, 0o600)
    try:
        os.write(fd, block * _FSYNCS)  # as in a log, the space is there already
        os.fsync(fd)
        for turn in range(_FSYNCS):
            begun = clock.mono()
            os.pwrite(fd, block, turn * _FSYNC_BYTES)
            sync_data(fd)
            spans.append((clock.mono() - begun) * 1e6)
    finally:
        os.close(fd)
    spans.sort()
    return Fsync(spans[len(spans) // 2], spans[-1])


def _fsync(cost: Fsync) -> Check:
    found = f"p50 {cost.p50_us / 1000:.2f} ms, p99 {cost.p99_us / 1000:.2f} ms"
    if cost.p50_us < 20:
        return Check(
            "fsync",
            WARN,
            found,
            "faster than any disk: something answers in its place, so a power cut may lose tasks",
        )
    if cost.p50_us > 20_000:
        advice = "slow: in fsync mode every caller waits this long; many callers share one commit"
        return Check("fsync", WARN, found, advice)
    return Check("fsync", OK, found)


def _tried(name: str, attempt: Callable[[str], None], work: str, advice: str) -> Check:
    try:
        attempt(os.path.join(work, name.replace(" ", "-")))
    except OSError as exc:
        verdict = BAD if name == "locks" else WARN
        return Check(name, verdict, exc.strerror or repr(exc), advice)
    return Check(name, OK, "work")


def _try_lock(path: str) -> None:
    with open(path, "wb") as first, open(path, "rb+") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError(errno.ENOLCK, "two have one lock")


def _try_link(path: str) -> None:
    with open(path, "wb"):
        pass
    os.link(path, f"{path}.twin")


def _try_hole(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"x" * (1 << 16))
    punch(path, 0, 1 << 16, is_v1=True)


# -- the process -----------------------------------------------------------------------


def _space(path: str) -> Check:
    info = os.statvfs(path)
    free, names = info.f_bavail * info.f_frsize, info.f_favail
    found = f"{size(free)} free"
    if info.f_files and names < 10_000:
        return Check("space", WARN, f"{found}, {names:,} files left", "free some inodes")
    if free < _FREE_BYTES_MIN:
        return Check(
            "space", WARN, found, "enqueues are refused below 128 MiB: free some disk space"
        )
    return Check("space", OK, found)


def _files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} open files (at most {hard:,})"
    if soft != resource.RLIM_INFINITY and soft < _FILES_MIN:
        return Check(
            "limits",
            WARN,
            found,
            f"a store may have 1,024 open, and your service more: ulimit -n {_FILES_MIN}",
        )
    return Check("limits", OK, found)


def _memory() -> Check:
    total = _memory_bytes()
    found = f"{size(total)} for this process"
    if total < _MEMORY_BYTES_MIN:
        advice = "open stores with a smaller block_cache_bytes than 256 MiB"
        return Check("memory", WARN, found, advice)
    return Check("memory", OK, found)


def _memory_bytes() -> int:
    """Memory of the machine, or of the container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(total, int(file.read()))
    except (OSError, ValueError):
        return total
