"""Append-only files: the formats they have, and what is built on them."""
