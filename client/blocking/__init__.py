"""The blocking twins of the client: the same calls for code without an event loop."""
