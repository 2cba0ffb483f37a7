"""The formats of the Rust queue: log, index, folder."""
