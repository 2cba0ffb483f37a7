"""Commands on queues: list their tasks, return dead letters, cancel, purge, pause and resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from ....errors import LodeqError, TaskNotFoundError
from ....repository.api.engine import Engine
from ....repository.api.queue import Queue
from ....repository.model.values import ALL_TENANTS, Task
from ..connection import confirm, reading, run, store_argument, writing
from ..display import (
    as_json_option,
    print_json,
    print_line,
    print_rows,
    print_tasks,
    queue_json,
    queue_row,
)
from ..output import Column, shown

__all__ = [
    "QUEUES",
    "cancel",
    "dead",
    "ls",
    "pause",
    "peek",
    "purge",
    "redrive",
    "resume",
    "retry",
]

F = TypeVar("F", bound=Callable[..., Any])
_NOT_ALL: Final = 1
_LIVE: Final = ("ready", "delayed", "leased", "dead")
_ENDED: Final = ("completed", "expired", "cancelled")
_PAGE: Final = 1000
QUEUES: Final = (
    Column("queue", 5, 40),
    Column("tenant", 6, 40),
    *(Column(name, 7, 15, is_number=True) for name in (*_LIVE, "results", "oldest")),
    Column("", 6, 6),
)


def _whose(command: F) -> F:
    every = click.option(
        "--all-tenants", is_flag=True, help="The queues of this name of all tenants."
    )
    tenant = click.option("--tenant", default="", help="Tenant of the queue; none by default.")
    return tenant(every(command))


def _limit(default: int) -> Callable[[F], F]:
    kind = click.IntRange(min=1)
    return click.option("--limit", "-n", type=kind, default=default, show_default=True)


yes_option: Final = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")


def _queue(engine: Engine, name: str, tenant: str, all_tenants: bool) -> Queue:
    return engine.queue(name, tenant=ALL_TENANTS if all_tenants else tenant)


async def _tasks(queue: Queue, states: Sequence[str], limit: int) -> list[Task]:
    """The first tasks in these states, read page by page: one call lists a limited number."""
    found: list[Task] = []
    for state in states:
        last: Task | None = None
        while limit > len(found):
            page = await queue.list(state, limit=min(_PAGE, limit - len(found)), after=last)
            found += page
            if not page:
                break
            last = page[-1]
    return found


@click.command()
@store_argument
@click.argument("queue", required=False)
@_whose
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([*_LIVE, *_ENDED]),
    help="Only tasks in this state; may be repeated. Default: ready, delayed, leased and dead.",
)
@_limit(100)
@as_json_option
def ls(
    store: str,
    queue: str | None,
    tenant: str,
    all_tenants: bool,
    states: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List queues, or the tasks of one.

    Args:
        store: a store's folder, or the address of a service.
        queue: list the tasks of this queue; None: list all queues.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        states: which tasks; empty: ready, delayed, leased and dead.
        limit: list at most this many tasks.
        as_json: print JSON lines instead of a table.
    """

    async def look() -> tuple[dict[Any, Any], list[Task]]:
        async with reading(store) as engine:
            if queue is None:
                return await engine.queues(), []
            target = _queue(engine, queue, tenant, all_tenants)
            return {}, await _tasks(target, states or _LIVE, limit)

    queues, tasks = run(look)
    if queue is not None:
        print_tasks(tasks, as_json=as_json)
    elif as_json:
        print_json(queue_json(key, stats) for key, stats in queues.items())
    else:
        print_rows(QUEUES, (queue_row(key, stats) for key, stats in queues.items()))


@click.command()
@store_argument
@click.argument("queue")
@_whose
@_limit(10)
@as_json_option
def peek(store: str, queue: str, tenant: str, all_tenants: bool, limit: int, as_json: bool) -> None:
    """List the next tasks that claims would get, in that order, without claiming them.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        limit: list at most this many tasks.
        as_json: print JSON lines instead of a table.
    """
    _list(store, queue, tenant, all_tenants, "ready", limit, as_json)


@click.command()
@store_argument
@click.argument("queue")
@_whose
@_limit(100)
@as_json_option
def dead(store: str, queue: str, tenant: str, all_tenants: bool, limit: int, as_json: bool) -> None:
    """List dead letters, oldest first, with their reasons.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        limit: list at most this many tasks.
        as_json: print JSON lines instead of a table.
    """
    _list(store, queue, tenant, all_tenants, "dead", limit, as_json)


def _list(
    store: str, queue: str, tenant: str, all_tenants: bool, state: str, limit: int, as_json: bool
) -> None:
    async def look() -> list[Task]:
        async with reading(store) as engine:
            return await _tasks(_queue(engine, queue, tenant, all_tenants), [state], limit)

    print_tasks(run(look), as_json=as_json)


