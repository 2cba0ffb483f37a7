"""One module for each operation on tasks: enqueue, claim, settle, look up, list."""
