"""One store, served by one process, two and four, to client processes: cycles and CPU a cycle.

Every server has four shards, so only the processes differ; the plain server stands beside them in
the same rounds, and so does one with a single shard, which is what is usual.
CPU is that of all server processes (the supervisor too) and of all clients, told apart. On a
machine whose cores the clients need as well there is little to gain: the table says how many cores
there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from cases.served_processes import Run, Server, Shape, cpu_s
from results import Bench, Result
from watch import Ceiling

CASE = "a store in several processes"
SHARDS = 4
KINDS = {  # name: processes, shards; None: one process, without a supervisor
    "one process, 1 shard": (None, 1),
    "one process": (None, SHARDS),
    "2 processes": (2, SHARDS),
    "4 processes": (4, SHARDS),
}
SHAPES = (Shape(1, 32), Shape(2, 32), Shape(4, 32), Shape(4, 4, 64))
SCRIPT = "from lodeq.service.cli.entry import main; raise SystemExit(main())"


class Several(Server):
    """A server of which other processes are a part."""

    def spent_s(self) -> float:
        """CPU time so far of the server and of all processes below it."""
        return sum(map(cpu_s, [self.pid, *_below(self.pid)]))


def _below(pid: int) -> Sequence[int]:
    """The children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text("ascii").split())
    return found


@contextlib.asynccontextmanager
async def _serving(
    path: Path, socket: Path, processes: int | None, shards: int
) -> AsyncIterator[Several]:
    more = () if processes is None else ("--processes", str(processes))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        "serve",
        str(path),
        "--uds",
        str(socket),
        "--shards",
        str(shards),
        *more,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe to the server")
        url = (await process.stdout.readline()).split()[1].decode()
        yield Several("lodeq", url, process.pid)
    finally:
        process.terminate()
        await process.wait()


async def processes(bench: Bench) -> None:
    """1, 2 and 4 processes with 1, 2 and 4 client processes."""
    is_tiny = bench.scale < 0.1  # does it run at all?
    kinds = dict(list(KINDS.items())[1:3]) if is_tiny else KINDS
    shapes = (Shape(1, 2),) if is_tiny else SHAPES
    seconds = max(0.2, 3.0 * bench.scale)
    runs: dict[tuple[str, Shape], list[Run]] = {(kind, one): [] for one in shapes for kind in kinds}
    raws: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lb-")))
        servers: dict[str, Several] = {}
        for n, (kind, (count, shards)) in enumerate(kinds.items()):
            path, socket = bench.folder / f"in-{n}", short / f"s{n}"
            one = await stack.enter_async_context(_serving(path, socket, count, shards))
            stack.push_async_callback(one.close)
            servers[kind] = one
        for _ in range(bench.repeats):
            with Ceiling(bench.folder / f"raw-in-{len(raws)}", seconds) as ceiling:
                raws.append(await ceiling())
            for (kind, shape), of in runs.items():
                of.append(await servers[kind].measure(shape, seconds))
    for (kind, shape), of in runs.items():
        beside = runs["one process", shape]
        bench.add(
            Result(
                CASE,
                {
                    "served by": kind,
                    "api": shape.api,
                    "client processes": shape.processes,
                    "callers_each": shape.callers,
                    "cores": os.cpu_count() or 1,
                },
                "cycles/s",
                [run.rate for run in of],
                "one process",
                [run.rate for run in beside],
                more={
                    "client_us_a_call": round(statistics.median(run.client_us for run in of), 1),
                    "server_us_a_call": round(statistics.median(run.server_us for run in of), 1),
                },
            )
        )
