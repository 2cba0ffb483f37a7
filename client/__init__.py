"""Remote clients: the objects of an engine that another process serves over HTTP (docs/http.md)."""
