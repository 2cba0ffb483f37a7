"""Real members of etcd on loopback: fetched as a Debian package, unpacked, started and ended here.

Nothing is installed and no service is started. Without the program the tests are skipped; with
``LODEQ_NEEDS_ETCD=1`` they fail.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NoReturn

import pytest
from support_sources import ROOT

from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.ids import SystemRng
from lodeq.replication.etcd.address import EtcdAddress, parse_address

CACHE = ROOT / "build" / "etcd"
PROGRAM = CACHE / "usr" / "bin" / "etcd"
CONTROL = ROOT / "build" / "etcd-client" / "usr" / "bin" / "etcdctl"
TTL_S = 2
READY_S = 30.0


def fetch(place: Path = PROGRAM, package: str = "etcd-server") -> str:
    """Have a program in the cache, or on the PATH; empty, or why that is not possible."""
    cache = place.parents[2]
    if place.exists() or shutil.which(place.name):
        return ""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return f"no {place.name} here, and no apt-get to fetch it: put 3.4 or newer on the PATH"
    cache.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        got = subprocess.run(
            ["apt-get", "-qq", "download", package],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        packages = list(Path(folder).glob(f"{package}_*.deb"))
        if got.returncode or not packages:
            last = (got.stderr.strip().splitlines() or ["apt-get failed"])[-1]
            return f"{package} cannot be fetched: {last}; try: apt-get update"
        unpacked = Path(folder) / "unpacked"
        subprocess.run(["dpkg-deb", "-x", packages[0], unpacked], check=True, timeout=120)
        shutil.rmtree(cache, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process has been faster
            unpacked.rename(cache)
    return ""


def program(place: Path = PROGRAM, package: str = "etcd-server") -> str:
    """Its path. Without one the tests are skipped, or fail where they must run."""
    why = fetch(place, package)
    if why:
        lack(why)
    return str(place) if place.exists() else str(shutil.which(place.name))


def lack(why: str) -> NoReturn:
    """Skip a test for want of a program, or fail it where these tests must run."""
    if os.environ.get("LODEQ_NEEDS_ETCD") == "1":
        pytest.fail(why)
    pytest.skip(why)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class EtcdServers:
    """Some members that make one etcd. Each is ended by its process alone."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        flags: tuple[str, ...] = (),
        scheme: str = "http",
        quota_bytes: int = 256 << 20,
    ) -> None:
        self.folder = folder
        self.scheme = scheme
        self.quota_bytes = quota_bytes
        self._flags = (*flags, f"--quota-backend-bytes={quota_bytes}")
        self._program = program()
        self.ports = free_ports(count)
        self._peers = free_ports(count)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        for at in range(count):
            self.start(at)
        self.wait_ready()

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def start(self, at: int) -> None:
        names = [f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(self._peers)]
        client = f"{self.scheme}://127.0.0.1:{self.ports[at]}"
        peer = f"http://127.0.0.1:{self._peers[at]}"
        with (self.folder / f"m{at}.log").open("ab") as log:
            self._processes[at] = subprocess.Popen(
                [
                    self._program,
                    f"--name=m{at}",
                    f"--data-dir={self.data(at)}",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={','.join(names)}",
                    "--initial-cluster-state=new",
                    f"--initial-cluster-token={self.folder.name}",
                    "--heartbeat-interval=50",
                    "--election-timeout=500",
                    "--log-level=warn",
                    *self._flags,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin", "GOMAXPROCS": "1"},
            )

    def data(self, at: int) -> Path:
        return self.folder / f"data{at}"

    def wait_ready(self) -> None:
        """Until every running member says that it is well."""
        for at, process in enumerate(self._processes):
            if process is None:
                continue
            for _ in range(int(READY_S / 0.05)):
                if self._is_ready(at):
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
                    raise RuntimeError((self.folder / f"m{at}.log").read_text()[-2000:])
            else:
                raise RuntimeError(f"member {at} is not ready after {READY_S} s")

    def _is_ready(self, at: int) -> bool:
        if self.scheme == "https":  # asks for a certificate: connecting has to do
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.ports[at]), 1),
            ):
                return True
            return False
        try:
            url = f"http://127.0.0.1:{self.ports[at]}/health"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def send(self, at: int, number: signal.Signals) -> None:
        process = self._processes[at]
        assert process is not None
        process.send_signal(number)

    def kill(self, at: int) -> None:
        process, self._processes[at] = self._processes[at], None
        if process is not None:
            process.kill()
            process.wait(10)

    @contextlib.contextmanager
    def frozen(self, *numbers: int):
        """These members do not run, and their ports accept."""
        for at in numbers:
            self.send(at, signal.SIGSTOP)
        try:
            yield
        finally:
            for at in numbers:
                self.send(at, signal.SIGCONT)

    @contextlib.contextmanager
    def dead(self, *numbers: int):
        """These members are killed, and started again."""
        for at in numbers:
            self.kill(at)
        try:
            yield
        finally:
            for at in numbers:
                self.start(at)
            self.wait_ready()

    def control(self, *words: str) -> None:
        """Run ``etcdctl``."""
        subprocess.run(
            [self.control_program(), *words],
            check=True,
            capture_output=True,
            timeout=60,
            env={"PATH": "/usr/bin:/bin", "ETCDCTL_API": "3"},
        )

    def control_program(self) -> str:
        """Path of ``etcdctl``; see ``program`` where there is none."""
        return program(CONTROL, "etcd-client")

    def save(self, snapshot: Path) -> None:
        """Take a snapshot, as an operator does."""
        self.control(f"--endpoints={self.endpoints[0]}", "snapshot", "save", str(snapshot))

    def restore(self, snapshot: Path) -> None:
        """Put all members back to a snapshot, as an operator does."""
        names = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(self._peers))
        for at in range(len(self._processes)):
            self.kill(at)
        for at, port in enumerate(self._peers):
            shutil.rmtree(self.data(at))
            self.control(
                "snapshot",
                "restore",
                str(snapshot),
                f"--name=m{at}",
                f"--data-dir={self.data(at)}",
                f"--initial-cluster={names}",
                f"--initial-cluster-token={self.folder.name}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{port}",
            )
        for at in range(len(self._processes)):
            self.start(at)
        self.wait_ready()

    def stop(self) -> None:
        for at in range(len(self._processes)):
            self.kill(at)

    def url(self, name: str, *, first: int = 0, more: str = "") -> str:
        order = self.endpoints[first:] + self.endpoints[:first]
        settings = f"ttl={TTL_S}&quota={self.quota_bytes}{more}"
        return f"etcd://{','.join(order)}/{name}?{settings}"


