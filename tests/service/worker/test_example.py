"""The example does what it says, as its reader would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "newsletter.py"


@pytest.mark.slow
def test_the_newsletter(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "No. 1: 42 sent\n"), run.stderr
