"""Calls of functions: what is published of each, arguments checked, previews."""
