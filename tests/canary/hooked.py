"""Run Python with ``hook.c`` in front of libc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("hook.c")

# Every script begins with this: a database, and the hook.
PRELUDE = """
import ctypes, errno, json, sys
from rocksdict import Options, Rdict, WriteBatch, WriteOptions
hook = ctypes.CDLL(sys.argv[2])
WRITE, SYNC = 0, 1
def counts(op): return [hook.canary_held(op), hook.canary_released(op)]
def opened():
    options = Options(raw_mode=True)
    return Rdict(sys.argv[1], options, {"default": options})
def batch(key):
    rows = WriteBatch(raw_mode=True)
    rows.put(key, b"v" * 100)
    return rows
def error_of(call, *args):
    try:
        call(*args)
    except Exception as exc:
        return [type(exc).__name__, str(exc)]
    return None
def tell(**told): print(json.dumps(told))
"""


def compiler() -> str | None:
    """One of those a machine may have."""
    found = (shutil.which(name) for name in ("cc", "gcc", "clang"))
    return next((path for path in found if path), None)


def compiled(folder: Path) -> Path:
    """The shared object."""
    made = folder / "hook.so"
    subprocess.run(
        [str(compiler()), "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"],
        check=True,
        timeout=60,
    )
    return made


def run(hook: Path, script: str, path: str) -> dict[str, Any]:
    """What the script told; it must end well."""
    preload = " ".join(filter(None, (str(hook), os.environ.get("LD_PRELOAD"))))
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, path, str(hook)],
        env={**os.environ, "LD_PRELOAD": preload},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
