"""Queues with a server: started on loopback or a socket file, in a folder of their own, stopped.

The clients are those their users would take, over a Unix socket where there is one: the shortest
way there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from . import programs
from .base import Peer, no_package
from .echo import EchoSession

__all__ = [
    "BareEcho",
    "BareEchoSynced",
    "BeanstalkdDefault",
    "BeanstalkdSync",
    "PgQueuer",
    "RedisAlways",
    "RedisEverysec",
]

START_S_MAX = 30.0


class _Server(Peer):
    program: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        lacking = no_package(*cls.modules)
        if lacking is None and programs.find(cls.program) is None:
            lacking = f"no {cls.program}: `make bench-peers` fetches it"
        return lacking

    @property
    def socket(self) -> str:
        return str(self.folder / "s")

    def start(self, *args: str, **more: Any) -> None:
        """The program, until its socket file is there."""
        log = open(self.folder / "log", "wb")  # noqa: SIM115 - the child's, closed below
        with log:
            self.process = subprocess.Popen(
                [programs.find(self.program) or self.program, *args],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=programs.environment(),
                **more,
            )
        until = time.monotonic() + START_S_MAX
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.folder / "log").read_text("utf-8", "replace")[-800:])
            time.sleep(0.05)

    def is_up(self) -> bool:
        return os.path.exists(self.socket)

    def close(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RedisSession:
    """A consumer of a group: XADD, XREADGROUP, then XACK and XDEL with the result in one go."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name

    async def put(self, payload: bytes) -> None:
        await self.client.xadd("tasks", {"p": payload})

    async def take(self) -> Any:
        found = await self.client.xreadgroup("workers", self.name, {"tasks": ">"}, count=1)
        if not found:
            return None
        entries = found[b"tasks"] if isinstance(found, dict) else found[0][1]
        while entries and isinstance(entries[0], list):
            entries = entries[0]
        return entries[0][0]

    async def done(self, token: Any, result: bytes) -> None:
        pipe = self.client.pipeline(transaction=True)
        pipe.xack("tasks", "workers", token)
        pipe.xdel("tasks", token)
        pipe.set(b"r:" + token, result, ex=3600)
        await pipe.execute()

    async def close(self) -> None:
        await self.client.aclose()


class _Redis(_Server):
    program = "redis-server"
    modules = ("redis",)
    keeps = "pending list, result"
    is_async = True
    policy: ClassVar[str]

    def open(self) -> None:
        self.start(
            "--port",
            "0",
            "--unixsocket",
            self.socket,
            "--unixsocketperm",
            "700",
            "--dir",
            str(self.folder),
            "--appendonly",
            "yes",
            "--appendfsync",
            self.policy,
            "--save",
            "",
            "--daemonize",
            "no",
        )
        import redis

        with redis.Redis(unix_socket_path=self.socket) as client:
            client.xgroup_create("tasks", "workers", id="0", mkstream=True)

    def session(self) -> RedisSession:
        import redis.asyncio

        client = redis.asyncio.Redis(unix_socket_path=self.socket, single_connection_client=True)
        return RedisSession(client, uuid.uuid4().hex)


class RedisEverysec(_Redis):
    name = "Redis streams, everysec"
    durability = "os"
    policy = "everysec"


class RedisAlways(_Redis):
    name = "Redis streams, always"
    durability = "fsync"
    policy = "always"


class BareEcho(_Server):
    """No queue: what a round trip costs with asyncio on both sides, and nothing done."""

    name = "a bare echo by asyncio"
    durability = "none"
    keeps = "nothing"
    is_async = True
    program = sys.executable
    modules = ()

    @classmethod
    def missing(cls) -> str | None:
        return None

    def open(self) -> None:
        self.start(str(Path(__file__).with_name("echo.py")), self.socket)

    def session(self) -> EchoSession:
        return EchoSession(self.socket)


class BareEchoSynced(BareEcho):
    """The same with a sync for each turn of its loop. Each caller has a socket of its own."""

    name = "a bare echo by asyncio, synced"
    durability = "fsync"

    def open(self) -> None:
        where = str(Path(__file__).with_name("echo.py")), self.socket, str(self.folder / "echo.log")
        self.start(*where)


