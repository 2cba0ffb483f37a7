"""Serves the store that this process has open: ``lodeq.open(serve=…)`` and ``lodeq serve``."""
