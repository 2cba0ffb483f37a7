"""Tools that need no live engine: reshard, audit, purge plans, read-only access."""
