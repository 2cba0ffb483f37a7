"""The queue of another process: the objects of an engine, over HTTP (docs/http.md)."""
