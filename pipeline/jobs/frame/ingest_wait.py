"""Wait until a load is ingested: by this process, or by the service that has the store open."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Final

from ....engine.bulk.inbox import Outcome, StoreInfo, outcome
from ....engine.bulk.reader import open_shard
from ....engine.files.paths import only_journal
from ....engine.records.ingest import decode_ingested
from ....engine.records.keyspace import INGESTED
from ....errors import LockedError, UsageError
from ....repository.api.open import open_engine
from .report import Check, equal

__all__ = ["WAIT_S", "load_checks", "wait_for_ingest"]

WAIT_S: Final = 600.0
_LOOK_S: Final = 0.5


def wait_for_ingest(info: StoreInfo, job: str, wait_s: float = WAIT_S) -> Outcome:
    """Wait until a published load is ingested or refused, and return its outcome. Blocks.

    Raises:
        UsageError: the service that has the store open did not ingest it in ``wait_s`` seconds.
        StorageError, CorruptionError: it cannot be ingested.
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
                f"load {job!r} is published, and the service that has {info.path} open has not "
                "ingested it: let it look into its inbox, then run the same job again"
            )
        pause.wait(_LOOK_S)
        waited += _LOOK_S
    return end


async def _ingest(path: str, job: str) -> None:
    async with open_engine(path, reaper=False, inbox=False, journal=only_journal(path)) as engine:
        await engine.ingest(job)


def load_checks(info: StoreInfo, job: str, end: Outcome, staged: int) -> tuple[Check, ...]:
    """Check that all staged tasks were ingested, by the load's outcome and by each shard.

    Args:
        info: the store.
        job: name of the load.
        end: its outcome.
        staged: number of staged tasks.
    """
    facts = end.facts
    if end.state == "refused":
        return (Check("the store ingested the load", False, str(facts.get("reason", "refused"))),)
    loaded, skipped = facts.get("tasks", 0), facts.get("skipped", 0)
    there = 0
    for shard in range(info.shards):
        with open_shard(info.path, shard) as reader:
            raw = reader.get(INGESTED + job.encode())
        there += decode_ingested(raw).tasks if raw is not None else 0
    return (
        equal("all staged tasks were ingested", staged=staged, loaded_and_skipped=loaded + skipped),
        equal("the shards have the same number", loaded=loaded, in_shards=there),
    )
