"""Workflows: joins, their parts, and what lets a waiting task go (docs/workflows.md)."""
