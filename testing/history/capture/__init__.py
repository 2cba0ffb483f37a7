"""Capture a history: calls and answers as they happen, and the contents of a store."""
