"""Commands on queues: list their tasks, return dead letters, cancel and purge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from ....errors import LodeqError, TaskNotFoundError
from ....repository.api.engine import Engine
from ....repository.api.queue import Queue
from ....repository.model.values import (
    ALL_TENANTS,
    REDRIVE_POLICIES,
    QueueStats,
    RedrivePolicy,
    Task,
)
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
from ..missing_queue import refuse_misspelt_queue
from ..other_tenants import NOBODY, LeftOut, left_out, note_left_out
from ..output import Column, shown
from ..values import StateChoice

__all__ = [
    "QUEUES",
    "cancel",
    "cancel_all",
    "dead",
    "discard",
    "ls",
    "peek",
    "purge",
    "queue_of",
    "redrive",
    "retry",
    "tenant_options",
    "yes_option",
]

F = TypeVar("F", bound=Callable[..., Any])


class _Act(NamedTuple):
    """What is done to the tasks of a queue, in words, and the states in which it finds them."""

    do: Callable[[Queue], Any]
    done: str  # "purged"
    does: str  # "purges"
    states: Sequence[str]
    how: str = ""  # those that are left out stay


_NOT_ALL: Final = 1
_LIVE: Final = ("ready", "delayed", "waiting", "leased", "dead")
_ENDED: Final = ("completed", "expired", "cancelled")
_PAGE: Final = 1000
QUEUES: Final = (
    Column("queue", 5, 40),
    Column("tenant", 6, 40),
    *(Column(name, 7, 15, is_number=True) for name in (*_LIVE, "results", "oldest")),
    Column("", 6, 20),
)


def tenant_options(command: F) -> F:
    """Add the options that say whose queue is meant."""
    every = click.option(
        "--all-tenants", is_flag=True, help="The queues of this name of all tenants."
    )
    tenant = click.option("--tenant", default="", help="Tenant of the queue; none by default.")
    return tenant(every(command))


def _limit(default: int) -> Callable[[F], F]:
    kind = click.IntRange(min=1)
    return click.option("--limit", "-n", type=kind, default=default, show_default=True)


yes_option: Final = click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")


def queue_of(engine: Engine, name: str, tenant: str, all_tenants: bool) -> Queue:
    """The queue that these options mean.

    Args:
        engine: the store.
        name: of the queue.
        tenant: whose; "" for none.
        all_tenants: the queues of this name of all tenants.
    """
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
@tenant_options
@click.option(
    "--state",
    "states",
    multiple=True,
    type=StateChoice([*_LIVE, *_ENDED]),
    help="Only tasks in this state; may be repeated. Default: all that have not ended, and dead.",
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
        states: which tasks; empty: all that have not ended, and dead.
        limit: list at most this many tasks.
        as_json: print JSON lines instead of a table.
    """

    async def look() -> tuple[dict[Any, Any], list[Task]]:
        async with reading(store) as engine:
            if queue is None:
                found = await engine.queues()
                if not found:
                    click.echo("no tasks", err=True)
                return found, []
            target = queue_of(engine, queue, tenant, all_tenants)
            tasks = await _tasks(target, states or _LIVE, limit + 1)
            what = [state for state in states or _LIVE if state in _LIVE]
            await _note_rest(engine, queue, tenant, all_tenants, what, is_empty=not tasks)
            return {}, tasks

    queues, tasks = run(look)
    if queue is not None:
        _print_some(tasks, limit, as_json)
    elif as_json:
        print_json(queue_json(key, stats) for key, stats in queues.items())
    else:
        print_rows(QUEUES, (queue_row(key, stats) for key, stats in queues.items()))


@click.command()
@store_argument
@click.argument("queue")
@tenant_options
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
@tenant_options
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
            target = queue_of(engine, queue, tenant, all_tenants)
            found = await _tasks(target, [state], limit + 1)
            await _note_rest(engine, queue, tenant, all_tenants, [state], is_empty=not found)
            return found

    _print_some(run(look), limit, as_json)


async def _note_rest(
    engine: Engine,
    queue: str,
    tenant: str,
    all_tenants: bool,
    states: Sequence[str],
    *,
    is_empty: bool,
) -> None:
    """Note a queue that is not there, or else tenants whose tasks a list leaves out."""
    if is_empty and await refuse_misspelt_queue(engine, queue, tenant, is_all=all_tenants):
        return
    if is_empty:
        click.echo("no tasks", err=True)
    others = await left_out(engine, queue, tenant, _counted(states), is_all=all_tenants)
    words = {"dead": "dead letters", "ready": "ready tasks"}
    note_left_out(others, words.get(states[0], "tasks") if len(states) == 1 else "tasks")


def _counted(states: Sequence[str]) -> Callable[[QueueStats], int]:
    return lambda stats: sum(getattr(stats, state) for state in states)


