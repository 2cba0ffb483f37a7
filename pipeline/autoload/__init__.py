"""Installed as ``pyspark_lodeq``: Spark finds ``format("lodeq")`` here without registration.

Spark searches top-level modules named ``pyspark_*`` for a ``DefaultSource``.
"""

from lodeq.pipeline.datasource import source

__all__ = ["DefaultSource"]

DefaultSource = source.DefaultSource
