"""Limits of queues: their rules, one queue's counts, and those of all."""
