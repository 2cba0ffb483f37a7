"""``complete``, ``nack`` and ``release``: end the lease of a task that ``claim`` has printed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ....client.documents.records import Granted
from ....client.documents.wire import Stored
from ....client.lease import RemoteLease
from ....engine.records.policy import Policy
from ....errors import UsageError
from ....repository.api.engine import Engine
from ....repository.api.lease_proof import LeaseProof
from ....repository.api.view import view_of
from ..connection import run, store_argument, writing
from ..display import as_json_option, print_json
from ..values import Grant, duration, grant_of, payload_of

if TYPE_CHECKING:
    from ....client.engine import RemoteEngine

__all__ = ["complete", "nack", "release"]

How = Literal["complete", "nack", "release", "redrive"]
_DONE: Final = {
    "complete": "completed",
    "nack": "nacked",
    "release": "released",
    "redrive": "redriven",
}
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)


@click.command()
@store_argument
@click.argument("lease")
@click.option("--result", help="Kept for the task's retention.")
@click.option("--parse", is_flag=True, help="The result is JSON: keep the value.")
@as_json_option
def complete(store: str, lease: str, result: str | None, parse: bool, as_json: bool) -> None:
    """Complete the task whose LEASE 'claim' has printed.

    Args:
        store: a store's folder, or the address of a service.
        lease: ``ID:EPOCH:TOKEN``.
        result: kept for the task's retention; None: nothing.
        parse: the result is JSON: keep the value, not its text.
        as_json: print JSON lines instead of a table.
    """
    value = None if result is None else payload_of(result, is_json=parse)
    _settle(store, lease, "complete", as_json, result=value)


@click.command()
@store_argument
@click.argument("lease")
@click.option("--delay", type=duration, help="Time until it is ready again; default: its backoff.")
@click.option("--reason", default="", help="Kept with the task.")
@as_json_option
def nack(store: str, lease: str, delay: float | None, reason: str, as_json: bool) -> None:
    """Give a task back because it failed. The attempt counts; after the last one the task is dead.

    Args:
        store: a store's folder, or the address of a service.
        lease: ``ID:EPOCH:TOKEN``.
        delay: seconds until it is ready again; None: its backoff.
        reason: kept with the task.
        as_json: print JSON lines instead of a table.
    """
    _settle(store, lease, "nack", as_json, delay=delay, reason=reason)


@click.command()
@store_argument
@click.argument("lease")
@click.option("--delay", type=duration, help="Time until it is ready again; default: at once.")
@click.option(
    "--redrive", is_flag=True, help="Of a dead letter: to its queue, with a fresh set of attempts."
)
@as_json_option
def release(store: str, lease: str, delay: float | None, redrive: bool, as_json: bool) -> None:
    """Give a task back without working on it. The attempt does not count.

    A dead letter that 'claim --dead' has taken goes back to the dead letters, as it was.

    Args:
        store: a store's folder, or the address of a service.
        lease: ``ID:EPOCH:TOKEN``.
        delay: seconds until it is ready again; None: at once.
        redrive: a dead letter goes to its queue instead.
        as_json: print JSON lines instead of a table.
    """
    if redrive and delay is not None:
        raise UsageError("--redrive takes no --delay: the task is ready at once")
    if redrive:
        _settle(store, lease, "redrive", as_json)
    else:
        _settle(store, lease, "release", as_json, delay=delay)


def _settle(store: str, text: str, how: How, as_json: bool, **options: Any) -> None:
    grant = grant_of(text)
    run(lambda: _act(store, grant, how, **options))
    if as_json:
        print_json([{"id": str(grant.task_id), _DONE[how]: True}])


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
    """A client's lease made of the proof alone, which is all that ending one needs."""
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
