"""One module for each operation on tasks: enqueue, claim, end, look up, list."""
