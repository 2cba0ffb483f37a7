"""Blocking connections to one server, or to a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cluster.address import is_cluster, processes_of
from ..cluster.target import ClusterTarget
from ..transport.transport import SyncTransport, Target
from .cluster.transport import SyncClusterTransport

__all__ = ["led_on", "transport_of", "transport_to"]


def transport_of(
    url: str, token: str | None, timeout_s: float
) -> SyncTransport | SyncClusterTransport:
    """Blocking connections to an address, which is checked.

    Args:
        url: as ``lodeq.sync.connect`` takes it.
        token: the server's, if it has one.
        timeout_s: seconds until a server that does not answer is given up.
    """
    if is_cluster(url):
        return SyncClusterTransport(ClusterTarget(url, token, timeout_s))
    return SyncTransport(Target(url, token, timeout_s))


def transport_to(target: Target | ClusterTarget) -> SyncTransport | SyncClusterTransport:
    """Blocking connections to where an async client goes."""
    if isinstance(target, ClusterTarget):
        return SyncClusterTransport(target)
    return SyncTransport(target)


def led_on(
    transport: SyncTransport | SyncClusterTransport, doc: Mapping[str, Any], token: str | None
) -> SyncTransport | SyncClusterTransport:
    """The connections to all processes with the store, where several have it.

    Args:
        transport: to one of them, or to all; closed if others take its place.
        doc: the answer of ``GET /engine``.
        token: of the server, if it has one.
    """
    found = processes_of(doc)
    if found is None:
        return transport
    if not isinstance(transport.target, ClusterTarget):
        timeout_s = transport.target.timeout_s
        transport.close()
        transport = transport_of(found.address, token, timeout_s)
    if isinstance(transport.target, ClusterTarget):
        transport.target.front = found.front
    return transport
