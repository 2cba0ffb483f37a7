"""Clients of a cluster: several nodes of one store, of which each leads some of the shards."""
