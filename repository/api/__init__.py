"""The objects that users hold, and opening and closing an engine."""
