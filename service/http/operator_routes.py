"""Looking at tasks and queues, and running the whole."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from ...client.records import plain_doc, queue_doc, report_doc, result_doc, task_doc
from ...client.wire import unbase64
from ...engine.runtime.task_id import TaskId
from ...errors import StorePathError, TaskNotFoundError, UsageError
from ...repository.api.queue import Queue
from ...repository.model.values import ALL_TENANTS, Task
from ...repository.tasks import lookup
from ...repository.tasks.task_list import list_page
from ..shared.engine_status import status_cache
from .request_context import DocumentReader, RequestContext, id_of, problem

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = [
    "cancel",
    "checkpoint",
    "engine",
    "fsync",
    "get",
    "health",
    "migrate_bodies",
    "pause",
    "purge",
    "queue_stats",
    "queues",
    "redrive",
    "result",
    "resume",
    "stats",
    "tasks",
    "verify",
]

_EPOCH = datetime.fromtimestamp(0, UTC)
_PAGE_BYTES = 4 << 20
_QUEUES_MAX = 1000  # in one page
_PATH_CHARS_MAX = 255  # of a checkpoint: what leads to it is made, too
_FLAGS = {"true": True, "false": False}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_COUNT = re.compile(r"0|[1-9][0-9]{0,8}")


# -- one task --------------------------------------------------------------------------


async def get(exchange: RequestContext) -> Response:
    """A task, in whatever state."""
    task_id = exchange.task_id
    exchange.query()
    core = exchange.hub.core
    core.check()
    task = await lookup.get(core, task_id, "stored")
    if task is None:
        raise TaskNotFoundError(f"no task {task_id}", task_id=task_id)
    await exchange.turns.give()
    return exchange.answer(task_doc(exchange.out, task, None))


async def result(exchange: RequestContext) -> Response:
    """How a task ended; 202 while it has not."""
    hub, task_id = exchange.hub, exchange.task_id
    wait_s = hub.wait_s(_seconds(exchange.query("wait").get("wait", "0")))
    hub.core.check()
    call = partial(lookup.result, hub.core, task_id, wait_s, "stored")
    found = await (exchange.poll(call, None) if wait_s else call())
    if found is None:
        return exchange.answer({}, 202)
    return exchange.answer(result_doc(exchange.out, found, None))


def _seconds(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"wait {text[:80]!r} is not a number of seconds")
    return float(text)


async def cancel(exchange: RequestContext) -> Response:
    """End a task that is not over."""
    exchange.query()
    return exchange.answer({"cancelled": await exchange.hub.engine.cancel(exchange.task_id)})


# -- one queue -------------------------------------------------------------------------


def _queue_of(exchange: RequestContext, query: Mapping[str, str]) -> Queue:
    is_all = _FLAGS.get(query.get("all_tenants", "false"))
    if is_all is None:
        raise UsageError("all_tenants must be true or false")
    if is_all and "tenant" in query:
        raise UsageError("give tenant or all_tenants, not both")
    tenant = ALL_TENANTS if is_all else query.get("tenant", "")
    return exchange.hub.queue(exchange.path("queue"), tenant)


async def tasks(exchange: RequestContext) -> Response:
    """A page of a queue's tasks by state."""
    query = exchange.query("tenant", "all_tenants", "state", "limit", "after", "payloads")
    queue = _queue_of(exchange, query)
    limit = query.get("limit", "100")
    if not _COUNT.fullmatch(limit):
        raise UsageError(f"limit {limit[:80]!r} is not between 1 and 10000")
    after = _after(query["after"]) if "after" in query else None
    shows = _FLAGS.get(query.get("payloads", "true"))
    if shows is None:
        raise UsageError("payloads must be true or false")
    core = exchange.hub.core
    core.check()
    found, is_full = await list_page(
        core,
        *queue._keys[0],
        query.get("state", "ready"),
        int(limit),
        after,
        payloads="stored" if shows else "none",
        bytes_max=_PAGE_BYTES,
    )
    # At most ``limit`` tasks, and about as many bytes as an answer may have; ``more`` says that it
    # was the bytes that ended it.
    docs = (task_doc(exchange.out, task, None) for task in found)
    return await exchange.answer_list("tasks", docs, {"more": is_full and len(found) < int(limit)})


def _after(text: str) -> Task:
    """The position of the last task of the page before: nothing else of it is looked at."""
    position = unbase64(text, "after")
    if not position:
        raise UsageError("after is not the position of a task: it is empty")
    return Task(TaskId(bytes(16)), "", "", "", 0, 0, _EPOCH, position=position)


async def queue_stats(exchange: RequestContext) -> Response:
    """A queue's counts."""
    queue = _queue_of(exchange, exchange.query("tenant", "all_tenants"))
    return exchange.answer(plain_doc(await queue.stats()))


