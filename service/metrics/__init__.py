"""What an engine measures, for Prometheus: see docs/metrics.md."""
