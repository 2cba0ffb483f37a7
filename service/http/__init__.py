"""An engine over HTTP: the server's side of docs/http.md. Needs ``lodeq[http]``."""
