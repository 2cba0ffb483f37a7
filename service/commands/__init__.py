"""The commands of ``lodeq`` that look at a store and work on it."""
