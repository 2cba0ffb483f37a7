"""Blocking clients of a cluster."""