_shared: list[EtcdServers] = []
_names = iter(range(1 << 30))


def shared_servers() -> EtcdServers:
    """Three members for the whole run: what a test does to them it undoes."""
    if not _shared:
        folder = Path(tempfile.mkdtemp(prefix="lodeq-etcd-"))
        servers = EtcdServers(folder)
        _shared.append(servers)

        @atexit.register
        def end() -> None:
            servers.stop()
            shutil.rmtree(folder, ignore_errors=True)

    return _shared[0]


def fresh_name() -> str:
    """The name of a cluster that nobody has used: tests share one etcd."""
    return f"c{os.getpid()}-{next(_names)}"


def log_of(address: EtcdAddress | str, **given):
    """A connection, not yet connected."""
    from lodeq.replication.etcd.log import EtcdLog

    parsed = parse_address(address) if isinstance(address, str) else address
    return EtcdLog(parsed, clock=SystemClock(), rng=SystemRng(), **given)


@contextlib.asynccontextmanager
async def closing(*logs) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for log in logs:
            await log.close()


async def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something that another process does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not holds():
        if loop.time() > end:
            raise AssertionError(f"not within {seconds} s")
        await asyncio.sleep(0.02)


async def looked(look, holds, seconds: float = 10.0):
    """The first answer of ``look`` that is as it should be."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = await look()
        if holds(found):
            return found
        assert loop.time() < end, f"not within {seconds} s: {found}"
        await asyncio.sleep(0.05)


class Raw:
    """Keys of one cluster, read and written past the adapter."""

    def __init__(self, url: str) -> None:
        from lodeq.replication.etcd.endpoints import Endpoints
        from lodeq.replication.etcd.keys import Keys

        address = parse_address(url)
        self.keys = Keys(address.prefix)
        self.endpoints = Endpoints(address, SystemClock())
        self.endpoints.open()

    async def txn(self, *ops):
        from lodeq.replication.etcd.rpc import Rpc
        from lodeq.replication.etcd.txn import txn

        return await self.endpoints.call(Rpc.TXN, txn([], ops), 5)

    async def all(self) -> dict[str, bytes]:
        """By key, without the prefix."""
        return {name: kv.value for name, kv in (await self.kvs()).items()}

    async def kvs(self):
        from lodeq.replication.etcd.txn import kvs, scan

        prefix = self.keys.prefix
        answer = await self.txn(scan(prefix, prefix[:-1] + b"0"))
        return {kv.key[len(prefix) :].decode(): kv for kv in kvs(answer, 0)}

    async def expire(self, node: str) -> None:
        from lodeq.replication.etcd import rpc_pb2 as pb
        from lodeq.replication.etcd.rpc import Rpc

        found = (await self.kvs()).get(f"member/{node}")
        if found is not None:
            request = pb.LeaseRevokeRequest(ID=found.lease)
            await self.endpoints.call(Rpc.LEASE_REVOKE, request, 5)

    async def damage(self, shard: int, index: int) -> None:
        """Change a byte of the record that holds an entry."""
        from lodeq.replication.etcd.txn import put

        found = await self.all()
        names = sorted(
            name for name in found if name.startswith(f"log/{shard:04}/") and name.count("/") == 2
        )
        name = max(name for name in names if int(name[-20:]) <= index)
        value = found[name]
        changed = value[:-1] + bytes([value[-1] ^ 1])
        await self.txn(put(self.keys.prefix + name.encode(), changed))

    async def orphans(self, shard: int) -> int:
        """How many fragments belong to no record."""
        from lodeq.replication.fragments import Head, read_stored

        found = await self.all()
        heads = set()
        for name, value in found.items():
            if name.startswith(f"log/{shard:04}/") and name.count("/") == 2:
                stored = read_stored(value)
                if isinstance(stored, Head):
                    heads.add((stored.first, stored.term, stored.nonce.hex()))
        parts = [name.split("/")[2:] for name in found if name.startswith(f"log/{shard:04}/")]
        cut = [part for part in parts if len(part) == 4]
        return sum((int(first), int(term), nonce) not in heads for first, term, nonce, _ in cut)

    async def close(self) -> None:
        await self.endpoints.close()


class Proxy:
    """A TCP proxy in front of one member, which can lose what it answers."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self._to = port
        self._host = host
        self.port = 0
        self.is_losing = False
        self.lost_bytes = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, back}
        for source, target, is_answer in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._pass(source, target, is_answer))
            self._tasks.add(task)

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(await self._take(data, is_answer=is_answer))
                await target.drain()
        target.close()

    async def _take(self, data: bytes, *, is_answer: bool) -> bytes:
        """Take some bytes on their way; those that go on."""
        if is_answer and self.is_losing:
            self.lost_bytes += len(data)
            return b""
        return data


if __name__ == "__main__":
    raise SystemExit(fetch() or 0)
