"""Routes of a node about which nodes have which shards.

    POST /cluster/add                                      let this node have copies (again)
    POST /cluster/remove                                   let other nodes have its copies
    POST /cluster/forget    {"node": "n3"}                 a node that has ended will not come back
    POST /cluster/move      {"shard": 3, "to": "n2", "from": "n1"}   move a copy; from may be null

Each says what is wanted, and returns at once: the balancer does it, and the status shows how far it
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...replication.replicator import LogReplicator
from .answers import answering, document_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

__all__ = ["placement_routes"]


def placement_routes(replicator: LogReplicator) -> Sequence[BaseRoute]:
    """The routes of one node."""
    from starlette.responses import JSONResponse  # noqa: PLC0415 - an extra
    from starlette.routing import Route  # noqa: PLC0415

    async def add(_: Request) -> Response:
        await replicator.wishes.add(replicator.node)
        return JSONResponse({"node": replicator.node})

    async def remove(_: Request) -> Response:
        await replicator.wishes.remove(replicator.node)
        return JSONResponse({"node": replicator.node})

    async def forget(request: Request) -> Response:
        node = (await document_of(request)).get("node")
        if not isinstance(node, str) or not 0 < len(node) <= 64:
            raise UsageError('expected {"node": "NAME"}')
        await replicator.wishes.forget(node)
        return JSONResponse({"node": node})

    async def move(request: Request) -> Response:
        document = await document_of(request)
        shard, to, source = (document.get(name) for name in ("shard", "to", "from"))
        if isinstance(shard, bool) or not isinstance(shard, int):
            raise UsageError("shard is a number")
        if not isinstance(to, str) or not isinstance(source, str | None):
            raise UsageError('expected {"shard": 3, "to": "NAME", "from": "NAME" or null}')
        return JSONResponse(asdict(await replicator.wishes.move(shard, to, source)))

    return [
        Route("/cluster/add", answering(add), methods=["POST"]),
        Route("/cluster/remove", answering(remove), methods=["POST"]),
        Route("/cluster/forget", answering(forget), methods=["POST"]),
        Route("/cluster/move", answering(move), methods=["POST"]),
    ]
