"""The Store port, RocksDB and memory behind it."""