async def redrive(exchange: RequestContext) -> Response:
    """Dead letters go back."""
    queue = _queue_of(exchange, exchange.query("tenant", "all_tenants"))
    members = await exchange.members(is_needed=False)
    named = members.items("ids", exchange.hub.settings.batch_max) if members.has("ids") else None
    ids = None if named is None else [id_of(one) for one in named]
    members.done()
    return exchange.answer({"redriven": await queue.redrive(ids)})


async def purge(exchange: RequestContext) -> Response:
    """Delete what is not leased."""
    queue = _queue_of(exchange, exchange.query("tenant", "all_tenants"))
    members = await exchange.members(is_needed=False)
    state = members.take("state")
    members.done()
    if state is not None and not isinstance(state, str):
        raise UsageError("state must be text")
    return exchange.answer({"purged": await queue.purge(state)})


async def pause(exchange: RequestContext) -> Response:
    """Claims get nothing."""
    queue = _queue_of(exchange, exchange.query("tenant", "all_tenants"))
    await _nothing(exchange)
    await queue.pause()
    return exchange.answer({})


async def resume(exchange: RequestContext) -> Response:
    """Claims get tasks again."""
    queue = _queue_of(exchange, exchange.query("tenant", "all_tenants"))
    await _nothing(exchange)
    await queue.resume()
    return exchange.answer({})


# -- the whole -------------------------------------------------------------------------


async def _nothing(exchange: RequestContext) -> None:
    """A call without arguments still says its media type: a page of another site cannot."""
    (await exchange.members(is_needed=False)).done()


async def engine(exchange: RequestContext) -> Response:
    """What a client has to know before anything else."""
    exchange.query()
    hub = exchange.hub
    hub.core.check()
    doc = {
        "path": hub.engine.path,
        "shards": hub.engine.shards,
        "durability": hub.engine.durability,
        "limits": asdict(hub.core.limits),
        "batch_max": hub.settings.batch_max,
        "wait_s_max": hub.settings.wait_s_max,
        "body_bytes_max": hub.settings.body_bytes_max,
        "takes_claim_ids": True,
    }
    return exchange.answer(doc)


async def queues(exchange: RequestContext) -> Response:
    """A page of the queues there is anything of, with their counts."""
    query = exchange.query("limit", "after")
    limit = query.get("limit", str(_QUEUES_MAX))
    most = int(limit) if _COUNT.fullmatch(limit) else 0
    if not 1 <= most <= _QUEUES_MAX:
        raise UsageError(f"limit {limit[:80]!r} is not between 1 and {_QUEUES_MAX}")
    after = None
    if "after" in query:
        queue, slash, tenant = query["after"].partition("/")
        if not slash:
            raise UsageError("after is the 'next' of the page before: a queue, '/', its tenant")
        after = queue, tenant
    found = (await status_cache(exchange.hub.engine).get()).page(after, most + 1)
    more = len(found) > most
    del found[most:]
    docs = (queue_doc(*one) for one in found)
    rest = {"next": "/".join(found[-1][0]) if more else None}
    return await exchange.answer_list("queues", docs, rest)


async def stats(exchange: RequestContext) -> Response:
    """Counts and commit statistics."""
    exchange.query()
    return exchange.answer(plain_doc(await exchange.hub.engine.stats()))


async def health(exchange: RequestContext) -> Response:
    """``ok``, or the reasons why not."""
    exchange.query()
    found = await exchange.hub.engine.health()
    return exchange.answer({"ok": found.ok, "reasons": list(found.reasons)})


async def verify(exchange: RequestContext) -> Response:
    """Check every row."""
    await _nothing(exchange)
    return exchange.answer(report_doc(exchange.out, await exchange.hub.engine.verify()))


async def checkpoint(exchange: RequestContext) -> Response:
    """A copy of the store, below the folder that the server was given for that."""
    members: DocumentReader = await exchange.members()
    name = members.text("path", "")
    members.done()
    folder = exchange.hub.settings.checkpoints
    if folder is None:
        raise UsageError("this server makes no checkpoints: start it with --checkpoints DIR")
    path = _below(folder, name)
    try:
        await exchange.hub.engine.checkpoint(path)
    except StorePathError as error:
        return problem(error, 409)  # the path is the caller's, not the server's own
    return exchange.answer({"path": path})


def _below(folder: str, name: str) -> str:
    if len(name) > _PATH_CHARS_MAX:
        raise UsageError(f"the path of a checkpoint is at most {_PATH_CHARS_MAX} characters")
    root = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(root, name))
    except ValueError as exc:  # a NUL, or a lone surrogate
        raise UsageError(f"{name!r} is no path: {exc}") from exc
    if os.path.commonpath([root, path]) != root or path == root:
        raise UsageError(f"checkpoints go below the server's folder for them, {name!r} does not")
    return path


async def migrate_bodies(exchange: RequestContext) -> Response:
    """Leave the older format of body files."""
    await _nothing(exchange)
    return exchange.answer(plain_doc(await exchange.hub.engine.migrate_bodies()))


async def fsync(exchange: RequestContext) -> Response:
    """Make everything acknowledged so far durable."""
    await _nothing(exchange)
    await exchange.hub.engine.fsync()
    return exchange.answer({})