class BeanstalkdSession:
    def __init__(self, path: str) -> None:
        import greenstalk

        self.timed_out = greenstalk.TimedOutError
        self.client = greenstalk.Client(path, encoding=None)

    def put(self, payload: bytes) -> None:
        self.client.put(payload, ttr=30)

    def take(self) -> Any:
        with contextlib.suppress(self.timed_out):
            return self.client.reserve(timeout=0)
        return None

    def done(self, token: Any, result: bytes) -> None:
        self.client.delete(token)

    def close(self) -> None:
        self.client.close()


class _Beanstalkd(_Server):
    program = "beanstalkd"
    modules = ("greenstalk",)
    keeps = "lease (TTR)"
    flag: ClassVar[str]

    def open(self) -> None:
        (self.folder / "log.d").mkdir()
        self.start("-l", f"unix:{self.socket}", "-b", str(self.folder / "log.d"), self.flag)

    def session(self) -> BeanstalkdSession:
        return BeanstalkdSession(self.socket)


class BeanstalkdDefault(_Beanstalkd):
    name = "beanstalkd, default"
    durability = "os"
    flag = "-f50"


class BeanstalkdSync(_Beanstalkd):
    name = "beanstalkd -f0"
    durability = "fsync"
    flag = "-f0"


class PgQueuerSession:
    def __init__(self, peer: PgQueuer) -> None:
        self.peer = peer
        self.queries: Any = None

    async def ready(self) -> Any:
        if self.queries is None:
            import asyncpg
            from pgqueuer.db import AsyncpgDriver
            from pgqueuer.queries import Queries

            self.connection = await asyncpg.connect(
                host=str(self.peer.folder), user="bench", database="postgres"
            )
            self.queries = Queries(AsyncpgDriver(self.connection))
        return self.queries

    async def put(self, payload: bytes) -> None:
        await (await self.ready()).enqueue("bench", payload)

    async def take(self) -> Any:
        found = await (await self.ready()).dequeue(
            1, {"bench": self.peer.entrypoint}, self.peer.manager, None, timedelta(seconds=30)
        )
        return found[0] if found else None

    async def done(self, token: Any, result: bytes) -> None:
        await (await self.ready()).log_jobs([(token, "successful", None)])

    async def close(self) -> None:
        if self.queries is not None:
            await self.connection.close()


class PgQueuer(_Server):
    name = "pgqueuer on PostgreSQL"
    durability = "fsync"
    keeps = "lease (heartbeat), log"
    program = "postgres"
    modules = ("pgqueuer", "asyncpg")
    is_async = True
    callers_max = 32

    def open(self) -> None:
        # PostgreSQL refuses to run as root: then it runs as nobody, in a folder of nobody's.
        more: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
        if more:
            shutil.chown(self.folder, "nobody", "nogroup")
            self.folder.parent.chmod(0o711)
        data = str(self.folder / "data")
        made = subprocess.run(
            [programs.find("initdb") or "initdb", "-D", data, "-U", "bench", "-A", "trust"],
            capture_output=True,
            text=True,
            env=programs.environment(),
            cwd=self.folder,
            timeout=120,
            check=False,
            **more,
        )
        if made.returncode:
            raise RuntimeError(made.stderr[-800:])
        self.start("-D", data, "-k", str(self.folder), "-h", "", "-N", "64", **more)
        asyncio.run(self._install())

    def is_up(self) -> bool:
        return (self.folder / ".s.PGSQL.5432").exists()

    async def _install(self) -> None:
        from pgqueuer.ports.repository import EntrypointExecutionParameter

        self.manager = uuid.uuid4()
        self.entrypoint: Any = EntrypointExecutionParameter(0)
        session = PgQueuerSession(self)
        until = time.monotonic() + START_S_MAX
        while True:
            try:
                queries = await session.ready()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)
        await queries.install()
        await session.close()

    def session(self) -> PgQueuerSession:
        return PgQueuerSession(self)
