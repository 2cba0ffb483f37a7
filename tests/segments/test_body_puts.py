"""How payloads of one call, and of a lone caller, get to the files."""

import asyncio
import os
from pathlib import Path

import pytest
from support_bodies import SIZE, Opened, payloads
from support_loop import on_loop

import lodeq
from lodeq.repository.tasks.enqueue import LONE_BODY_MAX
from lodeq.segments.bodies.files import BodyFiles


@on_loop
async def test_payloads_of_a_call_go_to_the_file_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as rig:
        calls: list[int] = []
        append_all = BodyFiles.append_all

        def counted(files: BodyFiles, records: list[tuple[bytes, bytes]]) -> object:
            calls.append(len(records))
            return append_all(files, records)

        monkeypatch.setattr(BodyFiles, "append_all", counted)
        shared = b"two" + bytes(SIZE)
        bodies = [b"one" + bytes(SIZE), shared, shared, b"six" + bytes(SIZE)]
        await rig.queue.enqueue_many([lodeq.NewTask(body) for body in bodies])
        assert calls == [3]
        assert await payloads(rig) == [b"one", b"two", b"two", b"six"]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_a_lone_caller_need_not_wait_for_the_next_turn(tmp_path: Path) -> None:
    async with Opened(tmp_path) as rig:
        coalescer = rig.shard.coalescer
        while not coalescer.inline_left:
            await rig.queue.enqueue(os.urandom(SIZE))
        left, commits = coalescer.inline_left, coalescer.stats.commits
        with pytest.raises(StopIteration) as done:  # it has not waited
            rig.queue.enqueue(b"at once" + bytes(SIZE)).send(None)
        assert (coalescer.inline_left, coalescer.stats.commits) == (left - 1, commits + 1)
        assert (await rig.engine.get(done.value.value.id)).payload[:7] == b"at once"


@pytest.mark.parametrize(("size", "durable"), [(LONE_BODY_MAX, None), (SIZE, True)])
@on_loop
async def test_a_lone_caller_waits_with_much_and_for_a_sync(
    tmp_path: Path, *, size: int, durable: bool | None
) -> None:
    async with Opened(tmp_path) as rig:
        coalescer = rig.shard.coalescer
        while not coalescer.inline_left:
            await rig.queue.enqueue(os.urandom(SIZE))
        left = coalescer.inline_left
        call = asyncio.ensure_future(rig.queue.enqueue(bytes(size), durable=durable))
        await asyncio.sleep(0)
        assert coalescer.inline_left == left
        assert not call.done()
        await call
        assert (await rig.engine.verify()).ok
