"""Queue state in memory, derived from the rows."""
