"""``lodeq serve --processes`` as a process, whose children are killed and looked at.

All it needs lies in one short folder: the path of a socket has 108 bytes at most.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from support_cli import RUN

import lodeq

__all__ = ["Served", "is_gone", "looked", "served"]

READY_S = 90.0  # on a machine that does other things, too
STOP_S = 60.0
POLL_S = 0.02


class Served:
    """One store, served by several processes.

    Args:
        folder: where store and sockets go; short.
        flags: of ``lodeq serve``.
        token: what the test itself shows.
    """

    def __init__(self, folder: Path, flags: Sequence[str], token: str | None = None) -> None:
        self.folder = folder
        self.path = folder / "s"
        self.url = f"unix://{self.path}.sock"
        self._flags = tuple(flags)
        self._token = token
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [*RUN, "serve", str(self.path), *self._flags],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def ready(self) -> None:
        """Until all processes serve."""

        async def is_ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.output
            found = await self.processes()
            return bool(found) and all(one["state"] == "serving" for one in found)

        await looked(is_ready)

    async def get(self, path: str, token: str | None = None) -> httpx.Response:
        return await self._ask("GET", path, token)

    async def post(self, path: str, token: str | None = None) -> httpx.Response:
        return await self._ask("POST", path, token, json={})

    async def _ask(self, method: str, path: str, token: str | None, **how: Any) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(uds=f"{self.path}.sock")
        token = self._token if token is None else token
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=10.0, headers=headers
        ) as client:
            return await client.request(method, path, **how)

    async def processes(self) -> list[dict[str, Any]]:
        """Ask the supervisor about them; nothing if it does not answer."""
        try:
            return (await self.get("/v1/processes")).json()["processes"]
        except httpx.HTTPError:
            return []

    async def kill(self, number: int) -> int:
        """SIGKILL to one of the processes; its pid."""
        pid = (await self.processes())[number]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    async def restarted(self, number: int, times: int = 1) -> dict[str, Any]:
        """Until a process has been started again so often, and serves."""

        async def is_back() -> bool:
            found = await self.processes()
            one = found[number] if found else {}
            return one.get("state") == "serving" and one["restarts"] >= times

        await looked(is_back)
        return (await self.processes())[number]

    def kill_supervisor(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return await asyncio.to_thread(self._process.wait, STOP_S)

    def end(self) -> None:
        """Nothing is left: processes end with their supervisor."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)

    def connect(self, **given: Any) -> Any:
        return lodeq.connect(self.url, **given)

    async def cli(self, *words: str, code: int = 0) -> str:
        """Output of ``lodeq`` with these words."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*RUN, *words],
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


async def looked(condition: Any, seconds: float = READY_S) -> None:
    """Until an async condition holds."""
    until = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < until, "it did not come to that in time"
        await asyncio.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only what is left for its parent to look at."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@contextlib.asynccontextmanager
async def served(
    *flags: str, processes: int = 2, shards: int | None = 4, token: str | None = None
) -> AsyncIterator[Served]:
    """A store that all its processes serve; it is gone at the end, and they are."""
    folder = Path(tempfile.mkdtemp(prefix="lp-"))
    given = ["--processes", str(processes), *flags]
    given += [] if shards is None else ["--shards", str(shards)]
    one = Served(folder, given, token)
    pids: list[int] = []
    try:
        one.start()
        await one.ready()
        yield one
        pids = [found["pid"] for found in await one.processes() if found["pid"]]
    finally:
        one.end()
        until = time.monotonic() + STOP_S
        while not all(map(is_gone, pids)):
            assert time.monotonic() < until, "a process outlives its supervisor"
            await asyncio.sleep(POLL_S)
        shutil.rmtree(folder, ignore_errors=True)
