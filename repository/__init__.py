"""The state of the queues: tasks, indexes, leases and results."""
