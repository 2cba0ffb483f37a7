"""A server, and clients in processes of their own: one, two and four, each with many callers.

The CPU time of both sides is counted a call (a cycle is three calls). Redis streams and beanstalkd
stand in the same rounds with as many processes and callers, over Unix sockets, with the clients
their users take. beanstalkd's default has no goal: it keeps no result and syncs nothing at an
acknowledgement. It is shown, because it is the fastest here. A lone caller stands beside a server
that does nothing: three round trips by asyncio take that long. In fsync mode one and 32 callers
stand beside the same with a sync each turn. The longest turns are those of the
server's loop; one server more leaves Python's garbage collector as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peers import servers
from results import Bench, Goal, Result
from server_process import CPU, NUMBERS, PASS, WALL, told
from watch import Ceiling, Watch, add_turns

CHILD = Path(__file__).parents[1] / "client_process.py"
SERVER = CHILD.with_name("server_process.py")
TICKS = os.sysconf("SC_CLK_TCK")
CALLS = 3  # of a cycle
CASE = "served to client processes"
BESIDE = "served, beside other servers"
LEAD_S = 0.1  # until all begin, so that the last to hear of it is not late
THREE_TIMES = Goal("ratio", least=3.0)


class Shape(NamedTuple):
    """A load: the number of processes, of callers in each, and of tasks a call."""

    processes: int
    callers: int
    batch: int = 1

    @property
    def api(self) -> str:
        return "single" if self.batch == 1 else f"batches of {self.batch}"


SINGLES = [Shape(processes, callers) for processes in (1, 2, 4) for callers in (1, 32, 128)]
BATCHES = [Shape(processes, callers, 64) for processes in (1, 2, 4) for callers in (1, 4)]
ALONE = Shape(1, 1)
COMPARED = [ALONE, Shape(1, 32), Shape(4, 32)]
HELD = [*COMPARED, Shape(1, 4, 64)]  # the loads that have targets
GOALS = {
    Shape(1, 1): Goal("median", least=1_400),
    Shape(1, 32): Goal("median", least=12_000),
    Shape(4, 32): Goal("median", least=16_000),
    Shape(1, 4, 64): Goal("median", least=40_000),
}
HTTP_GOALS = {Shape(1, 32): Goal("median", least=1_500)}
NOSYNC, FSYNC = "lodeq, nosync", "lodeq, fsync"
ECHO = "BareEcho"  # of a lone caller, who waits for round trips and for little else
SYNCED_ECHO = "BareEchoSynced"  # the same, and for syncs
ONLY = {ECHO: (ALONE,), SYNCED_ECHO: (ALONE, Shape(1, 32))}  # these are of some shapes only
HTTP = "lodeq, nosync, HTTP on loopback"  # an http:// address: no other protocol is tried
PYTHONS = "lodeq, nosync, collector as Python sets it"
STANDS_BESIDE = {
    NOSYNC: ("RedisEverysec", "BeanstalkdDefault", ECHO),
    FSYNC: ("RedisAlways", "BeanstalkdSync", SYNCED_ECHO),
}


class Run(NamedTuple):
    """One measure: cycles a second, CPU microseconds a call on both sides, the server's turns."""

    rate: float
    client_us: float
    server_us: float
    longest_ms: tuple[float, ...] = ()  # of ours: see ``server_process``


