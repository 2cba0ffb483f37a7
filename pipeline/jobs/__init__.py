"""The jobs of the pipeline: one a file, each ``run(spark, config, progress) -> Report``.

A job is its module: ``Config``, a frozen dataclass whose fields are the options of the command, and
``run``. ``JOBS`` is all there is to register; a job is imported when it is asked for.
"""

from __future__ import annotations

from typing import Final

__all__ = ["JOBS"]

JOBS: Final[dict[str, str]] = {
    "backfill": "tasks from files into a store, the bad ones set aside",
    "archive": "finished tasks and dead letters into Parquet",
    "analytics": "waits, runs, failures, throughput and skew, as tables and as a page",
    "replay": "archived tasks into a queue again",
    "migrate": "other queues' files into a store",
    "reshard": "a store with another number of shards",
    "audit": "everything read, and whether it fits together",
}
