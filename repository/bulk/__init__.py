"""Loads, exports and purges: tasks by the million."""