class Server:
    """A running server and the client processes that are connected to it."""

    def __init__(self, kind: str, address: str, pid: int, numbers: Any = ()) -> None:
        self.kind = kind
        self.address = address
        self.pid = pid
        self.numbers = numbers
        self.children: list[asyncio.subprocess.Process] = []

    async def measure(self, shape: Shape, seconds: float) -> Run:
        """All processes begin at the same moment."""
        lacking = shape.processes - len(self.children)
        self.children += await asyncio.gather(*(self._child() for _ in range(lacking)))
        children = self.children[: shape.processes]
        order = {"callers": shape.callers, "batch": shape.batch, "seconds": seconds}
        _write(children, json.dumps(order))
        for child in children:
            await _line(child)  # its callers are connected
        before = self.spent_s()
        for i in range(len(self.numbers)):
            self.numbers[i] = 0.0
        _write(children, f"{time.monotonic() + LEAD_S}")
        found = [json.loads(await _line(child)) for child in children]
        spent = self.spent_s() - before
        done = sum(one["done"] for one in found)
        calls = max(1, CALLS * done // shape.batch)
        return Run(
            sum(one["done"] / one["seconds"] for one in found),
            sum(one["cpu_s"] for one in found) / calls * 1e6,
            spent / calls * 1e6,
            tuple(self.numbers),
        )

    def spent_s(self) -> float:
        """CPU time of the server so far."""
        return cpu_s(self.pid)

    async def _child(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            self.kind,
            self.address,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def close(self) -> None:
        """The end of a pipe ends its client."""
        for child in self.children:
            if child.stdin is not None:
                child.stdin.close()
            await child.wait()


def _write(children: Sequence[asyncio.subprocess.Process], line: str) -> None:
    for child in children:
        if child.stdin is None:
            raise RuntimeError("no pipe to a client")
        child.stdin.write(line.encode() + b"\n")


async def _line(child: asyncio.subprocess.Process) -> bytes:
    if child.stdout is None:
        raise RuntimeError("no pipe to a client")
    line = await child.stdout.readline()
    if not line:
        raise RuntimeError("a client ended early")
    return line


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.asynccontextmanager
async def _serving(
    path: Path, mode: str, *where: str, collector: str = "frozen"
) -> AsyncIterator[Server]:
    """``lodeq serve`` in a process of its own."""
    numbers = path.with_suffix(".turns")
    numbers.write_bytes(bytes(8 * NUMBERS))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVER),
        str(numbers),
        collector,
        "serve",
        str(path),
        *where,
        "--durability",
        mode,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        url = (await _line(process)).split()[1].decode()
        yield Server("lodeq", url, process.pid, told(str(numbers)))
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def _all(bench: Bench, kinds: Sequence[str]) -> AsyncIterator[dict[str, Server]]:
    """Measure lodeq in both modes, and the peers; clients go before their servers."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, Server] = {}
        # The path of a socket has 108 bytes at most: a short way to the same folder.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lodeq-"))) / "d"
        short.symlink_to(bench.folder.resolve())

        async def add(name: str, server: Server) -> None:
            found[name] = server
            stack.push_async_callback(server.close)

        for name, mode, collector, where in (
            (NOSYNC, "nosync", "frozen", ("--uds", f"{short / 'nosync'}")),
            (PYTHONS, "nosync", "python", ("--uds", f"{short / 'python'}")),
            (FSYNC, "fsync", "frozen", ("--uds", f"{short / 'fsync'}")),
            (HTTP, "nosync", "frozen", ("--host", "127.0.0.1", "--port", "0")),
        ):
            path = bench.folder / f"processes-{len(found)}"
            own = _serving(path, mode, *where, collector=collector)
            await add(name, await stack.enter_async_context(own))
        for kind in kinds:
            folder = short / f"processes-{kind}"
            folder.mkdir()
            peer = getattr(servers, kind)(folder)
            await asyncio.to_thread(peer.open)
            stack.push_async_callback(asyncio.to_thread, peer.close)
            await add(kind, Server(kind, str(folder), peer.process.pid))
        yield found


async def served_processes(bench: Bench) -> None:
    """1, 2, 4 client processes of 1, 32, 128 callers, beside Redis streams and beanstalkd."""
    is_tiny = bench.scale < 0.1  # does it run at all?
    kinds = [] if is_tiny else await _peers(bench)
    seconds = max(0.1, 2.0 * bench.scale)
    own = [Shape(1, 1), Shape(2, 1, 64)] if is_tiny else [*SINGLES, *BATCHES]
    plan = [(NOSYNC, shape) for shape in own]
    beside = (PYTHONS, FSYNC, HTTP, *kinds)
    plan += [
        (name, shape)
        for shape in COMPARED
        if shape in own
        for name in beside
        if shape in ONLY.get(name, COMPARED)
    ]
    runs: dict[tuple[str, Shape], list[Run]] = {pair: [] for pair in plan}
    raws: list[float] = []
    async with _all(bench, kinds) as found:
        for _ in range(bench.repeats):
            with Ceiling(bench.folder / f"raw-processes-{len(raws)}", seconds) as ceiling:
                raws.append(await ceiling())
            for name, shape in sorted(plan, key=lambda pair: pair[1]):  # one shape, side by side
                runs[name, shape].append(await found[name].measure(shape, seconds))
    for (name, shape), of in runs.items():
        goals = {NOSYNC: GOALS, HTTP: HTTP_GOALS}.get(name, {})
        label = name if name.startswith("lodeq") else getattr(servers, name).name
        bench.add(
            Result(
                CASE,
                {
                    "server": label,
                    "api": shape.api,
                    "processes": shape.processes,
                    "callers_each": shape.callers,
                },
                "cycles/s",
                [run.rate for run in of],
                "raw by 64",
                raws,
                goal=goals.get(shape),
                more={
                    "client_us_a_call": round(statistics.median(run.client_us for run in of), 1),
                    "server_us_a_call": round(statistics.median(run.server_us for run in of), 1),
                },
            )
        )
    _compare(bench, runs)
    turns = [pair for pair in runs if pair[0] in (NOSYNC, PYTHONS) and pair[1] in HELD]
    add_turns(bench, {_under(*pair): _watch(runs[pair]) for pair in turns})


def _under(name: str, shape: Shape) -> str:
    who = f"{shape.processes} × {shape.callers}" if shape.processes > 1 else f"{shape.callers}"
    of = "" if name == NOSYNC else f", {name.rpartition(', ')[2]}"
    return f"served to {who} callers, {shape.api}{of}"


def _watch(of: Sequence[Run]) -> Watch:
    """The server's turns, as if watched in this process."""
    watch = Watch()
    watch.turns_ms = [run.longest_ms[WALL] for run in of]
    watch.turns_cpu_ms = [run.longest_ms[CPU] for run in of]
    watch.passes_ms = [run.longest_ms[PASS] for run in of]
    return watch


def _compare(bench: Bench, runs: dict[tuple[str, Shape], list[Run]]) -> None:
    """Each of ours beside the peers that promise as much, in the same shape and round."""
    for (name, shape), of in runs.items():
        for own, others in STANDS_BESIDE.items():
            if name in others:
                bench.add(
                    Result(
                        BESIDE,
                        {
                            "server": own,
                            "processes": shape.processes,
                            "callers_each": shape.callers,
                        },
                        "cycles/s",
                        [run.rate for run in runs[own, shape]],
                        getattr(servers, name).name,
                        [run.rate for run in of],
                        goal=None if name in ("BeanstalkdDefault", *ONLY) else THREE_TIMES,
                    )
                )


async def _peers(bench: Bench) -> list[str]:
    """Those that can run here; the rest are named in the report."""
    found: list[str] = []
    for kind in [name for names in STANDS_BESIDE.values() for name in names]:
        lacking: Any = await asyncio.to_thread(getattr(servers, kind).missing)
        if lacking is None:
            found.append(kind)
        else:
            print(f"  skipped {getattr(servers, kind).name}: {lacking}", flush=True)
            bench.skipped.append(f"{getattr(servers, kind).name}: {lacking}")
    return found
