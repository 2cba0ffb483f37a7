"""The port of a store's server, and what loads the one there is.

The server itself lies above this layer and is an extra (``service/store_server``). It is imported
by its name when ``lodeq.open(serve=…)`` asks for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from ...errors import UsageError
from .engine import Engine
from .serve_options import RunningServer, Serve, ServeAs

__all__ = ["StoreServer", "load_server"]

_SERVER = "lodeq.service.store_server.server"


class StoreServer(RunningServer, Protocol):
    """A server of one store. It is made before the store is opened, which may refuse it."""

    def check(self) -> None:
        """Refuse an address at which nothing can ever listen; nothing is opened or removed."""

    async def start(self, engine: Engine) -> None:
        """Listen, and leave the note in the store's folder. The engine holds the store's lock."""


def load_server(path: str | os.PathLike[str], serve: ServeAs) -> Callable[[], StoreServer] | None:
    """Return what makes the server that ``serve`` asks for; None for none.

    Raises:
        UsageError: the options are wrong, or an extra is missing.
    """
    if serve is None or serve is False:
        return None
    wanted = serve if isinstance(serve, Serve) else Serve(address=serve)
    try:
        module = import_module(_SERVER)
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] == "lodeq":
            raise
        raise UsageError(
            f'serve= needs an extra ({exc.name} is missing): pip install "lodeq[http]"'
        ) from exc
    make: Callable[[], StoreServer] = module.make_server(path, wanted)
    return make
