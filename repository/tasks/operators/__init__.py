"""Operators' calls: acts on tasks and queues, history, settings, published functions."""
