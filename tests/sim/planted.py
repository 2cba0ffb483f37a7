"""Bugs that real queues have had, as patches of the product: does the simulation find them?

Each is applied to a copy of the package in a folder of its own, never to the product; a patch that
no longer fits fails loudly. ``python tests/sim/planted.py`` runs all of them and prints the seed
that found each.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("coalescer", "engine", "replication", "repository", "testing")
PATCHES = Path(__file__).with_name("planted.patches")
SEEDS_MAX = 500
RUN_S_MAX = 400


@dataclass
class Bug:
    """Changes of one copy: (file, what is there exactly once, what it becomes)."""

    name: str
    edits: list[tuple[str, str, str]]


def bugs() -> list[Bug]:
    """What ``planted.patches`` says."""
    found: list[Bug] = []
    for section in PATCHES.read_text().split("\n= ")[1:]:
        name, *changes = section.split("\n@ ")
        bug = Bug(name.strip(), [])
        for change in changes:
            file, *lines = change.rstrip("\n").split("\n")
            old = [line[1:] for line in lines if line[:1] in {" ", "-"}]
            new = [line[1:] for line in lines if line[:1] in {" ", "+"}]
            bug.edits.append((file, "\n".join(old) + "\n", "".join(f"{x}\n" for x in new)))
        found.append(bug)
    return found


def patched(bug: Bug) -> dict[str, str]:
    """The files that the bug changes, by name.

    Raises:
        LookupError: it does not fit any more.
    """
    texts: dict[str, str] = {}
    for name, old, new in bug.edits:
        text = texts[name] if name in texts else (ROOT / name).read_text()
        if text.count(old) != 1:
            raise LookupError(f"{bug.name!r} does not fit {name} any more: {old!r}")
        texts[name] = text.replace(old, new)
    return texts


def plant(bug: Bug, where: Path) -> None:
    """A copy of the package with the bug in it, at ``where/lodeq``."""
    copy = where / "lodeq"
    copy.mkdir(parents=True)
    for file in ROOT.glob("*.py"):
        shutil.copy(file, copy)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pyc*"))
    for name, text in patched(bug).items():
        (copy / name).write_text(text)


def hunt(
    bug: Bug, where: Path, *, first: int = 0, seeds: int = SEEDS_MAX
) -> tuple[int | None, str]:
    """The first seed that finds the bug, and what it said; (None, …) if none does."""
    plant(bug, where)
    path = os.pathsep.join([str(where), str(ROOT / "tests")])
    kind = bug.name.partition(": ")[0]
    command = [
        sys.executable,
        str(ROOT / "tests" / "sim" / "run.py"),
        "--first",
        str(first),
        "--seeds",
        str(seeds),
        "--workers",
        "1",
        "--until-failure",
        "--no-ledger",
    ]
    told = subprocess.run(
        command,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "LODEQ_SIM_LIMITS": "1" * (kind == "limit"),
            "LODEQ_SIM_HISTORY": "1" * (kind == "history"),
            "LODEQ_SIM_KEYS": "1" * (kind == "keys"),
        },
        cwd=where,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    found = re.search(r"^seed (\d+): (.*)", told.stdout, re.MULTILINE)
    if found is None:
        return None, told.stdout[-500:] + told.stderr[-2000:]
    return int(found[1]), found[2]


def main() -> int:
    missed = 0
    every = bugs()
    for bug in every:
        with tempfile.TemporaryDirectory() as where:
            seed, told = hunt(bug, Path(where))
        missed += seed is None
        print(f"{bug.name:<45} {'MISSED' if seed is None else f'seed {seed}':<9} {told[:150]}")
        sys.stdout.flush()
    print(f"{len(every) - missed} of {len(every)} found within {SEEDS_MAX} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
