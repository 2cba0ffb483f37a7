"""A node of a cluster as a service: its replication layer, checkpoints, and routes."""
