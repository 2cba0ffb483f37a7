"""Snapshots, resharding, audits and their repair."""
