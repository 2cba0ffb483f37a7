"""Annotations of task functions: how typed values become plain ones, and plain ones typed again."""
