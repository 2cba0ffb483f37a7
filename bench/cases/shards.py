"""Cycles by the number of shards, and a recommendation for this machine.

In one process shards share one interpreter and one loop. They buy smaller memtables, compactions
that overlap and, for keyed work, parallel fsyncs; they do not buy more Python. So the rule: one,
unless another count is faster by a tenth for the load that matters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import load
from hand import Hand
from peers.by_hand import SqliteFull, SqliteNormal
from results import Bench, Goal, Result
from watch import Ceiling, Watch, add_turns, of_raw, watched

import lodeq

COUNTS = (1, 2, 4, 8)
WORTH = 1.1
AS_ONE = Goal("ratio", least=0.9)


async def shards(bench: Bench) -> None:
    """1, 2, 4 and 8 shards, both modes, 16, 64 and 256 callers of single calls.

    Raw beside them makes its cycles in batches of 64, in fsync mode with a sync behind each batch.
    No peer splits one ordered queue over several stores, so one stands beside them with the only
    one it has: the SQLite queue by hand, one caller. Beside the rate: groups and fsyncs a turn. In
    a turn each caller makes one of its three calls; with one shard that is a group for every 64
    callers, and in fsync mode one fsync.
    """
    for mode in ("nosync", "fsync"):
        for callers in (16, 64, 256):
            rounds = await _measure(bench, mode, callers)
            found = _results(rounds, mode, callers)
            for result in found:
                bench.add(result)
            add_turns(
                bench,
                {
                    f"{count} shards, {mode}, {callers} callers": rounds.watches[count]
                    for count in (1, COUNTS[-1])
                },
            )
            turns = rounds.turns.items()
            per = ", ".join(f"{n}: {turn['groups a turn']:.2f}" for n, turn in turns)
            synced = ", ".join(f"{n}: {turn['fsyncs a turn']:.2f}" for n, turn in turns)
            print(f"  {mode}, {callers} callers: groups a turn {per}; fsyncs {synced}", flush=True)
            best, why = recommended(found)
            print(f"  {mode}, {callers} callers: shards={best} ({why})", flush=True)
            bench.advice.append(f"{mode}, {callers} callers: `shards={best}` ({why})")


class _Rounds(NamedTuple):
    """The measures of one mode and one number of callers."""

    runs: Mapping[str, list[float]]
    watches: Mapping[int, Watch]
    turns: Mapping[int, Mapping[str, float]]  # groups and fsyncs, by the number of shards


async def _measure(bench: Bench, mode: str, callers: int) -> _Rounds:
    """Run raw, the queue by hand and a store of each number of shards in the same rounds."""
    seconds = max(0.05, 2.0 * bench.scale)
    where = f"{mode}-{callers}"
    engines: dict[int, lodeq.Engine] = {}
    watches = {count: Watch() for count in COUNTS}
    hand = Hand(
        bench.folder / f"hand-shards-{where}",
        kind=SqliteNormal if mode == "nosync" else SqliteFull,
    )
    ceiling = Ceiling(bench.folder / f"raw-shards-{where}", seconds / 2, is_synced=mode == "fsync")
    try:
        for count in COUNTS:
            engines[count] = await lodeq.open(
                bench.folder / f"shards-{where}-{count}", durability=mode, shards=count
            )
        measures: dict[str, Callable[[], Awaitable[float]]] = {
            "raw": ceiling,
            "hand": partial(hand.turnover, seconds / 2),
        }
        for count in COUNTS:
            one = partial(load.closed_loop, engines[count], seconds, callers)
            measures[str(count)] = watched(watches[count], one)
        runs = await bench.rounds(measures)
        turns = {count: await _a_turn(engines[count], callers) for count in COUNTS}
    finally:
        ceiling.db.close()
        hand.session.close()
        for engine in engines.values():
            await engine.close()
    return _Rounds(runs, watches, turns)


def _results(rounds: _Rounds, mode: str, callers: int) -> list[Result]:
    """A result for each number of shards, beside one shard."""
    runs = rounds.runs
    return [
        Result(
            "shards",
            {"durability": mode, "callers": callers, "shards": count},
            "cycles/s",
            runs[str(count)],
            "one shard" if count > 1 else "",
            runs["1"] if count > 1 else [],
            more={
                **rounds.turns[count],
                **of_raw(runs[str(count)], runs["raw"]),
                **Hand.columns(runs[str(count)], runs["hand"]),
            },
            goal=AS_ONE if (callers, count) == (64, 8) else None,
        )
        for count in COUNTS
    ]


async def _a_turn(engine: lodeq.Engine, callers: int) -> dict[str, float]:
    """Groups and fsyncs while each caller makes one call, over all rounds."""
    stats = await engine.stats()
    turns = max(1.0, 3 * stats.completed_total / callers)
    return {
        "groups a turn": sum(shard.commits for shard in stats.shards) / turns,
        "fsyncs a turn": sum(shard.syncs for shard in stats.shards) / turns,
    }


def recommended(results: Sequence[Result]) -> tuple[int, str]:
    """The least count that none beats by a tenth, and the reason in words."""
    best = max(results, key=lambda r: r.ratio or 1.0)
    gain = best.ratio or 1.0
    if gain < WORTH:
        return 1, f"more shards gain at most {max(0.0, gain - 1):.0%} here"
    enough = next(r for r in results if (r.ratio or 1.0) * WORTH >= gain)
    count = int(enough.params["shards"])
    return count, f"{(enough.ratio or 1.0) - 1:.0%} more than one"
