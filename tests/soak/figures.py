"""From samples to a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
SLOPE_MAX = 1.0  # MiB an hour
SLOPE_S_MIN = 3600.0  # of samples that a slope needs: over less it is noise
FLOOR_S = 300.0  # the least of so long counts: one life of an engine holds 2 MiB more than another
BLOCKS_TIMES_MAX = 1.05
FDS_MORE_MAX = 8
P99_TIMES_MAX, P99_MORE_MS = 2.0, 5.0
# Logs and write buffers (8 MiB) of two shards: what an idle store may hold.
DISK_BASE, DISK_TIMES_MAX = 96 * MIB, 4.0

Sample = dict[str, Any]


@dataclass
class Verdict:
    """``failures``: what was not met. ``unjudged``: what the run was too short for."""

    figures: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    def judge(self, holds: bool, text: str) -> None:
        if not holds:
            self.failures.append(text)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares, by unit of the first coordinate."""
    if len(points) < 2:
        return 0.0
    xs, ys = zip(*points, strict=True)
    return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0


def floors(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """(hours, MiB): the least of every five minutes. A leak raises it as it raises everything."""
    found: dict[int, list[float]] = {}
    for s in samples:
        found.setdefault(int(s["at"] // FLOOR_S), []).append(s[name] / MIB)
    most = max(map(len, found.values()), default=0)
    return [
        ((at + 0.5) * FLOOR_S / 3600, min(values))
        for at, values in sorted(found.items())
        if 2 * len(values) > most  # of too few the least is none
    ]


def thirds(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """The median of the first and of the last third."""
    n = max(1, len(samples) // 3)
    first, last = samples[:n], samples[-n:]
    return (
        statistics.median(s[name] for s in first),
        statistics.median(s[name] for s in last),
    )


def verdict(samples: Sequence[Sample], *, warm_s: float = 0.0) -> Verdict:
    """Of the samples of the process that lives; those of its first ``warm_s`` do not count."""
    told = Verdict()
    used = [s for s in samples if s["at"] >= warm_s]
    if len(used) < 3:
        told.failures.append(f"{len(used)} samples are no soak")
        return told
    half = used[len(used) // 2 :]
    leak = slope(floors(half, "held"))
    rss, more = (slope([(s["at"] / 3600, s[of] / MIB) for s in half]) for of in ("rss", "live"))
    span_s = half[-1]["at"] - half[0]["at"]
    fds, p99, p50 = (thirds(used, name) for name in ("fds", "p99_ms", "p50_ms"))
    blocks = thirds(used, "blocks")
    ratio = max(s["disk"] / max(1, s["live"]) for s in used)
    told.figures = {
        "rss_mib": round(used[-1]["rss"] / MIB, 1),
        "rss_mib_h": round(rss, 2),
        "held_mib": round(used[-1]["held"] / MIB, 1),
        "held_mib_h": round(leak, 2),
        "blocks_first": blocks[0],
        "blocks_last": blocks[1],
        "live_mib_h": round(more, 2),
        "fds_first": fds[0],
        "fds_last": fds[1],
        "p50_ms_first": p50[0],
        "p50_ms_last": p50[1],
        "p99_ms_first": p99[0],
        "p99_ms_last": p99[1],
        "disk_per_live_max": round(ratio, 1),
        "disk_mib_max": round(max(s["disk"] for s in used) / MIB, 1),
        "live_mib_max": round(max(s["live"] for s in used) / MIB, 1),
        "lag_s_max": max(s["lag_s"] for s in used),
        "ops": sum(s["ops"] for s in used),
        "threads_last": used[-1]["threads"],
        "samples": len(used),
    }
    if span_s < SLOPE_S_MIN * 0.9:
        told.unjudged.append(f"memory: {span_s / 60:.0f} min of samples, not 60")
    else:
        told.judge(leak < SLOPE_MAX, f"memory grows by {leak:.2f} MiB an hour")
        told.judge(
            blocks[1] <= BLOCKS_TIMES_MAX * blocks[0],
            f"Python's blocks: {blocks[0]:,.0f}, then {blocks[1]:,.0f}",
        )
    told.judge(fds[1] <= fds[0] + FDS_MORE_MAX, f"file descriptors: {fds[0]:g}, then {fds[1]:g}")
    told.judge(
        p99[1] <= P99_TIMES_MAX * p99[0] + P99_MORE_MS, f"p99: {p99[0]:g} ms, then {p99[1]:g} ms"
    )
    worst = max(used, key=lambda s: s["disk"] - DISK_TIMES_MAX * s["live"])
    told.judge(
        worst["disk"] <= DISK_TIMES_MAX * worst["live"] + DISK_BASE,
        f"{worst['disk'] / MIB:.0f} MiB on disk for {worst['live'] / MIB:.1f} MiB",
    )
    told.judge(all(not s["poisoned"] for s in used), "a shard was poisoned")
    told.judge(all(s["ops"] for s in used), "nothing was done for the length of a sample")
    return told
