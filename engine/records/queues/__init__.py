"""The rows of a queue itself: its settings, and the functions that workers have published."""
