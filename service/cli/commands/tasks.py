"""``enqueue``, ``claim`` and ``show``: add, take and look up tasks."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar, cast

import click

from ....engine.records.task import ATTEMPTS_MAX
from ....engine.runtime.task_id import TaskId
from ....errors import AccessDeniedError, TaskNotFoundError, UsageError
from ....repository.api.engine import Engine
from ....repository.model.arguments import LIMIT_MAX
from ....repository.model.flows.workflows import ON_FAILURES
from ....repository.model.json_values import marked
from ....repository.model.task_options import PRIORITY_DEFAULT, PRIORITY_MAX
from ....repository.model.values import (
    ALL_TENANTS,
    CONFLICTS,
    Attempt,
    NewTask,
    OnConflict,
    Receipt,
    Result,
    StreamOptions,
)
from ....repository.tasks.lease import Lease
from ..connection import reading, run, store_argument, writing
from ..display import (
    as_json_option,
    attempt_json,
    brief,
    json_text,
    print_json,
    print_line,
    progress_text,
    reason_text,
    result_json,
    seconds_text,
    task_json,
)
from ..enqueue_lines import enqueue_lines, in_thread, stdin_lines
from ..function_calls import call_of, function_task, looks_like_json
from ..output import ClosedOutput, OutputError, flush, shown
from ..payload_input import file_slices, payload_or_slices, stdin_slices
from ..values import Grant, duration, grant_text, headers_of, payload_of
from .worker import load_app

__all__ = ["claim", "enqueue", "show"]

F = TypeVar("F", bound=Callable[..., Any])
_NOTHING: Final = 1
_NOT_ALL: Final = 1
_PART_OF_ID: Final = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]{3,34}")
_WITHOUT_PAYLOAD: Final = ("completed", "expired", "cancelled")

tenant_option: Final = click.option(
    "--tenant", default="", help="Tenant of the queue; none by default."
)


def _enqueue_options(command: F) -> F:
    for option in (
        click.option(
            "--priority",
            type=click.IntRange(0, PRIORITY_MAX),
            help=f"9 is claimed first. Default: the function's, or {PRIORITY_DEFAULT}.",
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
        click.option(
            "--after", multiple=True, metavar="ID", help="Wait for this task; may be repeated."
        ),
        click.option(
            "--on-failure",
            type=click.Choice(ON_FAILURES),
            default="run",
            show_default=True,
            help="What to do if one of --after does not complete.",
        ),
    ):
        command = option(command)
    return command


class _Enqueue(click.Command):
    """Says how arguments of a function are given to whoever writes them one after another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See ``click.Command``."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as exc:
            if "unexpected extra argument" not in exc.message:
                raise
            advice = "arguments of a function are given by name: --arg NAME=VALUE"
            raise click.UsageError(f"{exc.message}; {advice}", ctx) from exc


