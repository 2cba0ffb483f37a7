"""The Store port, RocksDB and memory behind it, and the files around a store."""
