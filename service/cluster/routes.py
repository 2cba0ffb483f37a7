"""Routes of a node for other nodes and operators, below ``/cluster``, behind the server's token.

    GET  /cluster/status                        the cluster, as this node sees it
    POST /cluster/checkpoint                    take a checkpoint now, and publish it
    POST /cluster/truncate                      remove from the logs led here what nobody needs
    POST /cluster/drain     {"drain": true}     lead nothing (any more, until false)
    POST /cluster/joins                        what leaders tell one another of workflows
    GET  /cluster/checkpoints/DIGEST            the files of a checkpoint
    GET  /cluster/checkpoints/DIGEST/PATH       one of them

and those of ``placement_routes``. A POST states ``Content-Type: application/json``, which a page of
another site cannot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import UsageError
from ...replication.checkpoints import Checkpoints
from ...replication.replicator import LogReplicator
from ...replication.status import ClusterStatus
from .answers import answering, document_of
from .placement_routes import placement_routes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

__all__ = ["node_routes", "status_document"]

JOINS_BYTES_MAX: Final = 1 << 20
TakeJoins = Callable[[object], Awaitable[Mapping[str, Any]]]


def status_document(status: ClusterStatus) -> dict[str, Any]:
    """A status as JSON has it."""
    found = asdict(status)
    for one, shard in zip(found["shards"], status.shards, strict=True):
        one["lag"] = shard.lag
    return found


def node_routes(
    replicator: LogReplicator, checkpoints: Checkpoints, take_joins: TakeJoins
) -> Sequence[BaseRoute]:
    """The routes of one node.

    Args:
        replicator: of the node.
        checkpoints: of the node.
        take_joins: does what another leader says of joins.
    """
    from starlette.responses import FileResponse, JSONResponse  # noqa: PLC0415 - an extra
    from starlette.routing import Route  # noqa: PLC0415

    async def status(_: Request) -> Response:
        found = status_document(replicator.status())
        if checkpoints.problem is not None:
            found["problems"] = [*found["problems"], checkpoints.problem]
        return JSONResponse(found)

    async def checkpoint(_: Request) -> Response:
        return JSONResponse(asdict(await checkpoints.take()))

    async def truncate(_: Request) -> Response:
        await replicator.truncate()
        return JSONResponse({"floors": [one.floor for one in replicator.status().shards]})

    async def joins(request: Request) -> Response:
        document = await document_of(request, JOINS_BYTES_MAX)
        return JSONResponse(dict(await take_joins(document)))

    async def drain(request: Request) -> Response:
        document = await document_of(request)
        if not isinstance(document.get("drain"), bool):
            raise UsageError('expected {"drain": true} or {"drain": false}')
        led = await replicator.drain(is_on=document["drain"])
        return JSONResponse({"leads": led})

    async def files(request: Request) -> Response:
        digest = request.path_params["digest"]
        found = await anyio.to_thread.run_sync(checkpoints.files, digest)
        return JSONResponse({"files": [[one.path, one.size] for one in found]})

    async def file(request: Request) -> Response:
        digest, path = request.path_params["digest"], request.path_params["path"]
        found = await anyio.to_thread.run_sync(partial(checkpoints.file, digest, path))
        return FileResponse(found, media_type="application/octet-stream")

    return [
        Route("/cluster/status", answering(status), methods=["GET"]),
        Route("/cluster/checkpoint", answering(checkpoint), methods=["POST"]),
        Route("/cluster/truncate", answering(truncate), methods=["POST"]),
        Route("/cluster/drain", answering(drain), methods=["POST"]),
        Route("/cluster/joins", answering(joins), methods=["POST"]),
        Route("/cluster/checkpoints/{digest}", answering(files), methods=["GET"]),
        Route("/cluster/checkpoints/{digest}/{path:path}", answering(file), methods=["GET"]),
        *placement_routes(replicator),
    ]
