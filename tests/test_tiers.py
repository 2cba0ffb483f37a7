"""The tiers leave nothing out, and no run passes by running nothing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import LATE, SMALL, STARTS, is_in

TESTS = Path(__file__).resolve().parent


def samples():
    """The files that have one."""
    mark, here = "pytest.mark.sample", Path(__file__)
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path != here]
    return [path for path in files if mark in path.read_text("utf-8")]


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
    texts = {path: path.read_text("utf-8") for path in samples()}
    read = {name for name in SMALL for text in texts.values() if f'"{name}"' in text}
    assert read == set(SMALL)
    assert [path.name for path, text in texts.items() if not any(n in text for n in SMALL)] == []


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


PROOF = """
import pytest
from support_seeds import FIRST


@pytest.mark.sample
@pytest.mark.parametrize("n", range(4))
def test_one(n):
    with open(f"seed{n}", "w") as file:
        file.write(str(FIRST))
    assert n < 3, "this one fails"
"""


def play(folder, *options, **variables):
    """(the seeds that the tests of a small run have had, what it said)."""
    (folder / "test_proof.py").write_text(PROOF)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tiers", "--tier=commit", *options],
        cwd=folder,
        env={"PYTHONPATH": str(TESTS), "PATH": ""} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return {path.read_text() for path in folder.glob("seed*")}, told.stdout


@pytest.mark.slow
@pytest.mark.parametrize("spread", [[], ["-n", "2"]], ids=["one process", "workers"])
def test_all_processes_of_a_run_have_the_seed_that_it_names(tmp_path, spread):
    (seed,), said = play(tmp_path, *spread)
    assert int(seed) in STARTS
    assert said.count(f"the samples of the proofs begin at seed {seed}\n") == 2
    assert f'LODEQ_SEED={seed} make test ARGS="test_proof.py"' in said
    others = {next(iter(play(tmp_path, *spread)[0])) for _ in range(6)}
    assert others != {seed}, "seven runs with one seed: nothing is drawn"


@pytest.mark.slow
def test_a_seed_that_is_given_is_taken(tmp_path):
    assert play(tmp_path, LODEQ_SEED="17")[0] == {"17"}


@pytest.mark.slow
def test_what_is_collected_does_not_depend_on_the_seed():
    options = ["--tier=commit", "--collect-only", "-q", "-p", "no:cacheprovider"]
    files = [str(path) for path in samples()]

    def ids(seed):
        told = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=TESTS.parent,
            env={**os.environ, "LODEQ_SEED": seed},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return [line for line in told.stdout.splitlines() if "::" in line]

    assert ids("0") == ids("777777") != []


TURNS = """
import pytest
from support_turns import LoopHeldError

RUNS = []


@pytest.fixture
def fresh():
    RUNS.append(1)
    return len(RUNS)


@pytest.mark.turns
def test_busy(fresh):
    if fresh < 3:
        raise LoopHeldError("the machine is busy")


@pytest.mark.turns
def test_held(fresh):
    raise LoopHeldError(f"held in run {fresh}")


@pytest.mark.turns
def test_wrong(fresh):
    assert fresh == 0, f"wrong in run {fresh}"


def test_unmarked(fresh):
    raise LoopHeldError(f"unmarked in run {fresh}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("spread", [[], ["-n", "1"]], ids=["one process", "workers"])
def test_only_a_callback_that_takes_long_is_tried_three_times(tmp_path, spread):
    (tmp_path / "test_turns.py").write_text(TURNS)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tiers", *spread],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TESTS), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    ).stdout
    assert "3 failed, 1 passed" in told
    for said in ("held in run 6", "wrong in run 7", "unmarked in run 8"):
        assert said in told
