"""Ended tasks, and plans that name them."""

from pathlib import Path

import lodeq
from lodeq.engine.bulk.inbox import store_info
from lodeq.engine.offline.purge_plan import PurgePlan, read_plan, write_plan, write_rows
from lodeq.engine.runtime.ids import shard_of

__all__ = ["Ends", "end_some", "engine_results", "make_plan"]

Ends = list[tuple[bytes, int]]


async def end_some(engine: lodeq.Engine) -> tuple[Ends, Ends]:
    """50 completed (10 after a retry) and 20 dead: (results, dead letters) with their moments.

    All in the first of two shards: what a plan then has does not rest on the draw of a slot.
    """
    mail = engine.queue("mail", max_attempts=2)
    await mail.enqueue_many([lodeq.NewTask(b"%d" % n, shard_key="a") for n in range(50)])
    for n, lease in enumerate(await mail.claim(limit=50)):
        await (lease.nack(delay=0) if n < 10 else lease.complete(b"v"))
    for lease in await mail.claim(limit=50):
        await lease.complete(b"again")
    await mail.enqueue_many([lodeq.NewTask(b"d%d" % n, shard_key="a") for n in range(20)])
    for lease in await mail.claim(limit=50):
        await lease.bury(reason="no")
    dead = [(bytes(task.id), task.id) for task in await mail.dead_letters()]
    results, letters = [], []
    for raw, task_id in dead:
        found = await engine.result(task_id)
        letters.append((raw, _ms(found)))
        results.append((raw, _ms(found)))
    results += [(bytes(id), _ms(await engine.result(id))) for id in engine_results(engine)]
    return sorted(set(results)), sorted(letters)


def engine_results(engine: lodeq.Engine) -> list[lodeq.TaskId]:
    found = []
    for shard in engine._state.shards:
        for rows in shard.overlay.pages(b"r/", b"r0", 1000):
            found += [lodeq.TaskId(key[2:]) for key, _ in rows]
    return found


def _ms(result: lodeq.Result | None) -> int:
    assert result is not None
    return round(result.finished_at.timestamp() * 1_000_000) // 1000


def make_plan(store: Path, folder: Path, results: Ends, dead: Ends, shards: int = 2) -> str:
    folder.mkdir()
    files = []
    for kind, ends in (("results", results), ("dead", dead)):
        for shard in range(shards):
            rows = [end for end in ends if shard_of(end[0], shards) == shard]
            if rows:
                name = f"{kind}-{shard}.rows"
                files.append(write_rows(str(folder), name, shard, kind, rows))
    info = store_info(store)
    plan = PurgePlan(str(folder), info.store_id, shards, "snap", "run", tuple(files))
    path = write_plan(plan)
    assert read_plan(path) == read_plan(folder) == plan
    return path
