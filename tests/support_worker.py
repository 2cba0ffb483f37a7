"""Workers and servers that are processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APPS = Path(__file__).resolve().parent / "service" / "worker"
MAIN = "from lodeq.service.cli.entry import main; main()"


class Process:
    """``lodeq …`` as a child; its stderr goes to a file."""

    def __init__(self, folder: Path, name: str, *args: object, **env: str) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", MAIN, *map(str, args)],
                cwd=APPS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **env},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def line(self) -> str:
        """The next line of its output."""
        assert self._child.stdout is not None
        return self._child.stdout.readline().decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def stopped(self) -> None:
        """Wait until a SIGSTOP has been taken."""
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WNOWAIT)

    def wait(self, timeout: float = 60) -> int:
        return self._child.wait(timeout)

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


@contextmanager
def processes(folder: Path, store: str) -> Iterator["Crew"]:
    crew = Crew(folder, store)
    try:
        yield crew
    finally:
        crew.end()


class Crew:
    """Children of one test."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        self._all: list[Process] = []

    def start(self, name: str, *args: object) -> Process:
        process = Process(
            self.folder,
            name,
            *args,
            LODEQ_STORE=self.store,
            LODEQ_NAME=name,
            LODEQ_FIFO=str(self.fifo),
        )
        self._all.append(process)
        return process

    def worker(self, name: str, *args: object) -> Process:
        return self.start(name, "worker", "deploy_app:app", *args)

    def open_fifo(self) -> None:
        """Let whoever reads it go on; returns once somebody does."""
        self.fifo.write_bytes(b"go")

    def end(self) -> None:
        for process in self._all:
            process.end()
