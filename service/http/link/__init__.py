"""The link, seen from the server: many calls on one connection (docs/link.md)."""
