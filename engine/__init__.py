"""One shard: keys, records, the store and what opens and watches it."""
