"""Workflows as users hold them: values, and the handle of one."""
