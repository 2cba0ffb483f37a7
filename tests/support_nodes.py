"""Nodes of a cluster as processes: ``lodeq serve --replicate``, killed and frozen.

All they need lies in one short folder: the path of a socket has 108 bytes at most. Each process is
ended by itself, and at the end all of them are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from support_cli import RUN
from support_etcd import TTL_S, EtcdServers, fresh_name, looked
from support_replication import whole_pairs

import lodeq
from lodeq.engine.files.paths import bodies_path
from lodeq.engine.offline.read_only import look_at
from lodeq.engine.records.keyspace import BODY
from lodeq.engine.records.rows import decode_body
from lodeq.engine.records.task import whole_record
from lodeq.segments.bodies.reader import BodyReader

__all__ = ["TTL", "Nodes", "nodes_of", "report", "rows_of"]

OPEN = b"m/open"  # which whoever looks writes

ALTERED = Path(__file__).parent / "cluster" / "altered_node.py"
READY_S = 30.0
STOP_S = 20.0
CHECKPOINT_EVERY_S = 3600.0  # only when a test asks
TTL = float(TTL_S)


class Nodes:
    """The nodes of one cluster.

    Args:
        folder: where their stores and sockets go; short.
        servers: the etcd that has their log.
        shards: of the cluster.
        name: of the cluster; None: one that nobody has used.
        copies: of each shard; None: one on every node.
        flags: further ones for every node.
        altered: by node, what is different about its program; see ``altered_node.py``.
        env: further variables of the processes' environment.
        more: further parameters of the log's address, as ``&ca=FILE``.
    """

    def __init__(
        self,
        folder: Path,
        servers: EtcdServers,
        *,
        shards: int = 2,
        name: str | None = None,
        copies: int | None = None,
        flags: Sequence[str] = (),
        altered: Mapping[str, Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None,
        more: str = "",
    ) -> None:
        self.folder = folder
        self.cluster = fresh_name() if name is None else name
        more = more if copies is None else f"{more}&copies={copies}"
        self.url = servers.url(self.cluster, more=more)
        self.urls: dict[str, str] = {}  # by node, where it is another
        self.prefixes: dict[str, list[str]] = {}  # by node, what its command is started with
        self.altered = dict(altered or {})
        self._env = {**os.environ, **(env or {})}
        self.shards = shards
        self._flags = tuple(flags)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._frozen: set[str] = set()
        self.names: list[str] = []

    # -- processes ---------------------------------------------------------------------

    def path(self, name: str) -> Path:
        return self.folder / name

    def socket(self, name: str) -> str:
        return f"{self.path(name)}.sock"

    def node_url(self, name: str) -> str:
        return f"unix://{self.socket(name)}"

    def output(self, name: str) -> str:
        """All that the processes of this node have written."""
        place = self.folder / f"{name}.out"
        return place.read_text(errors="replace") if place.exists() else ""

    def command(self, name: str, *more: str, path: str | None = None) -> list[str]:
        program = RUN
        if name in self.altered:
            program = [sys.executable, str(ALTERED), *self.altered[name], "--"]
        return [
            *self.prefixes.get(name, []),
            *program,
            "serve",
            str(self.path(path or name)),
            "--replicate",
            self.urls.get(name, self.url),
            "--node",
            name,
            "--shards",
            str(self.shards),
            "--checkpoint-every",
            str(CHECKPOINT_EVERY_S),
            *self._flags,
            *more,
        ]

    def start(self, name: str, *more: str) -> None:
        """A process for this node, whose store may be there already."""
        Path(self.socket(name)).unlink(missing_ok=True)
        if name not in self.names:
            self.names.append(name)
        with (self.folder / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                self.command(name, *more),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=self._env,
            )

    def is_running(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def is_up(self, name: str) -> bool:
        """Whether it runs and is not frozen."""
        return self.is_running(name) and name not in self._frozen

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """SIGKILL, which a frozen process gets as well."""
        process = self._processes[name]
        process.kill()
        process.wait(STOP_S)
        self._frozen.discard(name)

    def freeze(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)
        self._frozen.add(name)

    def thaw(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)
        self._frozen.discard(name)

    async def ended(self, name: str, seconds: float) -> int:
        """The exit code of a process that ends by itself."""
        return await asyncio.to_thread(self._processes[name].wait, seconds)

    async def stop(self, name: str) -> int:
        """SIGTERM; the exit code."""
        process = self._processes[name]
        process.terminate()
        return await asyncio.to_thread(process.wait, STOP_S)

    def end(self) -> None:
        """No process is left."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(STOP_S)

    # -- what they say -----------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def http(self, name: str, timeout_s: float = 5.0) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.AsyncHTTPTransport(uds=self.socket(name))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=timeout_s
        ) as client:
            yield client

    async def status(self, name: str) -> dict[str, Any] | None:
        """What a node says of the cluster; None: it does not answer."""
        if not self.is_up(name):
            return None
        try:
            async with self.http(name, 2.0) as client:
                answer = await client.get("/cluster/status")
            return answer.json() if answer.is_success else None
        except (httpx.HTTPError, ValueError):
            return None

    async def post(self, name: str, path: str, document: Any = None) -> dict[str, Any]:
        async with self.http(name, 60.0) as client:
            answer = await client.post(path, json={} if document is None else document)
        assert answer.is_success, answer.text
        return answer.json()

    async def drain(self, name: str, *, undo: bool = False) -> list[int]:
        """The shards that it leads still."""
        return (await self.post(name, "/cluster/drain", {"drain": not undo}))["leads"]

    async def leaders(self) -> list[str] | None:
        """Who serves each shard, by what nodes say of themselves; None: one has nobody."""
        found: list[str | None] = [None] * self.shards
        for name in self.names:
            status = await self.status(name)
            for one in status["shards"] if status else ():
                if one["role"] == "leading":
                    found[one["shard"]] = name
        return None if None in found else found  # type: ignore[return-value]

    async def led(self, seconds: float = READY_S) -> list[str]:
        """Who serves each shard, once every shard is served."""
        for name in self.names:
            if name in self._processes and self._processes[name].poll() not in (None, -9, 0):
                raise AssertionError(f"{name} ended: {self.output(name)[-2000:]}")
        return await looked(self.leaders, lambda found: found is not None, seconds)

    async def have_sessions(self) -> bool:
        """Whether every node is a member of the cluster."""
        found = [await self.status(name) for name in self.names]
        return all(status is not None and status["session_s"] > 0 for status in found)

    async def level(self, names: Sequence[str] | None = None, seconds: float = READY_S) -> None:
        """Until these nodes have applied all that the log has."""

        async def look() -> list[dict[str, Any] | None]:
            return [await self.status(name) for name in (self.names if names is None else names)]

        def holds(found: list[dict[str, Any] | None]) -> bool:
            if not all(found):
                return False
            shards = [one for status in found if status for one in status["shards"]]
            lasts = {(one["shard"], one["last"]) for one in shards}
            here = [one for one in shards if one["role"] != "absent"]
            return len(lasts) == self.shards and all(one["last"] == one["applied"] for one in here)

        try:
            await looked(look, holds, seconds)
        except AssertionError as error:
            ends = {name: self.output(name)[-800:] for name in self.names}
            raise AssertionError(f"{error}; {ends}") from error

    def address(self) -> str:
        return "lodeq://" + ",".join(f"unix:{self.socket(name)}" for name in self.names)

    def connect(self, **given: Any) -> Any:
        """A client of all nodes."""
        return lodeq.connect(self.address(), **given)

    def connect_to(self, name: str, **given: Any) -> Any:
        """A client of one node, which follows nobody."""
        return lodeq.connect(self.node_url(name), **given)

    async def cli(self, *words: str, seconds: float = 60.0) -> tuple[int, str]:
        """Exit code and output of ``lodeq`` with these words."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*RUN, *words],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    async def position(self) -> Any:
        """The cluster as its log has it."""
        code, said = await self.cli("cluster", "status", self.url, "--json")
        assert code in (0, 1), said
        return json.loads(said)


def report(line: str) -> None:
    """Print a figure; ``pytest -s`` shows it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def rows_of(path: Path) -> list[dict[bytes, bytes]]:
    """The rows of a closed store by shard, without those that a node has for itself."""
    opened = look_at(path)
    found = []
    try:
        for shard in opened.shards:
            pairs = dict(shard.store.scan(b"", b"\xff", 1 << 30))
            pairs.pop(OPEN, None)
            reader = BodyReader.of(bodies_path(str(path), shard.index))
            found.append(whole_pairs(pairs, partial(_whole, pairs, reader)))
            reader.close()
    finally:
        opened.close()
    return found


def _whole(
    pairs: dict[bytes, bytes], reader: BodyReader, task_id: bytes, raw: bytes
) -> bytes | None:
    """A record with its payload in it; None: that is lost."""
    body = reader.read_row(decode_body(pairs[BODY + task_id]))
    return None if body is None else whole_record(raw, body)


@contextlib.asynccontextmanager
async def nodes_of(
    servers: EtcdServers, names: Sequence[str] = ("a", "b", "c"), **given: Any
) -> AsyncIterator[Nodes]:
    """A cluster whose shards are served; it and its folder are gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ln-"))
    nodes = Nodes(folder, servers, **given)
    try:
        for name in names:
            nodes.start(name)
        if names:
            await nodes.led()
            await nodes.level()
        yield nodes
    finally:
        nodes.end()
        shutil.rmtree(folder, ignore_errors=True)
