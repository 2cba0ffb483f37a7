"""``enqueue``, ``claim`` and ``show``: add, take and look up tasks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

import click

from ....engine.records.task import ATTEMPTS_MAX
from ....errors import TaskNotFoundError
from ....repository.model.arguments import LIMIT_MAX
from ....repository.model.task_options import PRIORITY_DEFAULT, PRIORITY_MAX
from ....repository.model.values import ALL_TENANTS, CONFLICTS, NewTask, OnConflict, Receipt
from ....repository.tasks.lease import Lease
from ..connection import reading, run, store_argument, writing
from ..display import (
    OutputError,
    as_json_option,
    brief,
    flush,
    json_text,
    print_json,
    print_line,
    result_json,
    task_json,
    value_json,
)
from ..enqueue_lines import enqueue_lines, stdin_lines
from ..output import shown
from ..values import Grant, duration, grant_text, headers_of, payload_of

__all__ = ["claim", "enqueue", "show"]

F = TypeVar("F", bound=Callable[..., Any])
_NOTHING: Final = 1
_NOT_ALL: Final = 1

tenant_option: Final = click.option(
    "--tenant", default="", help="Tenant of the queue; none by default."
)


def _enqueue_options(command: F) -> F:
    for option in (
        click.option(
            "--priority",
            type=click.IntRange(0, PRIORITY_MAX),
            default=PRIORITY_DEFAULT,
            show_default=True,
        ),
        click.option(
            "--delay", type=duration, help="Time until it can be claimed: 90, 1.5s, 5m, 2h, 7d."
        ),
        click.option(
            "--ttl",
            type=duration,
            help="Time after which the task expires, unless it is leased by then.",
        ),
        click.option(
            "--dedup-key", help="At most one task has this key, as long as that task is not over."
        ),
        click.option(
            "--dedup-window",
            type=duration,
            help="Keep the key for this long from now, also when the task is over.",
        ),
        click.option(
            "--on-conflict",
            type=click.Choice(CONFLICTS),
            default="return",
            show_default=True,
            help="What to do if another task has the key.",
        ),
        click.option("--header", "headers", multiple=True, metavar="NAME=VALUE"),
        click.option("--max-attempts", type=click.IntRange(1, ATTEMPTS_MAX)),
    ):
        command = option(command)
    return command


@click.command()
@store_argument
@click.argument("queue")
@click.argument("payload", required=False)
@tenant_option
@_enqueue_options
@click.option("--parse", is_flag=True, help="PAYLOAD is JSON: keep the value, not its text.")
@click.option("--lines", is_flag=True, help="Each line of stdin is a task.")
@click.option("--durable", is_flag=True, help="Wait until the task survives a power cut.")
@as_json_option
def enqueue(
    store: str,
    queue: str,
    payload: str | None,
    tenant: str,
    parse: bool,
    lines: bool,
    durable: bool,
    as_json: bool,
    headers: tuple[str, ...],
    **options: Any,
) -> None:
    """Add a task, and print its id. PAYLOAD is text; '-', or none, reads stdin.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        payload: text; None or ``-``: read stdin.
        tenant: whose queue; "" for none.
        parse: the payload is JSON: keep the value, not its text.
        lines: each line of stdin is a task.
        durable: wait for an fsync.
        as_json: print JSON lines instead of a table.
        headers: texts ``NAME=VALUE``.
        options: other fields of ``NewTask``; durations in seconds.
    """
    if lines and payload not in (None, "-"):
        raise click.UsageError("--lines reads stdin: leave PAYLOAD out")
    options["headers"] = headers_of(headers)
    options["on_conflict"] = cast("OnConflict", options["on_conflict"])
    is_durable = durable or None
    report = partial(_print_receipts, as_json=as_json)
    found = stdin_lines(parse=parse) if lines else None
    tasks = [] if lines else [NewTask(payload_of(payload, is_json=parse), **options)]

    async def add() -> None:
        async with writing(store) as engine:
            target = engine.queue(queue, tenant=tenant)
            if found is not None:
                await enqueue_lines(target, found, options, durable=is_durable, report=report)
            else:
                _report_one(await target.enqueue_many(tasks, durable=is_durable), report)

    run(add)


def _report_one(receipts: list[Receipt], report: Callable[[list[Receipt]], None]) -> None:
    try:
        report(receipts)
        flush()
    except OutputError as exc:  # a caller that sees only the failure would enqueue it again
        why = f"its id could not be written ({exc.strerror}): {receipts[0].id}"
        click.echo(f"error: the task was enqueued, but {why}", err=True)
        raise click.exceptions.Exit(_NOT_ALL) from exc


def _print_receipts(receipts: list[Receipt], *, as_json: bool) -> None:
    for receipt in receipts:
        if as_json:
            value = {
                "id": str(receipt.id),
                "duplicate": receipt.duplicate,
                "replaced": None if receipt.replaced is None else str(receipt.replaced),
            }
            print_json([value])
        else:
            print_line(f"{receipt.id}{' (already there)' if receipt.duplicate else ''}")


@click.command()
@store_argument
@click.argument("queue")
@tenant_option
@click.option("--all-tenants", is_flag=True, help="Tenants in fair turns.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=1, show_default=True)
@click.option(
    "--lease", type=duration, default="5m", show_default=True, help="How long to keep it."
)
@click.option(
    "--wait", type=duration, default=0, show_default=True, help="Time to wait for the first task."
)
@click.option("--worker", default="", help="A name, kept with the lease and the result.")
@as_json_option
def claim(
    store: str,
    queue: str,
    tenant: str,
    all_tenants: bool,
    limit: int,
    lease: float,
    wait: float,
    worker: str,
    as_json: bool,
) -> None:
    """Take tasks under leases, and print lease and payload. Exit code 1: there were none.

    A lease outlives this command, and the store may be closed and opened meanwhile. Give it to
    'complete', 'nack' or 'release' before it expires.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        tenant: whose queue; "" for none.
        all_tenants: claim for all tenants, in fair turns.
        limit: at most this many tasks, 1 to 4096.
        lease: seconds.
        wait: seconds to wait for the first task.
        worker: a name, kept with the lease and the result.
        as_json: print JSON lines instead of a table.
    """

    async def take() -> bool:
        async with writing(store) as engine:
            target = engine.queue(queue, tenant=ALL_TENANTS if all_tenants else tenant)
            leases = await target.claim(
                limit=limit, lease=lease, wait=wait, worker=worker, exported=True
            )
            await _hand_out(leases, as_json)
            return bool(leases)

    if not run(take):
        raise click.exceptions.Exit(_NOTHING)


async def _hand_out(leases: list[Lease], as_json: bool) -> None:
    """Print each lease. Release those that cannot be printed: nobody else could end them."""
    for n, lease in enumerate(leases):
        try:
            _print_lease(lease, as_json)
            flush()
        except OSError as exc:
            for unseen in leases[n:]:
                await unseen.release()
            rest = f"{len(leases) - n:,} of {len(leases):,} leases"
            click.echo(f"{rest} could not be printed and are released", err=True)
            if isinstance(exc, BrokenPipeError):
                raise
            raise click.exceptions.Exit(_NOT_ALL) from exc


def _print_lease(lease: Lease, as_json: bool) -> None:
    text = grant_text(Grant(lease.task_id, lease.epoch, lease.token))
    if not as_json:
        print_line(f"{text}  attempt {lease.attempt}  {brief(lease.payload)}")
        return
    document = {
        "lease": text,
        "id": str(lease.task_id),
        "queue": lease.queue,
        "tenant": lease.tenant,
        "attempt": lease.attempt,
        "priority": lease.priority,
        "deadline": lease.deadline,
        "headers": dict(lease.headers),
        **value_json("payload", lease.payload),
    }
    print_json([document])


@click.command()
@store_argument
@click.argument("id")
@as_json_option
def show(store: str, id: str, as_json: bool) -> None:
    """Show all that is known of a task: state, times, payload and result."""

    async def look() -> tuple[dict[str, Any], dict[str, Any] | None]:
        async with reading(store) as engine:
            task = await engine.get(id)
            if task is None:
                raise TaskNotFoundError(f"no task {id}: it never existed, or is forgotten")
            try:
                result = await engine.result(task.id)
            except TaskNotFoundError:
                result = None  # it was not kept
            return task_json(task), None if result is None else result_json(result)

    document, result = run(look)
    if as_json:
        print_json([{**document, "result": result}])
        return
    _print_fields(document)
    if result is not None:
        click.echo("result")
        known = {name for name, value in document.items() if value == result.get(name)}
        _print_fields({name: value for name, value in result.items() if name not in known}, "  ")


def _print_fields(document: dict[str, Any], indent: str = "") -> None:
    for name, value in document.items():
        if value not in (None, "", {}):
            if name.endswith("_base64"):
                name, value = name.removesuffix("_base64"), brief(base64.b64decode(value))
            text = shown(value) if isinstance(value, str) else json_text(value).strip('"')
            click.echo(f"{indent}{name:<15}{text}")
