"""One process of ``lodeq serve --processes``: it opens its shards, and serves them.

The supervisor starts it. Its standard input is a pipe: the first line is its order, and its end is
the end of the supervisor, however that came; then the process closes its shards, so that none
outlives the lock of the store. On its standard output it says in one line of JSON that it serves,
or why it does not.

A shard that is poisoned takes no writes until it is reopened. So the process ends, where that may
help, and its supervisor starts another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from ...client.documents.problems import problem_of
from ...errors import InvariantError, LodeqError, StorageError
from ...repository.api.open import open_engine
from ...repository.api.serve_options import Serve
from ...repository.api.view import view_of
from ..shared.garbage_collector import settle_collector
from .plan import REOPEN_CODE, Order, ProcessShards

__all__ = ["main"]

_IN: Final = 0
_OUT: Final = 1
_ERR: Final = 2
_REFUSED: Final = 2  # exit code: it said why
_ORDER_BYTES_MAX: Final = 1 << 20


def main() -> int:
    """Run one process until its supervisor ends, or ends it."""
    # An interrupt at a terminal goes to all processes: the supervisor says when it is time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline(_ORDER_BYTES_MAX)
    if not line:
        return 0  # the supervisor has gone before it gave an order
    try:
        return asyncio.run(_serve(Order.of(line)))
    except LodeqError as error:
        _say({"refused": problem_of(error)})
        sys.stderr.write(f"error: {error}\n")
        return _REFUSED


def _say(document: dict[str, Any]) -> None:
    """Tell the supervisor, if it is there."""
    with suppress(OSError):
        os.write(_OUT, json.dumps(document).encode() + b"\n")


async def _serve(order: Order) -> int:
    """Serve until all is to end, or a shard is to be reopened; returns the exit code."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    failed = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(_IN, _look_at_end, stop)
    served = Serve(
        address=order.listen,
        token=order.token,
        tokens=order.tokens,
        dashboard="off",
        hosts=order.hosts,
        checkpoints=order.checkpoints,
        grace=order.grace_s,
    )
    opening = open_engine(
        order.path,
        shards=order.shards,
        durability=order.durability,
        block_cache_bytes=order.block_cache_bytes,
        inbox=False,
        hosting=ProcessShards(order.urls, order.number, order.front),
        serve=served,
    )
    try:
        async with opening as engine:
            server = view_of(engine).server
            if server is None:
                raise InvariantError("the store is open and not served")
            view_of(engine).when_reopening_may_help(failed.set)
            settle_collector()
            _say({"serving": server.address})
            os.dup2(_ERR, _OUT)  # what is printed from now on is no message
            over = asyncio.ensure_future(server.wait())
            waits = (over, *(asyncio.ensure_future(one.wait()) for one in (stop, failed)))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()
            if server.problem is not None:
                raise StorageError(f"{server.address} is not served any more: {server.problem}")
        return REOPEN_CODE if failed.is_set() and not stop.is_set() else 0
    finally:
        loop.remove_reader(_IN)


def _look_at_end(stop: asyncio.Event) -> None:
    """The supervisor sends nothing more: what can be read is the end of the pipe."""
    try:
        if os.read(_IN, 4096):
            return
    except OSError:
        pass  # as good as its end
    asyncio.get_running_loop().remove_reader(_IN)
    stop.set()
