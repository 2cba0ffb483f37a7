"""Rows of a task found and changed: where it is, its dedup and expiry entries, hidden rows."""
