"""Pages of tasks by stored bytes: turns of the loop, what is shown, and where a page ends."""

import pytest
from support_behaviour import in_memory

import lodeq
from lodeq import CorruptionError
from lodeq.coalescer.overlay import Overlay
from lodeq.repository.model.codec import CodecBytes, PackedBytes
from lodeq.repository.tasks import task_list
from lodeq.repository.tasks.task_list import list_page

pytestmark = pytest.mark.anyio
KIB = 1024


@pytest.fixture
async def engine():
    async with in_memory() as engine:
        yield engine


@pytest.fixture
def turns(engine, monkeypatch):
    """Called at each turn that is given."""
    called, spawner = [], engine._state.spawner

    async def checkpoint():
        called.append(None)
        for act in acts:
            await act()

    acts = []
    monkeypatch.setattr(spawner, "checkpoint", checkpoint)
    return called, acts


def page(engine, state="ready", **options):
    return list_page(engine._state, b"mail", b"", state, 100, None, **options)


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


class Counted(dict):
    """A lease table that counts how often all of it is taken."""

    taken = 0

    def values(self):
        self.taken += 1
        return super().values()


async def leased_pages(mail, limit, after_page=None):
    found, page = [], []
    while page := await mail.list("leased", limit=limit, after=page[-1] if page else None):
        found += page
        if after_page is not None:
            await after_page(len(found))
    return found


@pytest.mark.interpreted
async def test_pages_of_leases_do_not_take_the_whole_table_each(engine):
    mail = engine.queue("mail")
    receipts = await mail.enqueue_many([lodeq.NewTask(n) for n in range(300)])
    held = await mail.claim(limit=300)
    state = engine._state
    state.leases = Counted(state.leases)
    found = await leased_pages(mail, 5)
    assert sorted(task.id for task in found) == sorted(one.id for one in receipts)
    assert state.leases.taken <= 3  # of 61 pages
    assert not state.leased_runs  # a listing that came to its end leaves nothing
    await held[0].complete()


@pytest.mark.parametrize("run", [7, 1000])
async def test_pages_of_leases_see_what_ends_and_what_is_granted_meanwhile(
    engine, monkeypatch, run
):
    monkeypatch.setattr(task_list, "RUN", run)
    mail = engine.queue("mail")
    await mail.enqueue_many([lodeq.NewTask(n) for n in range(60)])
    await engine.queue("other").enqueue(b"x")
    await engine.queue("other").claim()
    held = await mail.claim(limit=40)
    by_position = sorted(held, key=lambda one: (one.leased_us, one.task_id))
    granted = []

    async def act(n):
        if n == 10:
            for lease in by_position[20:25]:
                await lease.complete()
            engine._state.clock.jump(1)
            granted.extend(await mail.claim(limit=20))

    found = [task.id for task in await leased_pages(mail, 5, act)]
    left = by_position[:20] + by_position[25:]
    assert len(found) == len(set(found))
    assert set(found) - {one.task_id for one in granted} == {one.task_id for one in left}
    late = {one.task_id for one in granted if one.leased_us > by_position[-1].leased_us}
    assert len(late) == 20
    assert late <= set(found)


async def test_what_is_kept_of_listings_of_leases_is_bounded(engine, monkeypatch):
    monkeypatch.setattr(task_list, "RUN", 8)
    for n in range(20):
        queue = engine.queue(f"q{n}")
        await queue.enqueue_many([lodeq.NewTask(m) for m in range(40)])
        await queue.claim(limit=40)
        await queue.list("leased", limit=5)  # and never goes on
    runs = engine._state.leased_runs
    assert 0 < len(runs) <= task_list.RUNS_MAX
    assert max(len(run.keys) for run in runs.values()) <= 8


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
            engine._state, name.encode(), b"", "ready", 1, None, payloads="stored"
        )
        assert type(task.payload) is kind
        await engine.queue("again").enqueue(task.payload)
        (nothing,), _ = await list_page(
            engine._state, name.encode(), b"", "ready", 1, None, payloads="none"
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
