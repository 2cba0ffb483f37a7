"""One shard of a store: keys, records, files, and how it is opened, checked and mended."""