def _print_some(found: list[Task], limit: int, as_json: bool) -> None:
    print_tasks(found[:limit], as_json=as_json)
    if len(found) > limit:
        click.echo(f"there are more than {limit:,}: give --limit", err=True)


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
def discard(store: str, ids: tuple[str, ...], is_sure: bool, as_json: bool) -> None:
    """Delete dead letters, one by one.

    Exit code 1: some could not be deleted.

    Args:
        store: a store's folder, or the address of a service.
        ids: of the dead letters, of any queues.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    confirm(f"Delete {len(ids)} dead letters?", is_sure=is_sure)

    async def one(engine: Engine, task_id: str) -> str:
        if not await engine.discard(task_id):
            raise TaskNotFoundError(f"{task_id}: no such task, or it is not dead")
        return f"{task_id}: deleted"

    _each(store, ids, one, "deleted" if as_json else None)


@click.command()
@store_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@yes_option
@as_json_option
def cancel(store: str, ids: tuple[str, ...], is_sure: bool, as_json: bool) -> None:
    """Cancel tasks that are ready, delayed, waiting or leased.

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
    """Act on every id, whoever reads of it. Failures go to stderr, and make the exit code 1.

    ``key``: print JSON instead, with the outcome under that name.
    """
    not_shown: OSError | None = None

    def say(task_id: str, message: str, error: str | None) -> None:
        nonlocal not_shown
        try:
            if key is None and error is None:
                print_line(message)
            elif key is None:
                click.echo(message, err=True)
            else:
                why = {} if error is None else {"error": error}
                print_json([{"id": task_id, key: error is None, **why}])
        except OSError as exc:  # the others are meant all the same
            not_shown = exc

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
                say(task_id, message, error)
        return failures

    failures = run(all_of_them)
    if not_shown is not None:
        raise not_shown
    if failures:
        raise click.exceptions.Exit(_NOT_ALL)


@click.command()
@store_argument
@click.argument("queue")
@tenant_options
@click.option(
    "--policy",
    type=click.Choice(REDRIVE_POLICIES),
    default="stored",
    show_default=True,
    help="That of each task, or the current one of its function.",
)
@as_json_option
def redrive(
    store: str,
    queue: str,
    tenant: str,
    all_tenants: bool,
    policy: RedrivePolicy,
    as_json: bool,
) -> None:
    """Return all dead letters of a queue, with a fresh set of attempts.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        policy: ``stored`` with each task, or ``current``, as its function was last published.
        as_json: print JSON lines instead of a table.
    """

    def do(target: Queue) -> Awaitable[int]:
        return target.redrive(policy=policy)

    act = _Act(do, "redriven", "redrives", ["dead"], " dead")
    _count(store, queue, tenant, all_tenants, as_json, act)


@click.command()
@store_argument
@click.argument("queue")
@tenant_options
@click.option(
    "--state",
    type=StateChoice(["ready", "delayed", "waiting", "dead"]),
    help="Only tasks in this state; default: all four.",
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
    """Delete the tasks of a queue that are ready, delayed, waiting or dead. Leased ones stay.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        state: delete only those in this state; None: all four.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    confirm(
        f"Delete all {state or 'ready, delayed, waiting and dead'} tasks of {queue}?",
        is_sure=is_sure,
    )
    states = [state] if state else [one for one in _LIVE if one != "leased"]
    act = _Act(lambda target: target.purge(state), "purged", "purges", states)
    _count(store, queue, tenant, all_tenants, as_json, act)


@click.command(name="cancel-all")
@store_argument
@click.argument("queue")
@tenant_options
@click.option("--keep-leased", is_flag=True, help="Let tasks that run now end by themselves.")
@yes_option
@as_json_option
def cancel_all(
    store: str,
    queue: str,
    tenant: str,
    all_tenants: bool,
    keep_leased: bool,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Cancel the tasks of a queue that have not ended: ready, delayed, waiting, leased.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: the queues of this name of all tenants.
        keep_leased: leave leased tasks alone.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    which = "ready, delayed and waiting" + ("" if keep_leased else ", leased")
    confirm(f"Cancel all {which} tasks of {queue}? They will not run.", is_sure=is_sure)

    def do(target: Queue) -> Awaitable[int]:
        return target.cancel_all(leased=not keep_leased)

    states = [one for one in _LIVE if one != "dead" and not (keep_leased and one == "leased")]
    act = _Act(do, "cancelled", "cancels", states)
    _count(store, queue, tenant, all_tenants, as_json, act)


def _count(
    store: str,
    queue: str,
    tenant: str,
    all_tenants: bool,
    as_json: bool,
    act: _Act,
) -> None:
    async def do() -> tuple[int, LeftOut]:
        async with writing(store) as engine:
            # Asked first: what is done is reported, whatever becomes of the connection.
            others = await left_out(engine, queue, tenant, _counted(act.states), is_all=all_tenants)
            try:
                done: int = await act.do(queue_of(engine, queue, tenant, all_tenants))
            except LodeqError as error:
                if as_json and error.done:
                    print_json([{"queue": queue, act.done: error.done}])
                raise
            if done == 0 and others == NOBODY:
                await refuse_misspelt_queue(engine, queue, tenant, is_all=all_tenants)
            return done, others

    count, others = run(do)
    if as_json:
        print_json([{"queue": queue, act.done: count, **others.json}])
        return
    rest = ""
    if others.tenants:
        stay = f"{'stays' if others.tasks == 1 else 'stay'}{act.how}"
        them = "it" if others.tasks == 1 else "them"
        rest = f"; {others.tasks:,} of {others} {stay} (--all-tenants {act.does} {them})"
    print_line(f"{count:,} tasks {act.done}{rest}")
