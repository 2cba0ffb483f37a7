"""Calls from one node to the leaders of other shards, over connections that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx

from ...client.transport.transport import Target
from ...errors import UnreachableError

__all__ = ["NodeLeaderCalls"]

TIMEOUT_S: Final = 5.0
NODES_MAX: Final = 64  # connections to more are made anew


class NodeLeaderCalls:
    """What nodes tell one another of workflows: ``LeaderCalls``, over ``POST /cluster/joins``.

    Args:
        token: what nodes give one another; None: none. It goes to addresses that the log names:
            whoever can write there is trusted (SECURITY.md).
    """

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._is_closed = False

    def _client(self, url: str) -> httpx.AsyncClient:
        found = self._clients.get(url)
        if found is None:
            target = Target(url, self._token, TIMEOUT_S)
            names = "authorization", "user-agent"
            found = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(**target.transport_options()),
                base_url=target.base.removesuffix("/v1"),
                headers={name: one for name, one in target.headers.items() if name in names},
                timeout=TIMEOUT_S,
            )
            self._clients[url] = found
        return found

    async def tell_joins(self, url: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """See ``LeaderCalls``.

        Raises:
            UnreachableError: nobody answers there, or not with what a node says.
        """
        if self._is_closed:
            raise UnreachableError("this node is closing")
        while len(self._clients) > NODES_MAX:
            await self._clients.pop(next(iter(self._clients))).aclose()
        try:
            answer = await self._client(url).post("/cluster/joins", json=document)
            found = answer.json()
        except (httpx.HTTPError, ValueError, RecursionError) as exc:
            raise UnreachableError(f"{url}: {type(exc).__name__} {exc}".rstrip()) from exc
        is_one = isinstance(found, dict)
        if not answer.is_success or not is_one or not {"attached", "later"} <= found.keys():
            said = found.get("error") or found.get("detail") if is_one else None
            raise UnreachableError(f"{url}: {said or answer.status_code}")
        return dict(found)

    async def close(self) -> None:
        """Close the connections; nobody is told anything any more."""
        self._is_closed = True
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()
