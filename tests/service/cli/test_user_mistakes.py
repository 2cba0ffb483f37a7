"""docs/mistakes.md: each row of its tables is typed as it stands there."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from support_pages import blocks, pattern
from support_sources import ROOT

import lodeq.sync
from lodeq.engine.records.keyspace import STAMP
from lodeq.engine.records.rows import Stamp, decode_stamp, encode_stamp
from lodeq.engine.store.rocks import RocksStore, SharedMemory

PAGE = (ROOT / "docs" / "mistakes.md").read_text("utf-8")
FILES = {block.title: block.text for block in blocks(PAGE)}
ROW = re.compile(r"^\| `(?P<typed>.+?)` \| `(?P<said>.+?)` \| (?P<status>\d) \|$", re.MULTILINE)
ANCIENT = encode_stamp(Stamp(0, 1, 0, bytes(16), version=0))  # of a store's shard


class Row(NamedTuple):
    typed: str
    said: str
    status: int


ROWS = [Row(one["typed"], one["said"], int(one["status"])) for one in ROW.finditer(PAGE)]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    made = "lodeq init store && lodeq enqueue store mail hello && lodeq init ancient"
    assert shell(folder, made).returncode == 0
    with lodeq.sync.open(folder / "seen") as engine:
        engine.queue("mail").enqueue(b"", function="send", preview="to='ann'")
    shared = SharedMemory(8 << 20)
    store = RocksStore.open(folder / "ancient" / "shard0", shared=shared, create=False)
    store.write([(STAMP, ANCIENT)])
    store.close()
    return folder


@pytest.fixture
def folder(fresh: Path, tmp_path: Path) -> Path:
    shutil.copytree(fresh, tmp_path, dirs_exist_ok=True)
    return tmp_path


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "400"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.typed)
def test_a_mistake_is_answered_as_the_page_says(folder: Path, row: Row) -> None:
    command = row.typed
    if not command.startswith("lodeq "):
        typed = textwrap.indent(row.typed.replace("⏎", "\n"), " " * 8)
        script = FILES["script.py"].replace("        ...", typed)
        assert script != FILES["script.py"]
        (folder / "script.py").write_text(script, "utf-8")
        command = f"{sys.executable} script.py"
    run = shell(folder, command)
    assert run.returncode == row.status, run.stderr
    lines = run.stderr.strip().splitlines()[-1:] or run.stdout.splitlines()
    assert any(pattern(row.said).fullmatch(f"{line}\n") for line in lines), lines
    assert "Traceback" not in run.stderr or not row.typed.startswith("lodeq ")


def test_formats_are_those_of_today() -> None:
    said = [row.said for row in ROWS if "ancient" in row.typed]
    assert len(said) == 2
    with pytest.raises(lodeq.FormatTooOldError) as raised:
        decode_stamp(ANCIENT)
    assert all(one.endswith(f": {raised.value}") for one in said)


def test_there_are_over_forty_and_none_is_overlooked() -> None:
    assert len(ROWS) > 40
    assert len(ROWS) == sum(line.startswith("| `") for line in PAGE.splitlines())
    assert len({row.typed for row in ROWS}) == len(ROWS)
