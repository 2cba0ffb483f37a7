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
from typing import Any

import pytest
from crash.nursery import TESTS
from fault import ballastchild
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


def run(command: list[str]) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    child = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )
    assert child.returncode == 0, child.stderr
    told: dict[str, Any] = json.loads(child.stdout)
    return told


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_callers_wait_and_work_goes_on_by_itself(
    mounted: list[str], tmp_path: Path, mode: str
) -> None:
    told = run([*mounted, sys.executable, "-m", "fault.fullchild", str(tmp_path), mode])
    assert told["refused"] == "StorageFullError"  # an enqueue at once,
    assert told["waiting"] > 0  # what ends tasks waits,
    assert told["ended"] == LEASED  # and goes on by itself
    assert told["healthy"] == []
    assert told["recoveries"] == told["findings"] == []
    assert (told["ready"], told["results"]) == (TASKS - LEASED + 1, LEASED)
    assert os.listdir(tmp_path) == [], "the file system was mounted for everybody"


@pytest.mark.slow
def test_a_store_that_has_filled_its_volume_opens_after_a_kill(
    mounted: list[str], tmp_path: Path
) -> None:
    told = run([*mounted, sys.executable, "-m", "fault.ballastchild", str(tmp_path)])
    assert told["free"] == 0
    assert told["waiting"] == ballastchild.LEASED  # it was stalled when it was killed
    assert told["wanted"] < told["ballast"], "the test asks for more than there is"
    assert told["missing"] == 0
    assert told["findings"] == []
    assert [text for text in told["recoveries"] if "ballast" in text], told["recoveries"]
    assert not told["left"]
    assert told["again"] == []  # it is said once
    assert told["gained"] > told["ballast"] + 6 * (1 << 20)  # ending tasks gives their space back
    assert told["back"] == told["ballast"]
    assert os.listdir(tmp_path) == [], "the file system was mounted for everybody"
