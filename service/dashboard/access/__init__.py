"""Access: who a request is from, what it may do, and the sessions of browsers."""
