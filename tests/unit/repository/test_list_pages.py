"""Pages of tasks by stored bytes: turns of the loop, what is shown, and where a page ends."""

import pytest
from support_behaviour import in_memory

import lodeq
from lodeq import CorruptionError
from lodeq.coalescer.overlay import Overlay
from lodeq.repository.codec import CodecBytes, PackedBytes
from lodeq.repository.listing import list_page

pytestmark = pytest.mark.anyio
KIB = 1024


@pytest.fixture
async def engine():
    async with in_memory() as engine:
        yield engine


@pytest.fixture
def turns(engine, monkeypatch):
    """What is called at each turn that is given."""
    called, spawner = [], engine._core.spawner

    async def checkpoint():
        called.append(None)
        for act in acts:
            await act()

    acts = []
    monkeypatch.setattr(spawner, "checkpoint", checkpoint)
    return called, acts


def page(engine, state="ready", **options):
    return list_page(engine._core, b"mail", b"", state, 100, None, **options)


@pytest.mark.parametrize(
    ("payloads", "given"), [("decoded", 7), ("stored", 0), ("none", 0)], ids=str
)
async def test_turns_are_given_by_bytes(engine, turns, payloads, given):
    await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x" * 50 * KIB)] * 8)
    turns[0].clear()
    found, is_full = await page(engine, payloads=payloads)
    assert (len(found), is_full, len(turns[0])) == (8, False, given)


async def test_what_was_read_before_a_turn_is_looked_at_again(engine, turns):
    mail = engine.queue("mail")
    receipts = await mail.enqueue_many([lodeq.NewTask(b"x" * 65 * KIB)] * 4)

    async def cancel():
        await engine.cancel(receipts[-1].id)

    turns[1].append(cancel)
    found, _ = await page(engine)
    assert [task.id for task in found] == [one.id for one in receipts[:-1]]
    assert not any(task.reason for task in found)


@pytest.mark.parametrize("state", ["ready", "leased"])
async def test_a_page_ends_with_what_fills_it(engine, state):
    mail = engine.queue("mail")
    await mail.enqueue_many([lodeq.NewTask(b"x" * 50 * KIB)] * 8)
    if state == "leased":
        await mail.claim(limit=8)
    found, is_full = await page(engine, state, payloads="stored", bytes_max=110 * KIB)
    assert (len(found), is_full) == (3, True)
    found, is_full = await page(engine, state, payloads="none", bytes_max=110 * KIB)
    assert (len(found), is_full) == (8, False)


async def test_what_is_compressed_counts_as_what_it_becomes():
    async with in_memory(compression="zlib") as engine:
        await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x" * 50 * KIB)] * 8)
        found, is_full = await page(engine, payloads="stored", bytes_max=110 * KIB)
        assert (len(found), is_full) == (3, True)


class Reversed:
    def encode(self, value):
        return value[::-1].encode()

    def decode(self, data):
        return data.decode()[::-1]


async def test_stored_values_are_stored_again_as_they_are(engine):
    given = {"plain": b"bytes", "packed": {"a": [1, 2]}, "coded": "abc"}
    for name, value in given.items():
        codec = Reversed() if name == "coded" else None
        await engine.queue(name, codec=codec).enqueue(value, headers={"n": 1})
    kinds = {"plain": bytes, "packed": PackedBytes, "coded": CodecBytes}
    for name, kind in kinds.items():
        (task,), _ = await list_page(
            engine._core, name.encode(), b"", "ready", 1, None, payloads="stored"
        )
        assert type(task.payload) is kind
        await engine.queue("again").enqueue(task.payload)
        (nothing,), _ = await list_page(
            engine._core, name.encode(), b"", "ready", 1, None, payloads="none"
        )
        assert (nothing.payload, dict(nothing.headers), nothing.queue) == (None, {}, name)
    again = await engine.queue("again").list("ready")
    assert [task.payload for task in again] == [b"bytes", {"a": [1, 2]}, CodecBytes(b"cba")]


@pytest.mark.interpreted
async def test_a_row_in_a_damaged_block_does_not_end_the_list(engine, monkeypatch):
    """It was read before others had their turn; whether it is still there cannot be read."""
    get = Overlay.get

    def damaged(self, key):
        if key.startswith(b"q/"):
            raise CorruptionError("block checksum mismatch")
        return get(self, key)

    queue = engine.queue("mail")
    for _ in range(5):
        await queue.enqueue(bytes(40 * KIB))
    monkeypatch.setattr(Overlay, "get", damaged)
    assert len(await queue.list("ready")) == 5
