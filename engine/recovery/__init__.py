"""Opening a shard: what may be opened, what is repaired, and how it is checked."""
