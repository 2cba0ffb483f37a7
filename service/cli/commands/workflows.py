"""``lodeq workflow``: list workflows, show one, cancel it, redrive its dead members."""

from __future__ import annotations

from typing import Any, Final

import click

from ....errors import TaskNotFoundError
from ....repository.api.engine import Engine
from ....repository.model.flows.workflows import WORKFLOW_STATES, WorkflowGraph, WorkflowInfo
from ....repository.model.values import Part, Result
from ..connection import confirm, reading, run, store_argument, writing
from ..display import (
    as_json_option,
    brief,
    print_json,
    print_line,
    print_rows,
    reason_text,
    result_json,
)
from ..output import Column, shown
from .queues import yes_option

__all__ = ["cancel", "ls", "redrive", "show", "workflow"]

_COLUMNS: Final = (
    Column("number", 6, 8, is_number=True),
    Column("id", 36, 36),
    Column("status", 9, 9),
    Column("error", 5, 80),
)
_LIST: Final = (
    Column("id", 36, 36),
    Column("state", 9, 9),
    *(Column(name, 7, 8, is_number=True) for name in ("members", "ended", "failed")),
    Column("callback", 9, 9),
    Column("created", 20, 20),
    Column("name", 4, 60),
)
_PAGE: Final = 256


@click.group()
def workflow() -> None:
    """List, show, cancel and redrive workflows."""


@workflow.command()
@store_argument
@click.option("--state", type=click.Choice(WORKFLOW_STATES), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@as_json_option
def ls(store: str, state: str | None, limit: int, as_json: bool) -> None:
    """List workflows, the newest first. One is known until a week after it is over.

    Args:
        store: a store's folder, or the address of a service.
        state: only those in this state.
        limit: list at most this many.
        as_json: print JSON lines instead of a table.
    """

    async def look() -> list[WorkflowInfo]:
        found: list[WorkflowInfo] = []
        cursor: str | None = None
        async with reading(store) as engine:
            while len(found) < limit:
                n = min(_PAGE, limit - len(found))
                page = await engine.workflows(state=state, limit=n, cursor=cursor)
                found += page
                cursor = page.cursor
                if cursor is None:
                    break
        return found

    found = run(look)
    if as_json:
        print_json(map(_json, found))
    else:
        print_rows(_LIST, map(_list_row, found))


def _list_row(info: WorkflowInfo) -> dict[str, str]:
    return {
        "id": str(info.id),
        "state": info.state,
        "members": f"{info.members:,}",
        "ended": f"{info.ended:,}",
        "failed": f"{info.failed:,}",
        "callback": "" if info.callback is None else info.callback_state or "forgotten",
        "created": f"{info.created_at:%Y-%m-%dT%H:%M:%SZ}",
        "name": shown(info.name),
    }


@workflow.command()
@store_argument
@click.argument("id")
@click.option("--failed", is_flag=True, help="Only members that have ended and did not complete.")
@click.option("--limit", type=click.IntRange(0, 1024), default=20, help="Members at most.")
@as_json_option
def show(store: str, id: str, failed: bool, limit: int, as_json: bool) -> None:
    """Show a workflow in numbers, by function, and its first members.

    Args:
        store: a store's folder, or the address of a service.
        id: of the workflow, of a task of one, or of the task that opened it.
        failed: only members that did not complete.
        limit: members at most.
        as_json: print JSON lines instead of a table.
    """

    async def look() -> tuple[WorkflowGraph, list[Part], Result | None]:
        async with reading(store) as engine:
            graph = await engine.workflow_graph(id)
            end = await _end_of(engine, graph.info)
            if not limit:
                return graph, [], end
            page = await engine.parts_page(graph.info.id, limit=limit, failed=failed)
            return graph, page, end

    graph, parts, end = run(look)
    info = graph.info
    if as_json:
        result = None if end is None else result_json(end)
        print_json([{**_json(info), "callback_result": result}, *map(_part_json, parts)])
        return
    named = f" {shown(info.name)}" if info.name else ""
    print_line(f"{info.id}{named}: {info.state}, on failure {info.on_failure}")
    again = f", redriven {info.generation} times" if info.generation else ""
    print_line(f"{info.ended} of {info.members} members ended, {info.failed} failed{again}")
    if info.callback is not None:
        said = "" if end is None else reason_text(end.error) or brief(end.value)
        state = f"{info.callback_state or 'forgotten'}{f': {said}' if said else ''}"
        print_line(f"callback {info.callback}: {state}")
    for group in graph.groups:
        states = ", ".join(f"{count:,} {state}" for state, count in group.states.items())
        print_line(f"  {shown(group.function) or '(no function)'} in {group.queue}: {states}")
    if graph.looked < info.members:
        print_line(f"  (of the first {graph.looked:,} members)")
    if parts:
        print_rows(_COLUMNS, map(_row, parts))


async def _end_of(engine: Engine, info: WorkflowInfo) -> Result | None:
    """How the callback ended; None: it has not, or its result is no longer kept."""
    if info.callback is None:
        return None
    try:
        return await engine.result(info.callback)
    except TaskNotFoundError:
        return None


def _row(part: Part) -> dict[str, str]:
    return {
        "number": str(part.number),
        "id": str(part.task_id),
        "status": part.status or "",
        "error": reason_text(part.error),
    }


def _json(info: WorkflowInfo) -> dict[str, Any]:
    joined = info.joined_at
    return {
        "id": str(info.id),
        "name": info.name,
        "state": info.state,
        "on_failure": info.on_failure,
        "generation": info.generation,
        "members": info.members,
        "ended": info.ended,
        "failed": info.failed,
        "callback": None if info.callback is None else str(info.callback),
        "callback_state": info.callback_state,
        "created_at": info.created_at.isoformat(),
        "joined_at": None if joined is None else joined.isoformat(),
    }


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "number": part.number,
        "id": str(part.task_id),
        "status": part.status,
        "error": part.error,
    }


@workflow.command()
@store_argument
@click.argument("id")
@yes_option
@as_json_option
def cancel(store: str, id: str, is_sure: bool, as_json: bool) -> None:
    """Cancel every task of a workflow that has not ended, its callback too.

    Args:
        store: a store's folder, or the address of a service.
        id: of the workflow.
        is_sure: do not ask first.
        as_json: print JSON lines instead of a table.
    """
    confirm(f"Cancel the workflow {shown(id)}? What has not ended will not run.", is_sure=is_sure)

    async def act() -> int:
        async with writing(store) as engine:
            return await engine.cancel_workflow(id)

    _print("cancelled", run(act), as_json)


@workflow.command()
@store_argument
@click.argument("id")
@as_json_option
def redrive(store: str, id: str, as_json: bool) -> None:
    """Redrive the dead members of a workflow, and have its callback wait for them.

    Args:
        store: a store's folder, or the address of a service.
        id: of the workflow.
        as_json: print JSON lines instead of a table.
    """

    async def act() -> int:
        async with writing(store) as engine:
            return await engine.redrive_workflow(id)

    _print("redriven", run(act), as_json)


def _print(what: str, count: int, as_json: bool) -> None:
    if as_json:
        print_json([{what: count}])
    else:
        print_line(f"{count} {what}")
