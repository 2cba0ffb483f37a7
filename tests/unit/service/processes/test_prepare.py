"""The store before its processes: locks, shares, and copies of what lies on the first shard."""

import pytest

import lodeq
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.runtime.ids import SystemRng
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.model.calls.functions import PublishedFunction
from lodeq.service.processes.plan import ProcessShards
from lodeq.service.processes.prepare import prepare

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
URLS = ("unix:///s.0", "unix:///s.1")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_lock_is_kept_and_the_shards_are_free_for_processes(tmp_path):
    held = prepare(tmp_path / "s", 2)
    try:
        assert (held.shards, held.durability) == (8, "nosync")
        with pytest.raises(lodeq.LockedError):
            await lodeq.open(tmp_path / "s")
        with pytest.raises(lodeq.LockedError):
            prepare(tmp_path / "s", 2)
        both = [
            lodeq.open(tmp_path / "s", hosting=ProcessShards(URLS, n, "unix:///s")) for n in (0, 1)
        ]
        async with both[0] as one, both[1] as other:
            ids = [(await one.queue("mail").enqueue(b"x")).id for _ in range(8)]
            with pytest.raises(lodeq.NotLeaderError) as caught:
                await other.get(ids[0])
            assert caught.value.leader == URLS[0]
    finally:
        held.lock.release()
    async with lodeq.open(tmp_path / "s") as engine:
        assert (await engine.queue("mail").stats()).ready == 8


async def test_more_processes_than_shards_are_refused_and_leave_nothing_locked(tmp_path):
    with pytest.raises(lodeq.UsageError, match="--shards 3"):
        prepare(tmp_path / "s", 4, shards=3)
    assert not (tmp_path / "s").exists()
    prepare(tmp_path / "s", 1, shards=2).lock.release()
    with pytest.raises(lodeq.UsageError, match="lodeq reshard"):
        prepare(tmp_path / "s", 3)
    with pytest.raises(lodeq.ShardCountError):
        prepare(tmp_path / "s", 3, shards=4)
    with pytest.raises(lodeq.UsageError, match="1 to 64"):
        prepare(tmp_path / "s", 65)
    async with lodeq.open(tmp_path / "s") as engine:
        assert engine.shards == 2


async def test_copies_follow_the_first_shard_and_count_nowhere_else(tmp_path):
    store = tmp_path / "s"

    def of_process(number: int):
        return lodeq.open(store, hosting=ProcessShards(URLS, number, "unix:///s"))

    async with lodeq.open(store, shards=4) as engine:
        await engine.queue("mail").pause()
        await engine.configure("mail", history=60, by="test")
        await engine.publish_functions([PublishedFunction("mail", "send")])
    held = prepare(store, 2)
    async with of_process(1) as engine:
        assert (await engine.queue("mail").stats()).is_paused
        assert (await engine.settings("mail")).history == 60
        assert [one.name for one in await engine.functions()] == ["send"]
        await engine.queue("letters").pause()  # at one process only: as if the other were down
    held.lock.release()

    async with lodeq.open(store) as engine:  # what the first shard has counts
        assert not (await engine.queue("letters").stats()).is_paused
        await engine.queue("mail").resume()
    reshard(store, 3)
    async with lodeq.open(store) as engine:
        assert not (await engine.queue("letters").stats()).is_paused
        assert not (await engine.queue("mail").stats()).is_paused
        assert (await engine.settings("mail")).history == 60
        assert (await engine.verify()).ok
    held = prepare(store, 2)
    async with of_process(1) as engine:
        assert not (await engine.queue("mail").stats()).is_paused
        assert not (await engine.queue("letters").stats()).is_paused
    held.lock.release()


def test_a_store_of_one_shard_is_one_process(tmp_path):
    held = prepare(tmp_path / "s", 1, shards=1)
    held.lock.release()
    opened = open_store(
        tmp_path / "s",
        shards=None,
        durability=None,
        block_cache_bytes=1 << 20,
        recovery="strict",
        rng=SystemRng(),
    )
    assert len(opened.shards) == 1
    opened.close()
