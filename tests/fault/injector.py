"""The fault injector, from Python: compiled, preloaded, and told what to fail.

``compiled`` makes the shared object (None without a C compiler); ``preloaded`` starts a nursery
with it in front of libc; in a child of that nursery ``Injector`` is the control.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from crash.nursery import Nursery

SOURCE = Path(__file__).with_name("injector.c")
OPS = ("write", "sync", "open", "rename", "truncate", "unlink", "link", "mkdir", "read")
ERRNOS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
STICKY = 1 << 40
# First match wins; ``folder`` last of those with a name of their own.
KINDS = {
    "wal": "*/shard*/*.log",
    "sst": "*.sst",
    "manifest": "*/MANIFEST-*",
    "current": "*/CURRENT|*.dbtmp",
    "options": "*/OPTIONS-*",
    "watermark": "*/watermark*",
    "lock": "*/lock|*/LOCK",
    "other": "*/LOG|*/LOG.old*|*/IDENTITY|*/rocksdict-config.json|*/checkpoint.json",
    "folder": "*/store|*/shard[0-9]|*/shard[0-9].*[a-z]|*/copy*|*/part*|*/now",
}


class Event(NamedTuple):
    """One call. ``failed``: the errno it was given. ``size``: of the file, once synced, or -1."""

    op: str
    failed: int
    size: int
    path: str

    @property
    def kind(self) -> str:
        return kind_of(self.path)


class _Event(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_int),
        ("failed", ctypes.c_int),
        ("size", ctypes.c_long),
        ("path", ctypes.c_char * 512),
    )


def kind_of(path: str) -> str:
    """Which sort of file it is; ``else`` for none of those listed."""
    for kind, globs in KINDS.items():
        if any(fnmatch(path, glob) for glob in globs.split("|")):
            return kind
    return "else"


class Injector:
    """The control, inside a process that has the library preloaded."""

    def __init__(self, library: str) -> None:
        lib = self._lib = ctypes.CDLL(library)
        lib.lodeq_fault_watch.argtypes = [ctypes.c_char_p]
        lib.lodeq_fault_arm.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_int,
        ]
        lib.lodeq_fault_hits.restype = lib.lodeq_fault_events.restype = ctypes.c_long
        lib.lodeq_fault_event.argtypes = [ctypes.c_long]
        lib.lodeq_fault_event.restype = ctypes.POINTER(_Event)

    def watch(self, root: str) -> None:
        """Write down what is called on files under ``root``, and allow faults there."""
        self._lib.lodeq_fault_watch(os.fsencode(root))

    def arm(
        self, op: str, globs: str, *, nth: int, times: int, error: int, torn: bool = False
    ) -> None:
        """Fail ``times`` calls of ``op`` on ``globs``, from the ``nth`` on."""
        self._lib.lodeq_fault_arm(OPS.index(op), globs.encode(), nth, times, error, int(torn))

    def disarm(self) -> None:
        """No more faults."""
        self._lib.lodeq_fault_disarm()

    @property
    def hits(self) -> int:
        """How many calls have failed since ``arm``."""
        return self._lib.lodeq_fault_hits()

    def events(self) -> list[Event]:
        """All calls so far, oldest first. Reads only if they failed."""
        found = (
            self._lib.lodeq_fault_event(i).contents for i in range(self._lib.lodeq_fault_events())
        )
        return [Event(OPS[e.op], e.failed, e.size, os.fsdecode(e.path)) for e in found]


def compiled(folder: Path) -> Path | None:
    """The shared object, made in ``folder``; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "injector.so"
    subprocess.run(
        [
            compiler,
            "-O1",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            library,
            SOURCE,
            "-ldl",
            "-lpthread",
        ],
        check=True,
        timeout=60,
    )
    return library


@contextmanager
def preloaded(library: Path) -> Iterator[Nursery]:
    """A nursery whose children can be given faults."""
    with mock.patch.dict(os.environ, LD_PRELOAD=str(library)):
        nursery = Nursery().__enter__()
    try:
        yield nursery
    finally:
        nursery.__exit__()
