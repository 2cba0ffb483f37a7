"""Replication: the port of a replicated log."""
