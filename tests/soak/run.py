"""Hours of mixed load with faults, and a verdict: ``python tests/soak/run.py --hours 2``.

Two processes, a store each. One lives as long as the soak: some of its syncs are slow, its engine
is closed and opened again every minute, backups are taken, ``verify`` runs; every ten seconds it
tells what it holds (memory, files, threads, disk, latencies, queues). The other is killed every few
minutes, half of them in fsync mode, and must find what it had acknowledged.

The first tenth (ten minutes at most) is a warm-up at eight times the pace: it brings the allocator
to what it will need at most. The verdict: memory grows by less than 1 MiB an hour (RSS after the
allocator has given back what it keeps for later, the least of every five minutes, least squares
over the second half, if that is an hour), Python's blocks by less than a twentieth, file
descriptors are flat, p99 is stable, the disk is bounded by what is alive, and nothing was lost,
repeated or found wrong. Before that, some thousand tasks go through one engine that is never
closed, and their payloads with them (``one_life``). It is one line of the ledger, ``done`` in
minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ledger import Ledger
from soak.figures import verdict
from soak.one_life import LEFT_MAX, one_life
from soak.supervise import soak

GATE = "soak"
ROUNDS = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0, help="0: another one every time")
    parser.add_argument("--pace", type=float, default=40.0, help="calls a second of each of eight")
    parser.add_argument("--folder", help="where the stores are; default: a temporary one")
    parser.add_argument("--samples", help="keep the samples in this file, JSON lines")
    args = parser.parse_args()
    seconds = args.hours * 3600
    seed = args.seed or time.time_ns() % (1 << 31)
    reopen_s, warm_s = min(60.0, seconds / 5), min(600.0, seconds / 10)
    config = {
        "seed": seed,
        "seconds": seconds,
        "pace": args.pace,
        "sample_s": 10.0,
        "burst_s": 20.0,
        "verify_s": reopen_s / 3,
        "copy_s": min(300.0, seconds / 10),
        "reopen_s": reopen_s,
        "warm_s": warm_s,
    }
    kill_s = (20.0, min(180.0, max(30.0, seconds / 5)))
    with tempfile.TemporaryDirectory(prefix="lodeq-soak-", dir=args.folder) as folder:
        began = time.monotonic()
        left = asyncio.run(one_life(Path(folder) / "life", ROUNDS, size=20_000))
        run = soak(Path(folder), config, kill_s=kill_s)
    took = time.monotonic() - began
    told = verdict(run["samples"], warm_s=warm_s)
    if args.samples:
        with open(args.samples, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(sample) + "\n" for sample in run["samples"])
    failures = [*run["broken"], *told.failures]
    if max(left) > LEFT_MAX:
        failures.append(f"one life: {max(left)} payloads outlived their tasks")
    others = {name: run[name] for name in ("kills", "looks", "acked", "delivered", "open_ms_max")}
    final = {name: value for name, value in run["final"].items() if name != "final"}
    for name, value in {**told.figures, **final}.items():
        print(f"{name:<20}{value:>14,}")
    print(f"killed process: {others}")
    for text in told.unjudged:
        print(f"not judged: {text}")
    for text in failures:
        print(f"FAILED {text}")
    print(f"seed {seed}, {took / 60:.1f} min: {'failed' if failures else 'sound'}")
    Ledger.default().add(
        GATE,
        done=round(seconds / 60),
        failed=len(failures),
        seconds=took,
        seed=seed,
        failures=failures,
        killed=others,
        **told.figures,
    )
    return min(1, len(failures))


if __name__ == "__main__":
    sys.exit(main())
