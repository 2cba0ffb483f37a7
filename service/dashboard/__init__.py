"""The dashboard: what an operator sees of an engine in a browser. Needs ``lodeq[http]``."""
