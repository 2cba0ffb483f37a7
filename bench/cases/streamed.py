"""Two hundred streamed payloads in flight: all come in at once, then all are read at once.

Beside it as many bytes go to a plain file, in slices of the same size, by one thread. Memory is
the highest resident size above that at the beginning of the round.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from results import Bench, Goal, Result
from watch import Watch, add_turns

import lodeq
from lodeq.segments.bodies.streams import SLICE_BYTES

MIB = 1 << 20
IN_FLIGHT = 200
SMALL = Goal("median", most=300.0)


def _reset_peak() -> int:
    """Forget the highest resident size so far; bytes that are resident now."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return _resident("VmRSS")


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    (line,) = (one for one in lines if one.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


async def _slices(block: bytes, size: int) -> AsyncIterator[bytes]:
    for _ in range(0, size, len(block)):
        yield block


def _write_plain(path: Path, block: bytes, total: int) -> float:
    """MiB a second into one file, with nothing else done."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(0, total, len(block)):
            os.write(fd, block)
        return total / MIB / (time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()


async def streamed(bench: Bench) -> None:
    """200 payloads of 64 MiB (less in a short run) in flight: memory, turns, and rate."""
    count = IN_FLIGHT if bench.scale >= 0.1 else 20
    size = max(4, int(64 * min(1.0, bench.scale))) * MIB
    block = os.urandom(SLICE_BYTES)
    limits = lodeq.Limits(payload_bytes_max=64 * MIB)
    watches = {what: Watch() for what in ("in", "read")}
    rates: dict[str, list[float]] = {what: [] for what in watches}
    peaks: dict[str, list[float]] = {what: [] for what in watches}
    plain: list[float] = []
    async with lodeq.open(bench.folder / "streamed", limits=limits) as engine:
        queue = engine.queue("large")

        async def put() -> None:
            await queue.enqueue_stream(_slices(block, size))

        async def read(lease: lodeq.Lease) -> None:
            async for _ in await lease.open_payload():
                pass

        for _ in range(min(bench.repeats, 3)):
            total = count * size
            path = bench.folder / "plain"
            plain.append(await asyncio.to_thread(_write_plain, path, block, total))
            for what in watches:
                leases = []
                while what == "read" and (found := await queue.claim(limit=64, lease=3600)):
                    leases += found
                before = _reset_peak()
                with watches[what].span() as span:
                    span.tasks = count
                    calls = (put() for _ in range(count)) if what == "in" else map(read, leases)
                    await asyncio.gather(*calls)
                peaks[what].append((_resident("VmHWM") - before) / MIB)
                rates[what].append(total / MIB / span.seconds)
                await engine.complete_many([(lease, None) for lease in leases])
            await engine._runtime.body_gc.do_all()
    for what, watch in watches.items():
        params = {"payloads": count, "mib_each": size // MIB, "they_are": what}
        more = watch.more()
        bench.add(
            Result(
                "streamed payloads in flight",
                params,
                "MiB/s",
                rates[what],
                "a plain file",
                plain,
                more=more,
            )
        )
        bench.add(
            Result("memory of streamed payloads in flight", params, "MiB", peaks[what], goal=SMALL)
        )
    under = {f"{count} streamed payloads, {what}": one for what, one in watches.items()}
    add_turns(bench, under)
