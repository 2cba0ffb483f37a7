"""Taking tasks over from other queues. Sources are only ever read; nothing stored becomes code."""