@click.command(cls=_Enqueue)
@store_argument
@click.argument("queue")
@click.argument("payload", required=False, metavar="[FUNCTION | PAYLOAD]")
@tenant_option
@_enqueue_options
@click.option("--function", metavar="NAME", help="Call this one; PAYLOAD is then as --args.")
@click.option("--arg", "pairs", multiple=True, metavar="NAME=VALUE", help="An argument.")
@click.option("--args", "arguments", metavar="JSON", help="Arguments by name; '-' reads stdin.")
@click.option("--app", "target", metavar="MODULE:APP", help="Take functions from this app.")
@click.option("--file", "path", metavar="FILE", help="The payload is what FILE holds.")
@click.option("--raw", is_flag=True, help="PAYLOAD is a payload, whatever functions there are.")
@click.option("--parse", is_flag=True, help="PAYLOAD is JSON: keep the value, not its text.")
@click.option("--lines", is_flag=True, help="Each line of stdin is a task.")
@click.option("--durable", is_flag=True, help="Wait until the task survives a power cut.")
@as_json_option
def enqueue(
    store: str,
    queue: str,
    payload: str | None,
    tenant: str,
    function: str | None,
    pairs: tuple[str, ...],
    arguments: str | None,
    target: str | None,
    path: str | None,
    raw: bool,
    parse: bool,
    lines: bool,
    durable: bool,
    as_json: bool,
    headers: tuple[str, ...],
    **options: Any,
) -> None:
    """Add a task, and print its id: a call of a FUNCTION of the queue, or a PAYLOAD.

    A queue whose workers have published functions takes calls of them, with their policy: 'lodeq
    enqueue STORE mail send --arg to=a@example.org'. Any other queue, and --raw, takes a payload:
    text; '-', or none, reads stdin, and --file a file. One above 3 MiB is streamed.

    Args:
        store: a store's folder, or the address of a service.
        queue: its name.
        payload: name of a function; or text; None or ``-``: read stdin.
        tenant: whose queue; "" for none.
        function: name of a function; the payload is its arguments then.
        pairs: arguments, texts ``NAME=VALUE``.
        arguments: a JSON object; ``-``: read stdin.
        target: ``MODULE:APP`` whose functions and codec to take.
        path: of a file that holds the payload.
        raw: it is a payload, whatever functions there are.
        parse: the payload is JSON: keep the value, not its text.
        lines: each line of stdin is a task.
        durable: wait for an fsync.
        as_json: print JSON lines instead of a table.
        headers: texts ``NAME=VALUE``.
        options: other fields of ``NewTask``; durations in seconds.
    """
    if function is not None:
        payload, arguments = _call_named(
            function, payload, arguments, has_pairs=bool(pairs), is_plain=raw or lines
        )
    if lines and payload not in (None, "-"):
        raise click.UsageError("--lines reads stdin: leave PAYLOAD out")
    if path is not None and (lines or parse or payload is not None or pairs or arguments or target):
        raise click.UsageError("--file is the payload, as bytes: give it alone")
    options["headers"] = headers_of(headers)
    options["on_conflict"] = cast("OnConflict", options["on_conflict"])
    is_durable = durable or None
    report = partial(_print_receipts, as_json=as_json)
    call = call_of(queue, payload, arguments, pairs, is_value=parse)
    if (raw or lines) and (call.is_by_name or target is not None):
        raise click.UsageError("--arg, --args and --app call a function: leave --raw, --lines out")
    app = None if target is None else load_app(target)
    priority = options["priority"]
    plain = {**options, "priority": PRIORITY_DEFAULT if priority is None else priority}
    found = stdin_lines(parse=parse) if lines else None
    given: list[Any] = []  # the payload, where no function can be meant: read before the store
    if path is not None:
        given.append(payload_or_slices(file_slices(path)))
    elif not lines and payload in (None, "-") and not parse and (raw or not call.is_by_name):
        given.append(payload_or_slices(stdin_slices()))
    elif not lines and (raw or (payload in (None, "-") and not call.is_by_name)):
        given.append(payload_of(payload, is_json=parse))

    async def add() -> None:
        async with writing(store) as engine:
            queue_of = engine.queue(queue, tenant=tenant, codec=None if app is None else app.codec)
            if found is not None:
                await enqueue_lines(queue_of, found, plain, durable=is_durable, report=report)
                return
            task = None
            if not raw:
                task = await function_task(engine, call, options, app)
            if task is None:
                if not raw and not parse and looks_like_json(payload):
                    click.echo("stored as text: --parse keeps the value", err=True)
                value = given[0] if given else payload_of(payload, is_json=parse)
                if isinstance(value, Iterator):
                    options_of = _stream_options(plain)
                    source = in_thread(value)
                    receipt = await queue_of.enqueue_stream(
                        source, durable=is_durable, **options_of
                    )
                    _report_one([receipt], report)
                    return
                task = NewTask(value, **plain)
            one = [task._replace(queue=None, tenant=None)]
            _report_one(await queue_of.enqueue_many(one, durable=is_durable), report)

    run(add)


def _stream_options(options: dict[str, Any]) -> StreamOptions:
    """The options of a payload that is streamed."""
    if options["after"]:
        raise UsageError("--after: a task with a payload above 3 MiB waits for no other task")
    return cast(
        "StreamOptions",
        {name: one for name, one in options.items() if name in StreamOptions.__annotations__},
    )


