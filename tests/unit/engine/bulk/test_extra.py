"""Without the extra: everything but columns works, and those say what is missing."""

import subprocess
import sys

import pytest


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_core_does_not_know_arrow():
    run(
        "import lodeq, lodeq.engine.bulk.ranges, lodeq.engine.bulk.snapshot_lease, sys\n"
        "assert not {'numpy', 'pyarrow'} & set(sys.modules)"
    )


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_columns_say_what_to_install(missing):
    run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import lodeq\n"
        "try:\n"
        "    import lodeq.engine.bulk.arrow.columns\n"
        "except lodeq.UsageError as error:\n"
        "    assert 'lodeq[spark]' in str(error)\n"
        "else:\n"
        "    raise SystemExit(1)"
    )
