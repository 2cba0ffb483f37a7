"""``ls``, ``peek``, ``dead`` look into queues; ``retry`` to ``resume`` act on what is there."""

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
    every = click.option("--all-tenants", is_flag=True, help="Of all tenants.")
    tenant = click.option("--tenant", default="", help="Whose queue; none by default.")
    return tenant(every(command))


def _limit(default: int) -> Callable[[F], F]:
    kind = click.IntRange(min=1)
    return click.option("--limit", "-n", type=kind, default=default, show_default=True)


yes_option: Final = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")


def _queue(engine: Engine, name: str, tenant: str, all_tenants: bool) -> Queue:
    return engine.queue(name, tenant=ALL_TENANTS if all_tenants else tenant)


async def _tasks(queue: Queue, states: Sequence[str], limit: int) -> list[Task]:
    """Page by page: one call lists at most so many."""
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
    help="Once or more; else ready, delayed, leased and dead.",
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
    """List queues, or the tasks of one."""

    async def look() -> tuple[dict[Any, Any], list[Task]]:
        async with reading(store) as engine:
            if queue is None:
                return await engine.queues(), []
            place = _queue(engine, queue, tenant, all_tenants)
            return {}, await _tasks(place, states or _LIVE, limit)

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
    """The next tasks a claim would get, in that order; nobody gets them by it."""
    _list(store, queue, tenant, all_tenants, "ready", limit, as_json)


@click.command()
@store_argument
@click.argument("queue")
@_whose
@_limit(100)
@as_json_option
def dead(store: str, queue: str, tenant: str, all_tenants: bool, limit: int, as_json: bool) -> None:
    """Dead letters, oldest first, with their reasons."""
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
    """Put dead letters back to their queue, with a fresh set of attempts. Exit code 1: not all."""

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
    """End tasks that are ready, delayed or leased. Exit code 1: not all could be."""
    confirm(f"Cancel {len(ids)} tasks? They are not run.", is_sure=is_sure)

    async def one(engine: Engine, task_id: str) -> str:
        if not await engine.cancel(task_id):
            raise TaskNotFoundError(f"{task_id}: there is no such task, or it is over, or dead")
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
    """Put all dead letters of a queue back, with a fresh set of attempts."""
    _count(store, queue, tenant, all_tenants, as_json, "redriven", lambda place: place.redrive())


@click.command()
@store_argument
@click.argument("queue")
@_whose
@click.option("--state", type=click.Choice(["ready", "delayed", "dead"]), help="Else all three.")
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
    """Delete the tasks of a queue that are ready, delayed or dead. Leased ones stay."""
    confirm(f"Delete all {state or 'ready, delayed and dead'} tasks of {queue}?", is_sure=is_sure)
    _count(store, queue, tenant, all_tenants, as_json, "purged", lambda place: place.purge(state))


@click.command()
@store_argument
@click.argument("queue")
@_whose
@as_json_option
def pause(store: str, queue: str, tenant: str, all_tenants: bool, as_json: bool) -> None:
    """Claims of a queue get nothing until 'resume', restarts included. Enqueues go on."""
    _count(store, queue, tenant, all_tenants, as_json, "paused", lambda place: place.pause())


@click.command()
@store_argument
@click.argument("queue")
@_whose
@as_json_option
def resume(store: str, queue: str, tenant: str, all_tenants: bool, as_json: bool) -> None:
    """Undo 'pause'; waiting claims are served at once."""
    _count(store, queue, tenant, all_tenants, as_json, "resumed", lambda place: place.resume())


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
