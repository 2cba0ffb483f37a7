"""The worker: task functions, and what runs them. Its public face is ``lodeq.worker``."""