# -- acting ----------------------------------------------------------------------------


@click.command()
@store_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@as_json_option
def retry(store: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Return dead letters to their queues, with a fresh set of attempts.

    Exit code 1: some could not be returned.
    """

    async def one(engine: Engine, task_id: str) -> str:
        task = await engine.get(task_id)
        if task is None:
            raise TaskNotFoundError(f"no task {task_id}: it never existed, or is forgotten")
        await engine.queue(task.queue, tenant=task.tenant).redrive([task.id])
        return f"{task.id}: ready again in {task.queue}"

    _each(store, ids, one, "retried" if as_json else None)


@click.command()
@store_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@yes_option
@as_json_option
def cancel(store: str, ids: tuple[str, ...], is_sure: bool, as_json: bool) -> None:
    """Cancel tasks that are ready, delayed or leased.

    Exit code 1: some could not be cancelled.

    Args:
        store: a store's folder, or the address of a service.
        ids: of the tasks, of any queues.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    confirm(f"Cancel {len(ids)} tasks? They will not run.", is_sure=is_sure)

    async def one(engine: Engine, task_id: str) -> str:
        if not await engine.cancel(task_id):
            raise TaskNotFoundError(f"{task_id}: no such task, or it has ended, or is dead")
        return f"{task_id}: cancelled"

    _each(store, ids, one, "cancelled" if as_json else None)


def _each(
    store: str, ids: Sequence[str], act: Callable[[Engine, str], Any], key: str | None
) -> None:
    """Act on every id. Failures go to stderr, and make the exit code 1.

    ``key``: print JSON instead, with the outcome under that name.
    """

    async def all_of_them() -> int:
        failures = 0
        async with writing(store) as engine:
            for task_id in ids:
                error = None
                try:
                    message = await act(engine, task_id)
                except LodeqError as exc:
                    failures += 1
                    message, error = f"error: {shown(str(exc))}", str(exc)
                if key is None and error is None:
                    print_line(message)
                elif key is None:
                    click.echo(message, err=True)
                else:
                    why = {} if error is None else {"error": error}
                    print_json([{"id": task_id, key: error is None, **why}])
        return failures

    if run(all_of_them):
        raise click.exceptions.Exit(_NOT_ALL)


@click.command()
@store_argument
@click.argument("queue")
@_whose
@as_json_option
def redrive(store: str, queue: str, tenant: str, all_tenants: bool, as_json: bool) -> None:
    """Return all dead letters of a queue, with a fresh set of attempts.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        as_json: print JSON lines instead of a table.
    """
    _count(store, queue, tenant, all_tenants, as_json, "redriven", lambda target: target.redrive())


@click.command()
@store_argument
@click.argument("queue")
@_whose
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "dead"]),
    help="Only tasks in this state; default: all three.",
)
@yes_option
@as_json_option
def purge(
    store: str,
    queue: str,
    tenant: str,
    all_tenants: bool,
    state: str | None,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Delete the tasks of a queue that are ready, delayed or dead. Leased ones stay.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        state: delete only those in this state; None: all three.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    confirm(f"Delete all {state or 'ready, delayed and dead'} tasks of {queue}?", is_sure=is_sure)
    _count(store, queue, tenant, all_tenants, as_json, "purged", lambda target: target.purge(state))


@click.command()
@store_argument
@click.argument("queue")
@_whose
@as_json_option
def pause(store: str, queue: str, tenant: str, all_tenants: bool, as_json: bool) -> None:
    """Hand out no tasks of a queue until 'resume', restarts included. Enqueues go on.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        as_json: print JSON lines instead of a table.
    """
    _count(store, queue, tenant, all_tenants, as_json, "paused", lambda target: target.pause())


@click.command()
@store_argument
@click.argument("queue")
@_whose
@as_json_option
def resume(store: str, queue: str, tenant: str, all_tenants: bool, as_json: bool) -> None:
    """Undo 'pause'; waiting claims are served at once.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        as_json: print JSON lines instead of a table.
    """
    _count(store, queue, tenant, all_tenants, as_json, "resumed", lambda target: target.resume())


def _count(
    store: str,
    queue: str,
    tenant: str,
    all_tenants: bool,
    as_json: bool,
    what: str,
    act: Callable[[Queue], Any],
) -> None:
    async def do() -> int | None:
        async with writing(store) as engine:
            done: int | None = await act(_queue(engine, queue, tenant, all_tenants))
            return done

    count = run(do)
    if as_json:
        print_json([{"queue": queue, what: True if count is None else count}])
    else:
        print_line(f"{queue} {what}" if count is None else f"{count:,} tasks {what}")
