"""lodeq beside what users would pick instead: same payload, same callers, same minutes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from peers import by_hand, drive, embedded, ours, programs, servers
from peers.base import Peer
from results import Bench, Goal, Result

KINDS: tuple[type[Peer], ...] = (
    ours.LodeqNosync,
    ours.LodeqFsync,
    by_hand.SqliteNormal,
    by_hand.SqliteFull,
    embedded.PersistQueue,
    embedded.LiteQueueNormal,
    embedded.LiteQueueFull,
    embedded.HueyOff,
    embedded.HueyFull,
    embedded.LocalQueueRelaxed,
    embedded.LocalQueueDurable,
    embedded.Diskcache,
    embedded.Rocksq,
    servers.RedisEverysec,
    servers.RedisAlways,
    servers.BeanstalkdDefault,
    servers.BeanstalkdSync,
    servers.PgQueuer,
)
ABOVE = Goal("ratio", least=1.0)
FOUR_TIMES = Goal("ratio", least=4.0)


async def peers(bench: Bench) -> None:
    """Full cycles by 1 and 64 callers, and a hundred at a time, round after round."""
    why = await asyncio.to_thread(programs.fetch, ["redis-server", "beanstalkd", "postgres"])
    if why is not None:
        print(f"  servers that are missing could not be fetched: {why}", flush=True)
    kinds = []
    for kind in KINDS:
        lacking = kind.missing()
        if lacking is None:
            kinds.append(kind)
        else:
            print(f"  skipped {kind.name}: {lacking}", flush=True)
            bench.skipped.append(f"{kind.name}: {lacking}")
    seconds = max(1.0, 3.0 * bench.scale)
    rates: dict[tuple[type[Peer], str], list[float]] = {}
    for number in range(bench.repeats):
        for kind in kinds:
            for shape, measure in _shapes(kind, seconds):
                rate = await asyncio.to_thread(_measured, kind, bench.folder, number, measure)
                rates.setdefault((kind, shape), []).append(rate)
                print(f"  round {number + 1}: {kind.name}, {shape}: {rate:,.0f}/s", flush=True)
    for (kind, shape), runs in rates.items():
        bench.add(
            Result(
                "peer",
                {
                    "queue": kind.name,
                    "durability": kind.durability,
                    "keeps": kind.keeps,
                    "shape": shape,
                },
                "cycles/s",
                runs,
            )
        )
    _compare(bench, rates)


def _shapes(kind: type[Peer], seconds: float) -> list[tuple[str, Callable[[Peer], float]]]:
    shapes: list[tuple[str, Callable[[Peer], float]]] = [
        ("1 caller", lambda peer: drive.cycles(peer, 1, seconds))
    ]
    if kind.callers_max > 1:
        many = min(64, kind.callers_max)
        shapes.append((f"{many} callers", lambda peer: drive.cycles(peer, many, seconds)))
    if kind.has_batches:
        shapes.append((f"batches of {drive.BATCH}", lambda peer: drive.batches(peer, seconds)))
    return shapes


def _measured(kind: type[Peer], base: Path, number: int, measure: Callable[[Peer], float]) -> float:
    folder = base / f"peer-{number}-{kind.__name__}"
    folder.mkdir()
    peer = kind(folder)
    try:
        peer.open()
        return measure(peer)
    finally:
        peer.close()
        shutil.rmtree(folder, ignore_errors=True)


def _compare(bench: Bench, rates: dict[tuple[type[Peer], str], list[float]]) -> None:
    """The claims: a lone caller and batches beside SQLite, synced callers beside the best peer."""
    by_name = {(kind.name, shape): runs for (kind, shape), runs in rates.items()}
    hand, own = by_hand.SqliteNormal.name, ours.LodeqNosync.name
    for shape in ("1 caller", f"batches of {drive.BATCH}"):
        if (hand, shape) in by_name:
            bench.add(
                Result(
                    "beside SQLite by hand",
                    {"shape": shape, "durability": "os"},
                    "cycles/s",
                    by_name[own, shape],
                    hand,
                    by_name[hand, shape],
                    goal=ABOVE if shape == "1 caller" else None,
                )
            )
    synced = {
        (kind.name, shape): runs
        for (kind, shape), runs in rates.items()
        if kind.durability == "fsync" and "caller" in shape and kind is not ours.LodeqFsync
    }
    if not synced:
        return
    (name, shape), best = max(synced.items(), key=lambda item: sorted(item[1])[len(item[1]) // 2])
    bench.add(
        Result(
            "every acknowledgement synced",
            {"shape": "64 callers", "durability": "fsync"},
            "cycles/s",
            by_name[ours.LodeqFsync.name, "64 callers"],
            f"{name}, {shape}",
            best,
            goal=FOUR_TIMES,
        )
    )
