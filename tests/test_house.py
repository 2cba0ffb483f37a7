"""The ruler reads what is there: each row, on a small package made with known faults."""

from __future__ import annotations

import json
import subprocess

import house
import pytest

FAULTY = {
    "README.md": "# Faulty\n\n[one](a.md) and [two](b.md)\n",
    "setup.py": "# told  # fmt: skip\n",
    "tests/test_it.py": '"""Of the tests, told."""\nx = b"t/"  # fmt: skip\n',
    "__init__.py": '"""The face."""\n\nfrom .repository.queue import open\n',
    "engine/__init__.py": "",
    "engine/keys.py": 'TASK = b"t/"\nSHARD = 7 * 4 >> 12\nKIND = 0x4C\n',
    "repository/__init__.py": "from .claiming import claim\n",
    "repository/claiming.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from .queue import Queue\n"
        "def claim(queue: 'Queue') -> None:\n"
        '    """Of a queue, its first task."""\n'
        "    queue._rows.append(b't/')\n"
    ),
    "repository/queue.py": (
        "from .state import State, _hidden\n"
        "class Queue:\n"
        '    """What holds tasks. Nobody is told; tell_all tells isTold TellAll foretold."""\n'
        "    def __init__(self) -> None:\n"
        "        self._rows = []\n"
        "    def is_told(self, tell: int) -> bool:\n"
        "        return bool(self._rows)\n"
        "    def other(self, one: 'Queue', two: State) -> bool:\n"
        "        from .claiming import claim\n"
        "        return one._rows == two._rows or getattr(two, '_seen')\n"
        "    def put(self, a: int, b: int, c: int, d: int) -> None:\n"
        '        """Put.\n\n        Args:\n            a: Seconds, 0 to 9.\n        """\n'
        "    async def empty(self, a: int, b: int, c: int, d: int) -> None:\n"
        '        """Put.\n\n        Args:\n            nothing\n        """\n'
        "    def few(self, a: int, b: int, c: int) -> None: ...\n"
        "    def _own(self, a: int, b: int, c: int, d: int) -> None: ...\n"
        "def bare(a: int, b: int, c: int, *, d: int) -> None: ...\n"
        "def open() -> Queue:\n"
        "    return Queue()\n"
    ),
    "repository/state.py": (
        "import repository\n"  # not of this package
        "class State:\n"
        "    def __init__(self) -> None:\n"
        "        self._rows = []\n"
        "        self._seen = self._rows._replace()\n"
        "        super()._rows\n"
        "def _hidden(co, pack) -> None:\n"
        "    if isinstance(co.poison, ValueError) or isinstance(co, str):\n"
        "        pack(0x4C, 1, 2)\n"
        "        pack(82, 1, [b'q/', b'm/c/', b't', b'text/'])  # fmt: skip\n"
        "    x = [  # fmt: off\n"
        "        3 * 4 >> 12, -(-3 * SLOTS // 4), 1 << 12, shiftright(x, 12), 0x64, 100]\n"
    ),
    "repository/string_ring.py": "# Generated from queue.py.\n" + "x = 1\n" * 360,
}
CLEAN = {
    "README.md": "",
    "engine/keys.py": 'TASK = b"t/"\nKIND = 0x4C\n',
    "repository/queue.py": '"""Queues: foretold, teller."""\nfrom ..engine.keys import TASK\n',
}
FAULTS = {
    "folder": 5,
    "circles": {"circles": 1, "largest": 2, "files": 2},
    "gerunds": 1,
    "told": 3,
    "told_inside": 7,
    "of": 1,
    "what": 1,
    "args": {"with": 1, "of": 3},
    "fmt_skip": 1,
    "fmt_off": 1,
    "private": 4,
    "keys": 3,
    "records": 3,
    "slots": 3,
    "poison": 1,
    "statements": 45,
    "readme": {"lines": 3, "links": 2},
    "long": 1,
}


@pytest.fixture(scope="module")
def faulty():
    return house.measure(house.Tree(FAULTY))


@pytest.mark.parametrize("row", [key for key, *_ in house.ROWS])
def test_each_row_finds_its_faults(faulty, row):
    assert faulty[row].value == FAULTS[row], "\n".join(faulty[row].found)


