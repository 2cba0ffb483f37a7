"""Connections to a server: over the link, and over HTTP for what it does not carry."""
