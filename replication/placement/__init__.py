"""Which nodes have which shards: who decides it, and what a node does about it."""
