"""Waiting until a store has a load: taken in by us, or by the service that has the store open."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Final

from ....engine.bulk.inbox import Outcome, StoreInfo, outcome
from ....engine.bulk.reader import open_shard
from ....engine.records.ingest import decode_ingested
from ....engine.records.keyspace import INGESTED
from ....engine.store.paths import only_journal
from ....errors import LockedError, UsageError
from ....repository.api.open import open_engine
from .report import Check, equal

__all__ = ["WAIT_S", "load_checks", "taken_in"]

WAIT_S: Final = 600.0
_LOOK_S: Final = 0.5


def taken_in(info: StoreInfo, job: str, wait_s: float = WAIT_S) -> Outcome:
    """What became of a load that is published. Blocks.

    Raises:
        UsageError: whoever has the store open did not take it in in that time.
        StorageError, CorruptionError: it cannot be taken in.
    """
    waited, pause = 0.0, Event()
    while (end := outcome(info.path, job)) is None:
        try:
            asyncio.run(_ingest(info.path, job))
            continue
        except LockedError:
            pass
        if waited >= wait_s:
            raise UsageError(
                f"load {job!r} is published and waits for the service that has {info.path} open: "
                "let it look into its inbox, then run the same job again"
            )
        pause.wait(_LOOK_S)
        waited += _LOOK_S
    return end


async def _ingest(path: str, job: str) -> None:
    async with open_engine(path, reaper=False, inbox=False, journal=only_journal(path)) as engine:
        await engine.ingest(job)


def load_checks(info: StoreInfo, job: str, end: Outcome, staged: int) -> tuple[Check, ...]:
    """That all of what was staged came in: by the load's end, and by what each shard says of it."""
    facts = end.facts
    if end.state == "refused":
        return (Check("the store took it in", False, str(facts.get("reason", "refused"))),)
    loaded, skipped = facts.get("tasks", 0), facts.get("skipped", 0)
    there = 0
    for shard in range(info.shards):
        with open_shard(info.path, shard) as reader:
            raw = reader.get(INGESTED + job.encode())
        there += decode_ingested(raw).tasks if raw is not None else 0
    return (
        equal("what was staged came in", staged=staged, loaded_and_skipped=loaded + skipped),
        equal("the shards say the same", loaded=loaded, in_shards=there),
    )
