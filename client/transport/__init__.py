"""Connections to a server: over the link, and over HTTP for what it does not carry."""

from importlib.util import find_spec

from ...errors import UsageError

for _library in ("httptools", "httpx", "msgspec"):
    if find_spec(_library) is None:
        raise UsageError('a client needs an extra: pip install "lodeq[http]"')
