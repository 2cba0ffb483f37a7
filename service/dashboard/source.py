"""The store behind the pages: an engine of this process, or a client of a served one."""

from __future__ import annotations

from typing import TypeAlias

from ...client.engine import RemoteEngine
from ...repository.api.engine import Engine
from ...repository.api.view import EngineView, view_of
from ..shared.engine_status import StatusCache, status_cache
from .remote import RemoteStatuses, RemoteView, remote_statuses

__all__ = ["AnyEngine", "Source", "poisoned_shards", "source_of", "statuses_of"]

AnyEngine: TypeAlias = Engine | RemoteEngine
Source: TypeAlias = EngineView | RemoteView


def source_of(engine: AnyEngine) -> Source:
    """The view of an engine, or of a client what it can answer of it. Cheap."""
    return RemoteView(engine) if isinstance(engine, RemoteEngine) else view_of(engine)


def poisoned_shards(engine: AnyEngine) -> set[int]:
    """Shards that take no writes until the store is reopened; a client does not know of any."""
    if isinstance(engine, RemoteEngine):
        return set()
    return {one.shard for one in view_of(engine).shards() if one.is_poisoned}


def statuses_of(engine: AnyEngine) -> StatusCache | RemoteStatuses:
    """The one cache of an engine's status."""
    return remote_statuses(engine) if isinstance(engine, RemoteEngine) else status_cache(engine)
