"""The data pipeline on Spark: ``pip install "lodeq[spark]"``.

::

    from lodeq.pipeline import build_session, load_tasks

    spark = build_session(master="local[4]")
    load_tasks(spark.read.parquet("tasks"), "var/jobs", job="backfill-1")
    dead = spark.read.format("lodeq").option("table", "dead").load("var/jobs")

docs/pipeline.md is the guide. Importing this package does not import Spark.
"""

from .datasource.routing import batch_loader, load_tasks, routed
from .session import build_session

__all__ = ["batch_loader", "build_session", "load_tasks", "routed"]
