"""Large payloads outside the tree: in append-only files, found through rows of the store."""
