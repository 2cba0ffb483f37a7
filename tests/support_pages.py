"""Pages as sessions: what a reader types, in order, in one folder.

A Python block with ``title="jobs.py"`` is that file; so is any other block with a title. A Python
block without one is a script and runs; behind ``<!-- before -->`` it is another library's and must
compile. A console block is commands and what they print: ``…`` stands for any text, alone on a
line for any lines; nothing behind a command means that what it prints does not matter. A command
that ends with ``&`` goes on until ``kill %1``, or the end of the page: the next one is typed when
it has printed what stands below it. ``<!-- given: name -->`` asks the test for what the reader has.
"""

import ast
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^>]*?) -->\n+)?"
    r"^```(?P<kind>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
INSTALLS = re.compile(r"pip install|python3? -m venv|\. \.venv/bin/activate|sudo |systemctl ")
EXTRAS = re.compile(r"lodeq\[([\w,]+)\]")


@dataclass(frozen=True)
class Block:
    mark: str
    kind: str
    title: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        line = page.count("\n", 0, found.start("text")) + 1
        yield Block(found["mark"] or "", found["kind"], found["title"] or "", found["text"], line)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what stands below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        end = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
        yield "\n".join(lines[:end]), "\n".join(lines[end:]).strip()


def pattern(told: str) -> re.Pattern[str]:
    """Columns may be of other widths."""
    lines = [
        r"(?:.*\n)*?"
        if line == "…"
        else re.sub(r"(?:\\ )+", " +", re.escape(line)).replace("…", ".*?") + r"\s*\n"
        for line in told.splitlines()
    ]
    return re.compile("".join(lines))


class Job:
    """A command that goes on; a thread keeps what it prints."""

    def __init__(self, command: str, folder: Path, env: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._told = ""
        self._more = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with self._more:
                self._told += line
                self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    def says(self, told: str) -> None:
        """Wait until it has printed this."""
        wanted = pattern(told)

        def seen() -> bool:
            return self._over or wanted.search(self._told) is not None

        with self._more:
            assert self._more.wait_for(seen, TIMEOUT_S), self._told
            assert wanted.search(self._told), self._told

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self._child.poll() is None:
            self._child.send_signal(number)
        try:
            code = self._child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            raise
        finally:
            self._reader.join()
            if self._child.stdout is not None:
                self._child.stdout.close()
        return code


class Session:
    """One page, typed in one folder."""

    def __init__(self, folder: Path, given: dict[str, Callable[[Path], object]]) -> None:
        self._folder = folder
        self._given = given
        self._jobs: dict[int, Job] = {}  # by number
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = str(probe.getsockname()[1])
        self._env = {
            **{name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
            "PYTHONUNBUFFERED": "1",
            "UVICORN_PORT": self._port,  # where a page means the default port
        }

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs.values():
            job.end(signal.SIGKILL)

    def type(self, page: str) -> None:
        for mark in re.findall(r"^<!-- given: ([^>]+?) -->$", page, re.MULTILINE):
            self._given[mark](self._folder)
        for block in blocks(page):
            if block.mark == "before":
                compile(block.text, f"line {block.line}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            elif block.title:
                (self._folder / block.title).write_text(block.text, "utf-8")
            elif block.kind == "python":
                self._run([sys.executable, "-c", block.text], block.line)
            elif block.kind == "console":
                for command, told in commands(block.text):
                    self._command(command.replace("8000", self._port), told, block.line)

    def _command(self, command: str, told: str, line: int) -> None:
        told = told.replace("8000", self._port)
        if INSTALLS.match(command):
            assert not installed_in_vain(command), command
        elif command.endswith("&"):
            job = Job(command.removesuffix("&"), self._folder, self._env)
            self._jobs[max(self._jobs, default=0) + 1] = job  # as an interactive shell counts
            assert told, f"line {line}: {command} says nothing to wait for"
            job.says(told)
        elif killed := re.fullmatch(r"kill %(\d+)", command):
            job = self._jobs.pop(int(killed[1]), None)
            assert job is not None, f"line {line}: {command}: no such job"
            assert job.end() == 0, f"line {line}: {command}"
            job.says(told)
        else:
            out = self._run(["bash", "-c", command], line)
            assert not told or pattern(told).fullmatch(f"{out.rstrip()}\n"), (
                f"line {line}: {command}\n{out}"
            )

    def _run(self, command: list[str], line: int) -> str:
        run = subprocess.run(
            command,
            cwd=self._folder,
            env=self._env,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        assert run.returncode == 0, f"line {line}: {shlex.join(command)}\n{run.stdout}"
        return run.stdout


def installed_in_vain(command: str) -> set[str]:
    """Extras that there are none of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {extra for found in EXTRAS.findall(command) for extra in found.split(",")}
    return named - project["optional-dependencies"].keys()
