"""Group commit: many operations, one write."""
