"""The command ``lodeq``."""
