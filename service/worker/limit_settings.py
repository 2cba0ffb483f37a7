"""Limits that task functions declare for their queue, put into the store when a worker starts.

``rate=``, ``queue_concurrency=`` and ``key_concurrency=`` hold over all processes, so they are
settings of the queue in the store. Of two deployed versions of one function the newest start wins.
Two functions that differ are refused with both names: at the decorator in one app, at the start of
the worker in two. What an operator has set stays, and the worker says so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...repository.model.queue_settings import FUNCTION_PREFIX, QueueSettings

if TYPE_CHECKING:
    from ...repository.api.engine import Engine
    from .registry import Registry

__all__ = ["publish_limits"]

_FIELDS: Final = {  # setting: option
    "rate": "rate",
    "concurrency": "queue_concurrency",
    "key_concurrency": "key_concurrency",
}
log = logging.getLogger("lodeq.worker")


async def publish_limits(engine: Engine, registry: Registry, queues: Sequence[str]) -> None:
    """Set what the functions of these queues declare; take back what they declared before.

    Args:
        engine: an open engine, or a client.
        registry: the app's functions.
        queues: those that the worker serves.

    Raises:
        UsageError: another function has set a limit of one of the queues to another value, or the
            server is too old for limits. What was set before it stays set.
    """
    for queue in queues:
        declared = {
            setting: (name, getattr(registry.functions[queue][name].policy, option))
            for setting, option in _FIELDS.items()
            if (name := registry.who_sets(queue, option)) is not None
        }
        if not declared and not _has_settings(engine):
            continue
        found = await engine.settings(queue)
        for setting in _FIELDS:
            await _publish(engine, registry, found, setting, declared.get(setting))


def _has_settings(engine: Any) -> bool:
    """Whether the store knows settings: an older server does not, and has none of ours."""
    session = getattr(engine, "session", None)
    return session is None or bool(session.takes_queue_settings)


async def _publish(
    engine: Engine,
    registry: Registry,
    found: QueueSettings,
    setting: str,
    declared: tuple[str, Any] | None,
) -> None:
    queue, now, by = found.queue, getattr(found, setting), found.by.get(setting, "")
    is_ours = by.startswith(FUNCTION_PREFIX) and (
        by.removeprefix(FUNCTION_PREFIX) in registry.functions[queue]
    )
    if declared is None:
        if is_ours:  # an earlier version of the function has set it
            await _configure(engine, queue, by, {setting: None}, replace=True)
        return
    name, value = declared
    if now == value:
        return
    if by and not by.startswith(FUNCTION_PREFIX):
        log.warning(
            "%s of queue %r stays %s, as %s has set it; function %r declares %s",
            setting,
            queue,
            now,
            by,
            name,
            value,
            extra={"event": "limit_overridden", "queue": queue},
        )
        return
    await _configure(engine, queue, FUNCTION_PREFIX + name, {setting: value}, replace=is_ours)


async def _configure(
    engine: Engine, queue: str, by: str, change: dict[str, Any], *, replace: bool
) -> None:
    await engine.configure(queue, by=by, replace=replace, **change)
