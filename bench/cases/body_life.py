"""Large payloads from put to completion: the space that comes back, and the size they pay from."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from functools import partial

import load
from cases.backlogs import disk_bytes, written_bytes
from cases.bodies import BODY_BYTES, DRAIN, KIB, Durability, open_engine, put, random_bodies
from results import Bench, Goal, Result
from settling import settled

import lodeq
from lodeq.repository.api.open import BODY_BYTES_MIN
from lodeq.repository.background import body_gc

SIZES = tuple(size * KIB for size in (4, 8, 16, 24, 32, 48, 64, 128, 256))
SHAPES: tuple[tuple[Durability, str], ...] = (
    ("nosync", "fresh"),
    ("nosync", "backlog"),
    ("fsync", "fresh"),
)
AS_FAST = 0.95  # a twentieth is noise
LEFT_MOST = 1.3


async def body_space(bench: Bench) -> None:
    """Every second 64 KiB payload is completed: disk in use beside what is live, a minute later.

    A quick run waits a second rather than fifteen for a file to go quiet, and nine at the end.
    """
    is_full = bench.scale >= 1
    n = max(2 * DRAIN, int(4000 * bench.scale)) // (2 * DRAIN) * 2 * DRAIN
    bodies = random_bodies(BODY_BYTES)
    quiet_s, body_gc.QUIET_S = body_gc.QUIET_S, body_gc.QUIET_S if is_full else 1.0
    wait_s, folder = 60.0 if is_full else max(2.0, 30.0 * bench.scale), bench.folder / "space"
    live = n // 2 * BODY_BYTES
    shares: list[float] = []
    try:
        async with open_engine(folder) as engine:
            kept, gone = engine.queue("kept"), engine.queue("gone")
            for at in range(0, n, 2):
                await kept.enqueue(bodies[at % len(bodies)])
                await gone.enqueue(bodies[(at + 1) % len(bodies)])
            full = disk_bytes(folder) / live
            before = written_bytes()
            await load.drain_only(engine, gone, n // 2, callers=1, size=DRAIN)
            began = time.perf_counter()
            while time.perf_counter() < began + wait_s:
                await asyncio.sleep(0.25)
                shares.append(disk_bytes(folder) / live)
            written = written_bytes() - before
    finally:
        body_gc.QUIET_S = quiet_s
    first = next((i for i, share in enumerate(shares, 1) if share <= LEFT_MOST), None)
    bench.add(
        Result(
            "disk after half of the payloads went",
            {"tasks": n, "payload_bytes": BODY_BYTES, "after_s": wait_s},
            "bytes a live byte",
            [shares[-1]],
            goal=Goal("median", most=LEFT_MOST),
            more={
                "before": round(full, 2),
                "below_after_s": None if first is None else first / 4,
                "written_per_live_byte": round(written / live, 2),
            },
        )
    )


async def body_sizes(bench: Bench) -> None:
    """Put, claim and complete at payloads of 4 to 256 KiB: all in body files, beside all inline.

    *fresh*: claimed at once, from memory. *backlog*: all are put before the first is claimed. A
    quick run takes every second size.
    """
    is_full = bench.scale >= 1
    ratios: dict[tuple[Durability, str], list[tuple[int, float]]] = {key: [] for key in SHAPES}
    for payload_bytes in SIZES if is_full else SIZES[::2]:
        for durability in ("nosync", "fsync"):
            shapes = [shape for how, shape in SHAPES if how == durability]
            for found in await _at(bench, payload_bytes, durability, shapes):
                bench.add(found)
                ratios[durability, found.params["shape"]].append((payload_bytes, found.ratio or 0))
    for (durability, shape), found_ratios in ratios.items():
        pays = pays_from(found_ratios)
        if pays is None:
            bench.skipped.append(f"where body files pay, {durability}, {shape}: at no size here")
            continue
        bench.add(
            Result(
                "body files pay",
                {"durability": durability, "shape": shape},
                "KiB and above",
                [pays / KIB],
                more={"default_kib": BODY_BYTES_MIN // KIB},
            )
        )


async def _at(
    bench: Bench, payload_bytes: int, durability: Durability, shapes: Sequence[str]
) -> list[Result]:
    """Measure both ways at one size, on stores of their own."""
    repeats = min(bench.repeats, 3 if bench.scale >= 1 else 2)
    most_bytes = int(((48 << 20) if durability == "nosync" else (12 << 20)) * bench.scale)
    size = max(1, min(64, (256 << 10) // payload_bytes))
    n = max(size, most_bytes // payload_bytes // size * size)
    bodies = random_bodies(payload_bytes)
    limits = lodeq.Limits(payload_bytes_max=1 << 20)
    paths = [bench.folder / f"sizes-{kind}" for kind in ("files", "inline")]
    results = []
    async with (
        lodeq.open(paths[0], durability=durability, limits=limits, body_bytes_min=1) as own,
        lodeq.open(paths[1], durability=durability, limits=limits, body_bytes_min=None) as inline,
    ):
        for shape in shapes:
            runs = await bench.rounds(
                {
                    name: partial(_through, engine, bodies, n, size, shape)
                    for name, engine in (("own", own), ("inline", inline))
                },
                repeats,
                before=partial(settled, [own, inline]),
            )
            results.append(
                Result(
                    "body files and inline",
                    {
                        "payload_bytes": payload_bytes,
                        "durability": durability,
                        "shape": shape,
                        "batch": size,
                    },
                    "cycles/s",
                    runs["own"],
                    "inline",
                    runs["inline"],
                )
            )
    for path in paths:
        await asyncio.to_thread(shutil.rmtree, path)
    return results


def pays_from(ratios: Sequence[tuple[int, float]]) -> int | None:
    """The least size from which on body files are as fast."""
    found = None
    for payload_bytes, ratio in reversed(ratios):
        if ratio < AS_FAST:
            break
        found = payload_bytes
    return found


async def _through(
    engine: lodeq.Engine, bodies: Sequence[bytes], n: int, size: int, shape: str
) -> float:
    """Cycles per second."""
    queue = engine.queue(shape)
    step = size if shape == "fresh" else n
    started = time.perf_counter()
    for _ in range(0, n, step):
        await put(queue, bodies, step, size)
        await load.drain_only(engine, queue, step, callers=1, size=size)
    return n / (time.perf_counter() - started)
