"""Children that are there to be killed, a thousand a minute.

Starting Python and importing lodeq takes longer than a cycle of load, kill and reopen. So one
process, the nursery, imports everything once, opens nothing (a process that has opened a store
cannot fork into one that opens another), and forks a child per request. It is also the one that
kills and reaps, so a process id can never have been reused by then.

    with Nursery() as nursery:
        child = nursery.start("crash.load", {"path": ..., ...})
        ...
        nursery.kill(child)

A child runs ``main(fd, config)`` of the module named; what it writes to ``fd`` is read with
``child.records(...)``: one JSON array a line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ENTRIES = ("crash.load", "crash.migrate_child", "crash.tick_child")
PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031


class Child:
    """A forked process, and the reading end of its pipe."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self.is_over = False
        self._rest = b""

    def read(self, until: float) -> list[list]:
        """Whole records that came before the monotonic moment ``until``; [] at its end too."""
        while not self.is_over:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return []
            data = os.read(self.fd, PIPE_BYTES)
            self.is_over = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                return [json.loads(line) for line in lines]
        return []

    def rest(self) -> list[list]:
        """All that is left after its death. A record cut off by it never counted."""
        records: list[list] = []
        while not self.is_over:
            records += self.read(time.monotonic() + 60)
        os.close(self.fd)
        return records


class Nursery:
    """The parent's side."""

    def __enter__(self) -> Nursery:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(60)
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "crash.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
            )
        self._socket = ours
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()

    def start(self, entry: str, config: dict) -> Child:
        """Fork a child that runs ``entry``."""
        reader, writer = os.pipe()
        with contextlib.suppress(OSError):
            import fcntl

            fcntl.fcntl(reader, F_SETPIPE_SZ, PIPE_BYTES)
        request = json.dumps({"entry": entry, "config": config}).encode()
        socket.send_fds(self._socket, [request], [writer])
        os.close(writer)
        return Child(self._answer(), reader)

    def kill(self, child: Child) -> int:
        """SIGKILL, if it is still there, and how it ended: minus the signal, or its exit code."""
        self._socket.send(json.dumps({"kill": child.pid}).encode())
        return self._answer()

    def wait(self, child: Child) -> int:
        """How it ended. Call it after the end of its pipe."""
        self._socket.send(json.dumps({"wait": child.pid}).encode())
        return self._answer()

    def _answer(self) -> int:
        data = self._socket.recv(64)
        if not data:
            raise RuntimeError("the nursery is gone")
        return int(data)


def _run(entry: str, fd: int, config: dict) -> int:
    try:
        importlib.import_module(entry).main(fd, config)
    except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
        with contextlib.suppress(OSError):
            os.write(fd, json.dumps(["crash", traceback.format_exc()]).encode() + b"\n")
        return 1
    return 0


def _end(pid: int, children: set[int], *, by_force: bool) -> int:
    if by_force:
        os.kill(pid, signal.SIGKILL)
    children.discard(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve(sock: socket.socket) -> None:
    """The nursery's side: until the parent hangs up."""
    children: set[int] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        if not data:
            break
        request = json.loads(data)
        if "entry" not in request:
            pid = request.get("kill") or request["wait"]
            sock.send(str(_end(pid, children, by_force="kill" in request)).encode())
            continue
        pid = os.fork()
        if not pid:
            sock.close()
            os._exit(_run(request["entry"], fds[0], request["config"]))
        os.close(fds[0])
        children.add(pid)
        sock.send(str(pid).encode())
    for pid in list(children):
        _end(pid, children, by_force=True)


if __name__ == "__main__":
    for name in ENTRIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        serve(parent)
