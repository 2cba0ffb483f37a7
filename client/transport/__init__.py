"""Connections to a server: over the link, and over HTTP for what it does not carry."""

from importlib.util import find_spec as _find_spec

from ...errors import UsageError as _UsageError

for _library in ("httptools", "httpx", "msgspec"):
    if _find_spec(_library) is None:
        raise _UsageError('a client needs an extra: pip install "lodeq[http]"')
