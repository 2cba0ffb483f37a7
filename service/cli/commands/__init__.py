"""Commands that read a store, work on it, or serve it."""