def test_a_package_without_faults_reads_nothing():
    figures = house.measure(house.Tree(CLEAN))
    sizes = {"folder": 1, "statements": 4}
    nothing = {"circles": 0, "largest": 0, "files": 0, "with": 0, "of": 0, "lines": 0, "links": 0}
    for key, figure in figures.items():
        want = (
            dict.fromkeys(figure.value, 0) if isinstance(figure.value, dict) else sizes.get(key, 0)
        )
        assert figure.value == want, (key, figure, nothing)


def test_a_row_lists_what_it_counts(faulty):
    assert faulty["circles"].found == ["2: repository/claiming.py repository/queue.py"]
    assert faulty["private"].found == [
        "repository/claiming.py:6: queue._rows",
        "repository/queue.py:1: import _hidden",
        "repository/queue.py:10: getattr(two, '_seen')",
        "repository/queue.py:10: two._rows",
    ]
    assert faulty["args"].found == [
        "repository/queue.py:17: empty",
        "repository/queue.py:25: bare",
    ]


def test_a_name_that_a_package_hands_on_leads_to_its_module():
    files = {
        "a/__init__.py": "from .one import One\nfrom .two import Two\n",
        "a/one.py": "class One: ...\n",
        "a/two.py": "from . import One\nfrom lodeq.a import one\nimport lodeq.b\n",
        "b.py": "",
    }
    arrows = house.imports(house.Tree(files))
    assert arrows["a/two.py"] == {"a/one.py", "b.py"}
    assert not house.strong_components(arrows)


def test_circles_that_touch_are_one():
    arrows = {"a": {"b"}, "b": {"c", "a"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert house.strong_components(arrows) == [["a", "b", "c"], ["d", "e"]]


LODEQ = {
    "__init__.py": "from .queue import open\n",
    "queue.py": (
        "import asyncio, contextlib, functools\n"
        "from . import disk\n"
        "@contextlib.asynccontextmanager\n"
        "async def open(path):\n"
        "    yield Engine()\n"
        "class Engine:\n"
        "    def queue(self, name):\n"
        "        return Queue()\n"
        "class Queue:\n"
        "    async def enqueue(self, payload):\n"
        "        self.check()\n"
        "        done = asyncio.get_running_loop().create_future()\n"
        "        asyncio.get_running_loop().call_soon(functools.partial(disk.write, done))\n"
        "        await done\n"
        "    def check(self):\n"
        "        pass\n"
        "    async def claim(self, limit):\n"
        "        return []\n"
    ),
    "disk.py": (
        "from . import rows\n"
        "def write(done):\n"
        "    [rows.pack(n) for n in range(3)]\n"
        "    done.set_result(None)\n"
    ),
    "rows.py": "def pack(n):\n    return n\n",
}


@pytest.mark.slow
def test_calls_are_followed_through_the_loop_to_the_commit():
    calls = house.trace_files(LODEQ)
    enqueue = house.traced(calls, "enqueue")
    assert enqueue.value == {"hops": 2, "files": 3, "functions": 4}, enqueue
    assert enqueue.found[:2] == ["disk.py -> rows.py", "event loop or thread -> disk.py"]
    assert house.traced(calls, "claim").value == {"hops": 0, "files": 1, "functions": 1}


@pytest.mark.slow
def test_calls_that_cannot_be_followed_are_not_nothing():
    figure = house.traced(house.trace_files({"__init__.py": ""}), "enqueue")
    assert figure.value is None
    assert "no attribute 'open'" in figure.shown


def test_a_commit_and_the_working_tree(tmp_path, monkeypatch, capsys):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    (tmp_path / "told.py").write_text("told = 1\n")
    (tmp_path / "README.md").write_text("[x](y)\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "told.py").unlink()
    (tmp_path / "new.py").write_text("tell = telling = 1\n")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    shown = {}
    for commit in (["HEAD"], []):
        house.main([*commit, "--json", "--no-trace"])
        shown[bool(commit)] = json.loads(capsys.readouterr().out)
    assert shown[True]["told"] == 1
    assert shown[False]["told"] == 2
    assert shown[True]["readme"] == shown[False]["readme"] == {"lines": 1, "links": 1}
    house.main(["--no-trace"])
    assert "| README " in capsys.readouterr().out
    house.main(["--no-trace", "--list", "told"])
    assert capsys.readouterr().out.splitlines() == ["new.py:1: tell = telling = 1"] * 2


def test_every_row_is_defined():
    assert all(row.__doc__ and "\n" not in row.__doc__ for *_, row in house.ROWS)
    assert house.definitions().count("\n    ") == len(house.ROWS) + len(house.CALLS)
