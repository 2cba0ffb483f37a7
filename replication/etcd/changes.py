"""The watch: hints of changed keys, from one member at a time.

It goes on behind the last revision it has seen. Where that is not possible (the revisions were
compacted) it starts anew and says that everything may have changed. A member that says nothing is
asked for its progress, and left if it does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio

from ..port import PLACEMENTS, Change, LogUnavailableError, add_change
from . import rpc_pb2 as pb
from .endpoints import Endpoints
from .keys import Keys
from .rpc import Refusal, classify

__all__ = ["watch_changes"]

_PAUSE_S: Final = 0.1


async def watch_changes(
    endpoints: Endpoints, keys: Keys, shards: Callable[[], int], since: int
) -> AsyncIterator[Change]:
    """Hints until the iterator, or the connection, is closed.

    Args:
        endpoints: the members.
        keys: of the cluster.
        shards: how many there are.
        since: the revision behind which changes count.
    """
    at = endpoints.at
    starts = [since + 1] * len(keys.watched())
    while not endpoints.is_closed:
        member = endpoints.members[at % len(endpoints.members)]
        stream = member.watch(endpoints.metadata)
        try:
            async with aclosing(_answers(stream, keys, starts, endpoints)) as answers:
                async for answer in answers:
                    for change in _changed(answer, keys, starts, shards()):
                        yield change
                    if answer.canceled:
                        break
        except grpc.RpcError as error:
            if classify(error) is Refusal.TOKEN:
                await _refresh_token(endpoints)
        finally:
            stream.cancel()
        at += 1
        await asyncio.sleep(_PAUSE_S)


def _changed(answer: pb.WatchResponse, keys: Keys, starts: list[int], shards: int) -> list[Change]:
    """The hints that an answer gives; where its range goes on is noted in ``starts``."""
    number = answer.watch_id - 1
    if not 0 <= number < len(starts):
        return []
    if answer.compact_revision:
        starts[number] = max(starts[number], answer.compact_revision)
        return [Change(shard) for shard in range(PLACEMENTS, shards)]
    found: dict[int, int] = {}
    for event in answer.events:
        starts[number] = max(starts[number], event.kv.mod_revision + 1)
        key, value = event.kv.key, event.kv.value
        add_change(found, Change(keys.shard_in(key), keys.hinted_in(key, value)))
    return [Change(*one) for one in sorted(found.items())]


async def _refresh_token(endpoints: Endpoints) -> None:
    try:
        await endpoints.authenticate(endpoints.try_s)
    except LogUnavailableError:
        pass  # the next round asks again


async def _answers(
    stream: Any, keys: Keys, starts: list[int], endpoints: Endpoints
) -> AsyncGenerator[pb.WatchResponse, None]:
    """What one stream says, until it ends, or is silent although it was asked."""
    for number, (first, end) in enumerate(keys.watched()):
        create = pb.WatchCreateRequest(
            key=first, range_end=end, start_revision=starts[number], watch_id=number + 1
        )
        if not await _write(stream, pb.WatchRequest(create_request=create), endpoints):
            return
    heard = _Heard()
    asking = asyncio.create_task(_ask_when_silent(stream, heard, endpoints))
    try:
        while (answer := await _read(stream)) is not None:
            heard.answers += 1
            endpoints.check_id(answer.header)
            yield answer
    finally:
        stream.cancel()  # or its end might be waited for
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


class _Heard:
    """How much a stream has said."""

    answers = 0


async def _ask_when_silent(stream: Any, heard: _Heard, endpoints: Endpoints) -> None:
    """End a stream that says nothing for ``try_s``, nor for as long again once it was asked."""
    progress = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
    is_asked = False
    while True:
        before = heard.answers
        await asyncio.sleep(endpoints.try_s)
        if heard.answers != before:
            is_asked = False
        elif is_asked or not await _write(stream, progress, endpoints):
            stream.cancel()
            return
        else:
            is_asked = True


async def _read(stream: Any) -> pb.WatchResponse | None:
    """The next answer; None: the stream has ended."""
    try:
        answer = await stream.read()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None  # the stream was cancelled, not this task
    return None if answer is grpc.aio.EOF else answer


async def _write(stream: Any, request: pb.WatchRequest, endpoints: Endpoints) -> bool:
    """Send a request; False: the stream has ended."""
    try:
        async with asyncio.timeout(endpoints.try_s):
            await stream.write(request)
    except (asyncio.InvalidStateError, TimeoutError):
        return False
    except asyncio.CancelledError:
        if endpoints.is_closed:
            return False
        raise
    return True
