"""``complete``, ``nack``, ``release``: what becomes of a task that ``claim`` has taken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ....client.lease import RemoteLease
from ....client.records import Granted
from ....client.wire import Stored
from ....engine.records.policy import Policy
from ....repository.api.engine import Engine
from ....repository.api.lease_proof import LeaseProof
from ....repository.api.view import view_of
from ..connection import run, store_argument, writing
from ..display import as_json_option, tell_json
from ..values import Grant, duration, grant_of, payload_of

if TYPE_CHECKING:
    from ....client.engine import RemoteEngine

__all__ = ["complete", "nack", "release"]

How = Literal["complete", "nack", "release"]
_DONE: Final = {"complete": "completed", "nack": "nacked", "release": "released"}
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


@click.command()
@store_argument
@click.argument("lease")
@click.option("--result", help="Kept for the task's retention.")
@click.option("--parse", is_flag=True, help="The result is JSON: keep the value.")
@as_json_option
def complete(store: str, lease: str, result: str | None, parse: bool, as_json: bool) -> None:
    """End a task whose LEASE 'claim' has printed."""
    value = None if result is None else payload_of(result, is_json=parse)
    _settle(store, lease, "complete", as_json, result=value)


@click.command()
@store_argument
@click.argument("lease")
@click.option("--delay", type=duration, help="Until it is ready again; else its backoff.")
@click.option("--reason", default="", help="Kept with the task.")
@as_json_option
def nack(store: str, lease: str, delay: float | None, reason: str, as_json: bool) -> None:
    """Give a task back: it failed. Counts the attempt; the last one makes it a dead letter."""
    _settle(store, lease, "nack", as_json, delay=delay, reason=reason)


@click.command()
@store_argument
@click.argument("lease")
@click.option("--delay", type=duration, help="Until it is ready again; else at once.")
@as_json_option
def release(store: str, lease: str, delay: float | None, as_json: bool) -> None:
    """Give a task back unworked: the attempt is not counted."""
    _settle(store, lease, "release", as_json, delay=delay)


def _settle(store: str, text: str, how: How, as_json: bool, **options: Any) -> None:
    grant = grant_of(text)
    run(lambda: _act(store, grant, how, **options))
    if as_json:
        tell_json([{"id": str(grant.task_id), _DONE[how]: True}])


async def _act(store: str, grant: Grant, how: How, **options: Any) -> None:
    async with writing(store) as engine:
        if not isinstance(engine, Engine):
            await getattr(_remote_lease(engine, grant), how)(**options)
        elif how == "complete":
            await view_of(engine).complete_proved(LeaseProof(*grant), **options)
        else:
            lease = await view_of(engine).proved_lease(LeaseProof(*grant))
            await getattr(lease, how)(**options)


def _remote_lease(engine: RemoteEngine, grant: Grant) -> RemoteLease:
    """When a lease ends, only the proof of it counts: the rest need not be known."""
    granted = Granted(
        *grant,
        queue="",
        tenant="",
        priority=0,
        attempt=0,
        policy=Policy(1, 0, 0.0, 0, 0, 0, 0),
        enqueued_at=_LONG_AGO,
        deadline=_LONG_AGO,
        lease_s=0.0,
        payload=Stored(0, b""),
        headers=None,
    )
    return RemoteLease(engine, granted, None)
