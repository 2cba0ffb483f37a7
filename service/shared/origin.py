"""Host and Origin: whether a request comes from a page of its own server.

A browser on the same machine can reach a loopback port, and a page of any site can make it send
requests. So a foreign ``Host`` (DNS rebinding) and a foreign ``Origin`` are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

__all__ = ["CONNECTION", "foreign_of", "host_of"]

# Our server puts a request's connection there, in the state of its scope. An application that
# mounts us under another server may have a ``connection`` of its own in that state.
CONNECTION: Final = "lodeq.connection"

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")


def host_of(value: str) -> str:
    """The name in a ``Host`` header, without port and brackets, in lower case; "" if it is invalid.

    Nothing may stand beside name and port: readers of different parts would see different hosts.
    """
    found = _HOST.fullmatch(value.strip().lower())
    return "" if found is None else found[1] or found[2]


def foreign_of(
    given: Iterable[tuple[bytes, bytes]], method: str, hosts: Collection[str]
) -> str | None:
    """Why a request is not one of this server's own pages, or None.

    Args:
        given: its headers, with names in lower case.
        method: GET may follow a link of another site.
        hosts: the names that ``Host`` may have, without the port.
    """
    pairs = list(given)
    headers = dict(pairs)
    names = [name for name, _ in pairs if name in (b"host", b"origin")]
    raw_host = headers.get(b"host", b"").lower()
    host = host_of(raw_host.decode("latin-1"))
    if not host or host not in hosts or names.count(b"host") > 1:
        return f"Host {raw_host[:80]!r} is not one of this server's"
    origin = headers.get(b"origin")
    own = (b"http://" + raw_host, b"https://" + raw_host)
    if not (origin is None or origin.lower() in own) or names.count(b"origin") > 1:
        return "a page of another origin may not call this server"
    is_foreign = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
    if is_foreign and not (method == "GET" and _is_followed_link(headers)):
        return "a page of another site may not call this server"
    return None


def _is_followed_link(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the user has followed a link of another site, whose page cannot read the answer."""
    return (
        headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )
