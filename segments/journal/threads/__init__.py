"""A journal's records and calls from threads beside its event loop."""
