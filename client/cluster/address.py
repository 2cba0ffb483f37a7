"""Addresses of clusters: ``lodeq://a:7000,b:7000``, and when two addresses mean one server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...errors import UsageError
from ..transport.socket_path import absolute_url

__all__ = [
    "NODES_MAX",
    "SCHEME",
    "Processes",
    "absolute_address",
    "identity_of",
    "is_cluster",
    "node_addresses",
    "node_url",
    "processes_of",
]

SCHEME: Final = "lodeq://"
NODES_MAX: Final = 256
_EXAMPLE: Final = "lodeq://HOST:PORT,HOST:PORT or lodeq://unix:FILE,unix:FILE"


class Processes(NamedTuple):
    """Several processes that have one store between them, as one of them says it.

    Attributes:
        address: of all of them, as that of a cluster.
        front: of their supervisor.
    """

    address: str
    front: str


def processes_of(doc: Mapping[str, Any]) -> Processes | None:
    """Who has the store, by the answer of ``GET /engine``; None: whoever has given it.

    Raises:
        UsageError: the answer names no addresses.
    """
    found = doc.get("processes")
    if found is None:
        return None
    address, front = found["address"], found["front"]
    if not is_cluster(address) or not isinstance(front, str):
        raise UsageError(f"the server names its processes by {address!r}: is it a newer lodeq?")
    return Processes(address, front)


def is_cluster(url: object) -> bool:
    """Whether an address is that of a cluster."""
    return isinstance(url, str) and url[: len(SCHEME)].lower() == SCHEME


def node_url(text: str) -> str:
    """The address of one node, as ``lodeq.connect`` takes it; ``HOST:PORT`` means the link."""
    if text[:5].lower() == "unix:":
        return absolute_url(f"unix://{text[5:].removeprefix('//')}")
    return text if "://" in text else f"tcp://{text}"


def absolute_address(url: str) -> str:
    """The address of a server or a cluster as it is meant now, wherever the process goes later."""
    if not is_cluster(url):
        return absolute_url(url)
    named = [(name, absolute_url(name)) for name in url[len(SCHEME) :].split(",")]
    # A folder with a comma in its name cannot be in the address of a cluster.
    return SCHEME + ",".join(name if "," in whole else whole for name, whole in named)


def node_addresses(url: str) -> list[str]:
    """The nodes in the address of a cluster, each once.

    Raises:
        UsageError: one is missing, or there are more than 256.
    """
    names = url[len(SCHEME) :].split(",")
    if not all(name.strip() and name == name.strip() for name in names):
        raise UsageError(f"{url!r} is no address of a cluster: {_EXAMPLE}")
    if len(names) > NODES_MAX:
        raise UsageError(f"{len(names)} nodes in one address, at most {NODES_MAX}: name a few")
    found = {identity_of(one): one for one in map(node_url, names)}
    return list(found.values())


def identity_of(url: str) -> str:
    """The same text for addresses of the same server, whichever protocol they name."""
    url = node_url(url)
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "unix":
        return f"unix://{rest}"
    kind = "https" if scheme.lower() == "https" else "tcp"
    return f"{kind}://{rest.rstrip('/').lower()}"
