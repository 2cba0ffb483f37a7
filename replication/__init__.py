"""Replication: a replicated log over a shared log service (the port, the layer, adapters)."""
