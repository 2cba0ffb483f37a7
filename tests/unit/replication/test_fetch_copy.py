"""From which checkpoint the files of a shard are fetched, and what happens where one cannot be."""

import pytest

import lodeq
from lodeq.errors import LodeqError, OpenError
from lodeq.replication.placement.shard_files import NoFiles, fetch_copy
from lodeq.replication.port import Checkpoint, LogUnavailableError, Member, ShardState

pytestmark = pytest.mark.anyio

SHARD = 3


class Log:
    """A log with checkpoints of nodes, of which some are there."""

    def __init__(self, live, *checkpoints):
        self.live = live
        self.published = checkpoints

    async def members(self):
        return [Member(node) for node in self.live]

    async def checkpoints(self):
        return self.published


class Files(NoFiles):
    """Files that cannot be fetched from some nodes."""

    def __init__(self, **errors):
        self.errors = errors
        self.asked = []
        self.removed = []

    async def fetch(self, shard, checkpoint, spawner):
        self.asked.append(checkpoint.node)
        if checkpoint.node in self.errors:
            raise self.errors[checkpoint.node]

    async def remove(self, shard, spawner):
        self.removed.append(shard)


def checkpoint(node, reach):
    return Checkpoint(node, f"http://{node}", "0" * 32, (0,) * SHARD + (reach,))


async def fetched(log, files, floor=5):
    pins = []

    async def pin(index):
        pins.append(index)

    return await fetch_copy(log, files, ShardState(SHARD, None, 0, 9, floor), None, pin), pins


@pytest.mark.parametrize(
    "error",
    [
        lodeq.UnreachableError("nobody answers"),
        lodeq.AccessDeniedError("another token"),
        lodeq.FormatTooNewError("of a newer release"),
        lodeq.StorageError("its disk"),
        LogUnavailableError("no answer"),
        ConnectionError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_checkpoint_that_cannot_be_had_gives_way_to_the_next(error):
    files = Files(a=error)
    second = checkpoint("b", 7)
    found, pins = await fetched(Log("ab", checkpoint("a", 8), second), files)
    assert found is second
    assert (files.asked, pins, files.removed) == (["a", "b"], [8, 7], [])


async def test_the_checkpoint_of_a_node_that_is_gone_is_the_last_to_be_tried():
    files = Files(b=LodeqError("no"))
    found, _ = await fetched(Log("b", checkpoint("gone", 8), checkpoint("b", 7)), files)
    assert found is not None
    assert files.asked == ["b", "gone"]


async def test_where_none_can_be_had_the_error_names_each_and_nothing_is_removed():
    files = Files(a=lodeq.UnreachableError("nobody answers"))
    log = Log("ab", checkpoint("a", 8), checkpoint("b", 3), checkpoint("c", 0))
    with pytest.raises(OpenError, match=r"nobody answers.*that of b .* does not reach the log"):
        await fetched(log, files)
    assert files.asked == ["a"]
    assert files.removed == []


async def test_where_the_log_is_whole_none_is_needed():
    files = Files(a=lodeq.UnreachableError("nobody answers"))
    found, pins = await fetched(Log("a", checkpoint("a", 8)), files, floor=1)
    assert found is None
    assert (pins, files.removed) == ([8, 0], [SHARD])