def _call_named(
    function: str, payload: str | None, arguments: str | None, *, has_pairs: bool, is_plain: bool
) -> tuple[str, str | None]:
    """Return what stands for FUNCTION and --args, where --function names the function.

    Args:
        function: its name.
        payload: beside it, if any.
        arguments: of ``--args``.
        has_pairs: ``--arg`` is given.
        is_plain: ``--raw`` or ``--lines`` is.
    """
    if is_plain:
        raise click.UsageError("--function calls a function: leave --raw, --lines out")
    if payload is not None and arguments is not None:
        raise click.UsageError("PAYLOAD beside --function is its arguments: leave --args out")
    text = payload if payload is not None else arguments
    return function, "{}" if text is None and not has_pairs else text


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
@click.option("--dead", is_flag=True, help="Take dead letters instead, the oldest first.")
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
    dead: bool,
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
        dead: take dead letters, of one tenant.
        as_json: print JSON lines instead of a table.
    """
    if isinstance(sys.stdout, ClosedOutput):
        raise UsageError("stdout is closed: nobody would see the leases, so none are taken")

    async def take() -> bool:
        async with writing(store) as engine:
            target = engine.queue(queue, tenant=ALL_TENANTS if all_tenants else tenant)
            leases = await target.claim(
                limit=limit, lease=lease, wait=wait, worker=worker, exported=True, dead=dead
            )
            await _hand_out(leases, as_json)
            return bool(leases)

    if not run(take):
        raise click.exceptions.Exit(_NOTHING)


async def _hand_out(leases: list[Lease], as_json: bool) -> None:
    """Print each lease. Release those that cannot be printed: nobody else could end them."""
    for n, lease in enumerate(leases):
        try:
            _print_lease(lease, await lease.read_payload(), as_json)
            flush()
        except Exception as exc:
            for unseen in leases[n:]:
                await unseen.release()
            rest = f"{len(leases) - n:,} of {len(leases):,} leases"
            click.echo(f"{rest} could not be printed and are released", err=True)
            if isinstance(exc, BrokenPipeError) or not isinstance(exc, OSError):
                raise
            raise click.exceptions.Exit(_NOT_ALL) from exc


def _print_lease(lease: Lease, payload: Any, as_json: bool) -> None:
    text = grant_text(Grant(lease.task_id, lease.epoch, lease.token))
    if not as_json:
        why = f"  {brief(lease.reason)}" if lease.dead_at is not None else ""
        print_line(f"{text}  attempt {lease.attempt}{why}  {brief(payload)}")
        return
    document = {
        "lease": text,
        "id": str(lease.task_id),
        "queue": lease.queue,
        "tenant": lease.tenant,
        "attempt": lease.attempt,
        "priority": lease.priority,
        "deadline": lease.deadline,
        **({"dead_at": lease.dead_at, "reason": lease.reason} if lease.dead_at else {}),
        **marked("headers", dict(lease.headers)),
        **marked("payload", payload),
    }
    print_json([document])


@click.command()
@store_argument
@click.argument("id")
@as_json_option
def show(store: str, id: str, as_json: bool) -> None:
    """Show all that is known of a task: state, times, payload, result and attempts."""

    async def look() -> tuple[
        dict[str, Any], dict[str, Any] | None, dict[str, Any] | None, list[dict[str, Any]]
    ]:
        async with reading(store) as engine:
            task = await engine.get(_whole_id(store, id))
            if task is None:
                raise TaskNotFoundError(await _absence(engine, store, id))
            kept = None
            try:
                result = await engine.result(task.id)
            except TaskNotFoundError:
                result, kept = None, await _history_of(engine, task.id)
            attempts = [attempt_json(one) for one in await _attempts_of(engine, task.id)]
            document = task_json(task)
            if not as_json:
                document["progress"] = progress_text(task)
            shown_result = None if result is None else result_json(result)
            return document, shown_result, None if kept is None else result_json(kept), attempts

    document, result, kept, attempts = run(look)
    if as_json:
        extra = {} if kept is None else {"history": kept}
        print_json([{**document, "result": result, **extra, "attempts_made": attempts}])
        return
    if document["state"] in _WITHOUT_PAYLOAD:
        document["payload"] = "no longer stored, headers neither"
    _print_fields(document)
    ended = result or kept
    if ended is not None:
        click.echo("result" if result is not None else "history (the result is no longer kept)")
        known = {name for name, value in document.items() if value == ended.get(name)}
        _print_fields({name: value for name, value in ended.items() if name not in known}, "  ")
    if attempts:
        click.echo("attempts")
        last = 0
        for one in attempts:
            if one["number"] <= last:
                click.echo("  redriven, counted anew")
            print_line(f"  {_attempt_line(one)}")
            last = one["number"]


def _whole_id(store: str, id: str) -> TaskId:
    try:
        return TaskId(id)
    except UsageError as exc:
        if not _PART_OF_ID.fullmatch(id):
            raise
        raise UsageError(
            f"{exc}; of an id whose first digits you know: lodeq find {store} --id-prefix {id}"
        ) from exc


async def _absence(engine: Engine, store: str, id: str) -> str:
    """Why there is no such task."""
    try:
        is_workflow = str((await engine.workflow_info(id)).id) == str(TaskId(id))
    except (AccessDeniedError, TaskNotFoundError, UsageError):  # of none, or an older server
        is_workflow = False
    if is_workflow:
        return f"{id} is a workflow: 'lodeq workflow show {store} {id}'"
    return f"no task {id}: it never existed, or is forgotten"


async def _history_of(engine: Engine, task_id: TaskId) -> Result | None:
    """Its row in the history; None where there is none, or the server is too old to say."""
    try:
        page = await engine.history(limit=1, cursor=f"{int(task_id.hex(), 16) + 1:032x}")
    except UsageError:
        return None
    return next((one for one in page if one.task_id == task_id), None)


async def _attempts_of(engine: Engine, task_id: TaskId) -> list[Attempt]:
    """Its attempts; none where the server is too old to say, or the task has gone meanwhile."""
    try:
        return await engine.attempts(task_id)
    except (TaskNotFoundError, UsageError):
        return []


def _attempt_line(one: dict[str, Any]) -> str:
    worker = f" by {shown(one['worker'])}" if one["worker"] else ""
    reason = f": {reason_text(one['reason'])}" if one["reason"] else ""
    ended = f"{one['ended_at']:%Y-%m-%dT%H:%M:%SZ}"
    ran = f" after {seconds_text(one['ran'])}" if one["ran"] is not None else ""
    return f"{one['number']}  {ended}  {one['outcome']}{ran}{worker}{reason}"


def _print_fields(document: dict[str, Any], indent: str = "") -> None:
    for name, value in document.items():
        if value not in (None, "", {}):
            if name.endswith("_base64"):
                name, value = name.removesuffix("_base64"), brief(base64.b64decode(value))
            text = shown(value) if isinstance(value, str) else json_text(value).strip('"')
            click.echo(f"{indent}{name:<15}{text}")
