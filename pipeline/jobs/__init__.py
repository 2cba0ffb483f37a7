"""The jobs of the pipeline, one module each with ``run(spark, config, progress) -> Report``.

A job is its module: ``Config``, a frozen dataclass whose fields are the options of the command, and
``run``. ``JOBS`` lists all of them; a job is imported when it is run.
"""

from __future__ import annotations

from typing import Final

__all__ = ["JOBS"]

JOBS: Final[dict[str, str]] = {
    "backfill": "load tasks from files; wrong rows are set aside",
    "archive": "write finished tasks and dead letters to Parquet",
    "analytics": "waits, runs, failures, throughput and skew, as tables and as a page",
    "replay": "load archived tasks into a queue again",
    "migrate": "load the files of other queues",
    "reshard": "change the number of shards of a store",
    "audit": "check every row, payload and journal of a store",
}
