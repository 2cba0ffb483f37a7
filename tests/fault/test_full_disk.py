"""A file system that fills up under a store and gets room again: nobody is told a lie or left.

A small tmpfs of the test's own, mounted in a mount namespace that ends with the child.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from crash.nursery import TESTS
from fault.fullchild import LEASED, TASKS

SIZE_MIB = 192  # above it an enqueue is not refused while the disk is empty
MOUNT = f'mount -t tmpfs -o size={SIZE_MIB}m none "$1"'

pytestmark = pytest.mark.crash


@pytest.fixture
def mounted(tmp_path: Path) -> list[str]:
    """The beginning of a command that sees the small file system at ``tmp_path``."""
    if os.geteuid() != 0:
        pytest.skip("not root: NO DISK WAS FILLED")
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: NO DISK WAS FILLED")
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    tried = subprocess.run(
        [*prefix, MOUNT, "sh", str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    if tried.returncode:
        pytest.skip(f"no tmpfs can be mounted here: NO DISK WAS FILLED ({tried.stderr.strip()})")
    return [*prefix, f'{MOUNT} && shift && exec "$@"', "sh", str(tmp_path)]


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_callers_wait_and_work_goes_on_by_itself(
    mounted: list[str], tmp_path: Path, mode: str
) -> None:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    child = subprocess.run(
        [*mounted, sys.executable, "-m", "fault.fullchild", str(tmp_path), mode],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout)
    assert told["refused"] == "StorageFullError"  # an enqueue at once,
    assert told["waiting"] > 0  # what ends tasks waits,
    assert told["ended"] == LEASED  # and goes on by itself
    assert told["healthy"] == []
    assert told["recoveries"] == told["findings"] == []
    assert (told["ready"], told["results"]) == (TASKS - LEASED + 1, LEASED)
    assert os.listdir(tmp_path) == [], "the file system was mounted for everybody"
