"""The benchmarks run, in a size that measures nothing, and what they keep can be told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
CASES = {
    "body-writes": {"bytes written for large payloads"},
    "body-puts": {"puts of large payloads"},
    "body-space": {"disk after half of the payloads went"},
    "body-sizes": {"body files and inline"},
    "holes": {"passing over a hole", "removing a body file"},
    "ingest": {"a load, staged and taken in", "the loop, while a load comes in"},
    "journal-appends": {"journal appends", "a synced batch of 100 beside LedgerQ"},
    "journal-reads": {"journal reads"},
    "journal-seeks": {"journal seeks"},
    "snapshot-reads": {"decoding a snapshot", "reading a snapshot"},
    "snapshot-takes": {"the longest turn while snapshots are taken"},
    "served": {"cycle over a unix socket"},
}


def python(*args: object) -> str:
    """A process of its own: the benchmarks' modules have names that others have too."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_case_runs_and_is_told(case: str, tmp_path: Path) -> None:
    kept, docs = tmp_path / "bench.json", tmp_path / "docs"
    docs.mkdir()
    python(
        BENCH / "run.py",
        "--only",
        case,
        "--scale",
        "0.001",
        "--repeats",
        "1",
        "--json",
        kept,
        "--dir",
        tmp_path,
    )
    whole = json.loads(kept.read_text())
    found = {result["case"] for result in whole["results"]}
    if case == "body-writes" and not found:  # a file system in memory writes nothing
        assert whole["skipped"]
        return
    assert found >= CASES[case]
    assert all(result["runs"] for result in whole["results"])
    python(BENCH / "report.py", docs, kept)
    page = (docs / "benchmarks.md").read_text()
    for name in found:
        assert f"## {name[0].upper()}{name[1:]}\n" in page
