"""Access: what the token of a caller may do, by role, queue and tenant (docs/roles.md)."""
