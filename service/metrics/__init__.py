"""Metrics of an engine for Prometheus: see docs/metrics.md."""
