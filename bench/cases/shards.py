"""How many shards: measured here, and a recommendation for this machine.

In one process shards share one interpreter and one loop. They buy parallel fsyncs, smaller
memtables and compactions that overlap; they do not buy more Python. So the rule: one, unless
another count is faster by a tenth for the load that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import load
from results import Bench, Result

import lodeq

COUNTS = (1, 2, 4, 8)
WORTH = 1.1


async def shards(bench: Bench) -> None:
    """1, 2, 4 and 8 shards, both modes, 1, 64 and 512 callers."""
    seconds = 2.0 * bench.scale
    for mode in ("nosync", "fsync"):
        for callers in (1, 64, 512):
            engines = {}
            try:
                for count in COUNTS:
                    engines[count] = await lodeq.open(
                        bench.folder / f"shards-{mode}-{callers}-{count}",
                        durability=mode,
                        shards=count,
                    )
                runs = await bench.rounds(
                    {
                        str(count): partial(load.closed_loop, engines[count], seconds, callers)
                        for count in COUNTS
                    }
                )
            finally:
                for engine in engines.values():
                    await engine.close()
            found = []
            for count in COUNTS:
                found.append(
                    Result(
                        "shards",
                        {"durability": mode, "callers": callers, "shards": count},
                        "cycles/s",
                        runs[str(count)],
                        "one shard" if count > 1 else "",
                        runs["1"] if count > 1 else [],
                    )
                )
                bench.add(found[-1])
            best, why = recommended(found)
            print(f"  {mode}, {callers} callers: shards={best} ({why})", flush=True)
            bench.advice.append(f"{mode}, {callers} callers: `shards={best}` ({why})")


def recommended(results: Sequence[Result]) -> tuple[int, str]:
    """The least count that none beats by a tenth, and the reason in words."""
    best = max(results, key=lambda r: r.ratio or 1.0)
    gain = best.ratio or 1.0
    if gain < WORTH:
        return 1, f"more shards gain at most {max(0.0, gain - 1):.0%} here"
    enough = next(r for r in results if (r.ratio or 1.0) * WORTH >= gain)
    count = int(enough.params["shards"])
    return count, f"{(enough.ratio or 1.0) - 1:.0%} more than one"
