"""Load a data frame of tasks, routed first, so that each file has the rows of one shard in order.

``df.write`` alone is correct too, but each of its tasks stages files for every shard. They overlap:
the store ingests them as they are, and merges them later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...engine.bulk.inbox import is_published, outcome, refused_jobs, store_info, was_published
from ...engine.bulk.manifest import check_job
from ...engine.runtime.ids import SLOTS
from ...errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["batch_loader", "check_batches", "load_tasks", "routed"]


def load_tasks(
    frame: DataFrame,
    path: str | os.PathLike[str],
    *,
    job: str,
    on_conflict: str = "error",
    parts_per_shard: int = 1,
    options: Mapping[str, str | int] | None = None,
) -> bool:
    """Stage and publish the tasks of ``frame``, for the store at ``path`` to ingest.

    Args:
        frame: docs/pipeline.md lists its columns.
        path: a store, open or not.
        job: name of the load, for good: it is published once, however often this is called.
        on_conflict: when a dedup key is taken: ``error`` refuses the load, ``skip`` leaves the row
            out, ``replace`` replaces the other task. A row whose id the store has is left out by
            both of these.
        parts_per_shard: Spark tasks that stage one shard.
        options: further options of the format.

    Returns: whether this call published the load. A frame without rows publishes nothing, and its
        name stays free.

    Raises:
        UsageError: an argument is wrong. Errors in Spark's tasks come as ``PySparkException``.

    **Durability.** On return the load survives a power cut.
    **Cancellation.** It blocks.
    """
    check_job(job)
    info = store_info(path)
    if was_published(info.path, job):
        return False
    before = outcome(info.path, job)
    given = dict(options or {})
    queue, tenant = given.get("queue"), str(given.get("tenant", ""))
    ready = routed(
        frame,
        info.shards,
        queue=None if queue is None else str(queue),
        tenant=tenant,
        parts_per_shard=parts_per_shard,
    )
    write = ready.write.format("lodeq").mode("append").options(**given)
    write.option("commitId", job).option("onConflict", on_conflict).save(info.path)
    # A service may have refused it already; and a frame may have no rows.
    return is_published(info.path, job) or outcome(info.path, job) != before


def batch_loader(
    path: str | os.PathLike[str],
    app: str,
    *,
    on_conflict: str = "skip",
    options: Mapping[str, str | int] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Make a function for ``writeStream.foreachBatch``: each batch is a load, published once.

    Args:
        path: a store, open or not.
        app: name of the query, for good. A new checkpoint needs a new name.
        on_conflict: as ``load_tasks``.
        options: further options of the format.

    A batch raises ``UsageError`` once an earlier one was refused: the query has committed that one
    and will not write it again.
    """
    check_job(app)

    def load(frame: DataFrame, batch: int) -> None:
        check_batches(store_info(path).path, app, batch)
        load_tasks(frame, path, job=f"{app}-{batch}", on_conflict=on_conflict, options=options)

    return load


def check_batches(root: str, app: str, batch: int) -> None:
    """Check that no batch before this one was refused. Blocks.

    Raises:
        UsageError: one was refused.
    """
    for job in refused_jobs(root):
        name, _, number = job.rpartition("-")
        if name != app or not number.isdecimal() or int(number) >= batch:
            continue
        end = outcome(root, job)
        if end is not None and end.state == "refused":
            raise UsageError(
                f"load {job!r} of this query was refused ({end.facts.get('reason', '')}): move "
                f"inbox/refused/{job}.json.manifest back to inbox/{job}.json once it can come in, "
                f"or remove inbox/refused/{job}.json to go on without it"
            )


def routed(
    frame: DataFrame,
    shards: int,
    *,
    queue: str | None = None,
    tenant: str = "",
    parts_per_shard: int = 1,
) -> DataFrame:
    """Add a column ``slot`` to ``frame`` and bring the rows of each shard together.

    Args:
        frame: tasks; docs/pipeline.md lists the columns.
        shards: of the store, 1 to 4,096.
        queue: of rows that name none.
        tenant: of rows that name none.
        parts_per_shard: partitions for each shard, 1 or more.

    Raises:
        UsageError: an argument is wrong.
    """
    # Imported here: the package can be imported without the extra.
    from pyspark.sql.functions import coalesce, col, lit, pmod, when, xxhash64  # noqa: PLC0415
    from pyspark.sql.functions import monotonically_increasing_id as row_number  # noqa: PLC0415

    from . import sql  # noqa: PLC0415

    if parts_per_shard < 1:
        raise UsageError(f"parts_per_shard must be at least 1, got {parts_per_shard}")
    names = frame.columns

    def column(name: str, default: str | None) -> Column:
        return coalesce(col(name), lit(default)) if name in names else lit(default)

    slots: list[Column] = []
    if "dedup_key" in names:
        key = sql.routing_key(column("queue", queue), column("tenant", tenant), col("dedup_key"))
        slots.append(when(col("dedup_key").isNotNull(), sql.slot_of(key)))
    if "shard_key" in names:
        slots.append(when(col("shard_key").isNotNull(), sql.slot_of(col("shard_key"))))
    if "id" in names:
        slots.append(sql.slot_of_id(col("id")))
    if "slot" in names:
        slots.append(col("slot"))
    slots.append(pmod(xxhash64(row_number()), lit(SLOTS)).cast("int"))
    parts = shards * parts_per_shard
    with_slot = frame.withColumn("slot", coalesce(*slots))
    return with_slot.repartitionById(parts, sql.shard_of_slot(col("slot"), parts))
