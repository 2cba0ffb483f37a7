"""Import from other queues, and export to them. Nothing stored becomes code."""
