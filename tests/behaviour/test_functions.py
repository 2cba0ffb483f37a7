"""Published functions in a store: kept over restarts and reshards, bounded, damage shown."""

import asyncio

import pytest
from support_behaviour import StillClock, in_memory
from support_loop import on_loop

import lodeq
from lodeq import FunctionParameter, PublishedFunction
from lodeq.engine.records.queues.functions import function_key
from lodeq.repository.api.engine import runtime_of
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.tasks.operators import functions as module

SEND = PublishedFunction("mail", "send", max_attempts=3, parameters=(FunctionParameter("to"),))
DAY_S = 86_400.0


def names(found):
    return [one.name for one in found]


def test_they_outlive_a_restart_and_a_reshard(tmp_path):
    root = tmp_path / "s"

    async def publish():
        async with lodeq.open(root, shards=3) as engine:
            await engine.publish_functions([SEND])
            await engine.queue("mail").enqueue(b"x")

    async def look():
        async with lodeq.open(root) as engine:
            report = await engine.verify()
            assert report.ok, report.findings
            return await engine.functions()

    asyncio.run(publish())
    before = asyncio.run(look())
    assert names(before) == ["send"]
    reshard(root, 2)
    assert asyncio.run(look()) == before


def test_a_reader_beside_the_store_sees_them(tmp_path):
    from lodeq.repository.api.read_only import open_read_only

    async def main():
        async with lodeq.open(tmp_path / "s", shards=1) as engine:
            await engine.publish_functions([SEND])
            await engine.fsync()
            async with open_read_only(tmp_path / "s") as reader:
                assert names(await reader.functions()) == ["send"]
                with pytest.raises(lodeq.NotLeaderError):
                    await reader.publish_functions([SEND, PublishedFunction("mail", "new")])

    asyncio.run(main())


@on_loop
async def test_a_damaged_row_is_passed_over_and_shown_by_verify() -> None:
    async with in_memory(shards=1) as engine:
        await engine.publish_functions([SEND, PublishedFunction("mail", "tick")])
        shard = runtime_of(engine).state.shards[0]
        group = shard.coalescer.begin()
        group.ops.append((function_key(b"mail", b"send"), b"junk"))
        await shard.coalescer.wait(group)
        assert names(await engine.functions()) == ["tick"]
        with pytest.raises(lodeq.UsageError, match="no function 'send'"):
            await engine.enqueue_function("mail", "send", {"to": "a"})
        assert not (await engine.verify()).ok
        assert await engine.publish_functions([SEND]) == 1  # the next start writes it anew
        assert (await engine.verify()).ok


@on_loop
async def test_the_longest_not_published_give_way(monkeypatch) -> None:
    monkeypatch.setattr(module, "FUNCTIONS_MAX", 3)
    clock = StillClock()
    async with in_memory(clock, shards=1) as engine:
        old = [PublishedFunction("mail", f"old{n}") for n in range(3)]
        await engine.publish_functions(old)
        with pytest.raises(lodeq.LimitError, match="keeps 3 functions"):
            await engine.publish_functions([SEND])
        with pytest.raises(lodeq.LimitError, match="4 functions are more than the 3"):
            await engine.publish_functions([*old, SEND])
        assert names(await engine.functions()) == ["old0", "old1", "old2"]
        await clock.advance(DAY_S + 1)
        await engine.publish_functions(old[1:])  # written again: a day has passed
        await clock.advance(1)
        await engine.publish_functions([SEND])
        assert names(await engine.functions()) == ["old1", "old2", "send"]


@pytest.mark.slow
@on_loop
async def test_ten_thousand_are_published_in_slices() -> None:
    async with in_memory(shards=2) as engine:
        many = [PublishedFunction("mail", f"f{n:05}", doc="x" * 100) for n in range(10_000)]
        assert await engine.publish_functions(many) == 10_000
        assert await engine.publish_functions(many) == 0
        assert len(await engine.functions("mail")) == 10_000
