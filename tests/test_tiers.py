"""The tiers leave nothing out, and no run passes by running nothing."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import LATE, SMALL, is_in

TESTS = Path(__file__).resolve().parent


def test_between_them_the_tiers_run_every_test():
    known = [*LATE, "sample", "interpreted"]
    for size in range(len(known) + 1):
        for marks in map(set, itertools.combinations(known, size)):
            tiers = [tier for tier in ("commit", "rest") if is_in(tier, marks)]
            if "sample" in marks:
                assert tiers == ["commit", "rest"]
            else:
                assert tiers == ["rest" if marks & LATE else "commit"]


def test_what_is_a_sample_reads_its_size():
    """The other way round, too: a size that nothing reads is another proof's old name."""
    texts = {path: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}
    samples = {path: text for path, text in texts.items() if "\n@pytest.mark.sample\n" in text}
    read = {name for name in SMALL for text in samples.values() if f'"{name}"' in text}
    assert read == set(SMALL)
    assert [path.name for path, text in samples.items() if not any(n in text for n in SMALL)] == []


@pytest.mark.slow
@pytest.mark.parametrize("spread", [[], ["-n", "1"]], ids=["one process", "workers"])
def test_a_run_in_which_too_few_pass_fails(tmp_path, spread):
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n\ndef test_one():\n    pass\n\n\n@pytest.mark.skip\ndef test_two(): ...\n"
    )

    def run(least):
        command = [sys.executable, "-m", "pytest", "-p", "tiers", "-q", *spread]
        return subprocess.run(
            [*command, "--at-least", str(least)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(TESTS), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert run(1).returncode == 0
    short = run(2)
    assert short.returncode == 1
    assert "1 tests passed, at least 2 have to" in short.stdout
