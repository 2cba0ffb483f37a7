"""Addresses at which a store is served: a socket's path beside the store, or ``HOST:PORT``."""

from __future__ import annotations

import os
import re
import socket
from typing import Final, NamedTuple

from ...engine.files.paths import normal_path
from ...errors import StorePathError, UsageError
from ..http.listener import find_tcp, find_unix, listen_tcp, listen_unix

__all__ = ["Address", "address_of"]

_TCP: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)
_TCP_SCHEME: Final = re.compile(r"^(tcp|http)://")
_PORT_MAX: Final = 65_535


class Address(NamedTuple):
    """One of both: the path of a unix socket, or a host with a port."""

    path: str | None
    host: str
    port: int

    def check(self, root: str, token: str | None, *, is_probed: bool) -> None:
        """Refuse where nothing can listen; nothing is opened or removed yet.

        Args:
            root: the store's folder, with whose parents those of a socket may be made.
            token: of the server; a host that other machines reach needs one.
            is_probed: refuse a socket on which a server answers, and a port that is taken, too.
        """
        if self.path is not None:
            find_unix(self.path, is_probed=is_probed)
            folder = os.path.dirname(self.path)
            if not os.path.isdir(folder) and not root.startswith(f"{folder}{os.sep}"):
                raise StorePathError(
                    f"{self.path}: cannot listen there: there is no folder {folder!r}: make it"
                )
        elif is_probed:
            listen_tcp(self.host, self.port, token).close()
        else:
            find_tcp(self.host, self.port, token)

    def listen(self, token: str | None) -> socket.socket:
        """Listen there; errors as those of ``check``."""
        if self.path is None:
            return listen_tcp(self.host, self.port, token)
        return listen_unix(self.path)

    def url(self, listener: socket.socket) -> str:
        """The address that ``lodeq.connect`` takes."""
        if self.path is not None:
            return f"unix://{self.path}"
        name = listener.getsockname()
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"http://{host}:{name[1]}"


def address_of(store: str | os.PathLike[str], given: object) -> Address:
    """The address that ``serve=`` means for this store.

    Args:
        store: folder of the store.
        given: True for ``PATH.sock``; a path, or ``HOST:PORT``.

    Raises:
        UsageError: it is neither. StorePathError: it lies in the store's own folder.
    """
    root = normal_path(store)
    if given is True:
        return Address(f"{root}.sock", "", 0)
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"expected serve=True, the path of a socket or HOST:PORT, got {type(given).__name__}"
        )
    text = os.fsdecode(given)
    found = _TCP.fullmatch(_TCP_SCHEME.sub("", text)) if isinstance(given, str) else None
    if found is not None:
        port = int(found["port"])
        if port > _PORT_MAX:
            raise UsageError(f"serve={text!r}: a port is at most {_PORT_MAX}")
        return Address(None, found["six"] or found["name"], port)
    text = text.removeprefix("unix://")
    if not text or not _is_path(text) or "://" in text or text.endswith("/"):
        raise UsageError(
            f"serve={os.fsdecode(given)!r} is no address: give True, the path of a socket, or "
            "HOST:PORT"
        )
    path = os.path.normpath(os.path.join(os.path.dirname(root), text))
    if path == root or path.startswith(f"{root}{os.sep}"):
        raise StorePathError(
            f"serve={os.fsdecode(given)!r} lies in the store's folder, which holds only the store: "
            f"put the socket beside it, or give serve=True for {root}.sock"
        )
    return Address(path, "", 0)


def _is_path(text: str) -> bool:
    """Whether a file can have that path."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
