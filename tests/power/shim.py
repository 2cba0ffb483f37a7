"""The recorder (``recorder.c``): compiled once, preloaded, called from the process it watches."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("recorder.c")
TESTS = SOURCE.parent.parent
NEEDS = "the recorder needs Linux and a C compiler: POWER CUTS HAVE NOT BEEN TESTED"


@cache
def library() -> Path | None:
    """The shared object, or None without a compiler. Kept among the temporary files."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not os.path.isdir("/proc/self/fd"):
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"lodeq-recorder-{os.getuid()}-{digest}.so"
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "recorder.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", fresh, SOURCE, "-ldl", "-lpthread"],
            check=True,
            timeout=60,
        )
        shutil.copy(fresh, f"{made}.{os.getpid()}")
        os.replace(f"{made}.{os.getpid()}", made)
    return made


def environment() -> dict[str, str]:
    """For a process that is to be watched."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    preload = " ".join(filter(None, (str(library()), os.environ.get("LD_PRELOAD"))))
    return {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": preload}


def scratch() -> str:
    """Where traces and images go: memory, if there is some."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


class Shim:
    """Inside a process that was started with ``environment()``."""

    def __init__(self) -> None:
        self._c = ctypes.PyDLL(None)  # with the GIL held: a mark must not give way to others
        self._c.power_steps.restype = ctypes.c_long

    def start(self, root: str, trace: str = "", *, life: int = 0, sync_us: int = 0) -> None:
        """Record, or only count if no trace is named, what happens below ``root`` from now on."""
        self._c.power_start(root.encode(), trace.encode(), life, sync_us)

    def mark(self, *record: Any) -> None:
        """A remark of the workload, at its place in the trace."""
        data = json.dumps(record, separators=(",", ":")).encode()
        self._c.power_mark(data, len(data))

    def kill_at(self, n: int, *, is_torn: bool = False) -> None:
        """Die before the n-th call from now; of a write, after its first half if ``is_torn``."""
        self._c.power_kill_at(ctypes.c_long(n), ctypes.c_long(is_torn))

    @property
    def steps(self) -> int:
        """Calls since ``kill_at``."""
        return self._c.power_steps()
