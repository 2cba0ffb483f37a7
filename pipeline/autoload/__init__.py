"""Installed as ``pyspark_lodeq``: Spark finds ``format("lodeq")`` by that name, unregistered.

It looks through top-level modules called ``pyspark_*`` for a ``DefaultSource``.
"""

from lodeq.pipeline.datasource import source

__all__ = ["DefaultSource"]

DefaultSource = source.DefaultSource
