"""One suite for every form of a journal: async, for threads beside its loop, and without async."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from support_sources import none_of

import lodeq
import lodeq.sync
from lodeq.journal import Ack, Journal, Retention, Roll, Tailer, ThreadJournal, ThreadTailer

pytestmark = pytest.mark.anyio


class Form:
    """How the calls of a form are made: on the loop, or in a thread."""

    def __init__(self, name: str) -> None:
        self.is_async = name == "async"
        self._name = name

    async def __call__(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not self.is_async:
            return await anyio.to_thread.run_sync(partial(fn, *args, **options))
        found = fn(*args, **options)
        return await found if inspect.isawaitable(found) else found

    @asynccontextmanager
    async def opened(self, path: Path, **options: Any) -> AsyncIterator[Any]:
        if self._name == "own loop":
            opening = partial(lodeq.sync.open_journal, path, **options)
            journal = await anyio.to_thread.run_sync(opening)
            try:
                yield journal
            finally:
                await self(journal.close)
            return
        async with lodeq.journal.open(path, **options) as journal:
            yield journal if self.is_async else journal.threads

    async def some(self, tailer: Any, most: int, *, is_stored: bool = False) -> list[bytes]:
        """The payloads of the first records of a loop; then it is left, by ``break``."""
        if not self.is_async:

            def run() -> list[bytes]:
                found = [record.payload for record in islice(tailer, most)]
                if is_stored:
                    tailer.store()
                return found

            return await anyio.to_thread.run_sync(run)
        found = []
        async for record in tailer:
            found.append(record.payload)
            if len(found) == most:
                break
        if is_stored:
            tailer.store()
        return found


@pytest.fixture(params=["async", "beside a loop", "own loop"])
def form(request: pytest.FixtureRequest) -> Form:
    return Form(request.param)


def texts(records: list[Any]) -> list[bytes]:
    return [record.payload for record in records]


async def test_an_ack_says_how_far_it_is(form: Form, tmp_path: Path) -> None:
    for flush, state in (("async", "buffered"), ("batch", "flushed"), ("sync", "fsynced")):
        async with form.opened(tmp_path / flush, flush=flush) as journal:
            assert await form(journal.append, b"a") == Ack(1, 1, state)
            assert await form(journal.append_many, [b"b", b"c"]) == Ack(2, 3, state)
            for n, until in enumerate(("buffered", "flushed", "fsynced")):
                assert await form(journal.append, b"", until=until) == Ack(4 + n, 4 + n, until)
            assert journal.following == 7
            assert journal.name == flush
            assert journal.path == str(tmp_path / flush)
        async with form.opened(tmp_path / flush) as journal:
            assert journal.following == 7
            assert journal.findings == ()


async def test_what_travels_with_a_record(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j", compression="zlib") as journal:
        await form(journal.append, b"a", headers={"user": "42"}, time_us=5, ttl=1e9)
        await form(journal.append, bytes(5000))
        await form(journal.append_many, [b"b", b"c"], headers=[{"n": "1"}, None])
        await form(journal.append, bytearray(b"d"), until="flushed")
        found = await form((await form(journal.tailer)).read)
    assert texts(found) == [b"a", bytes(5000), b"b", b"c", b"d"]
    assert [dict(record.headers) for record in found] == [{"user": "42"}, {}, {"n": "1"}, {}, {}]
    assert found[0].time_us == 5
    assert found[0].expires_us > 1e15


@pytest.mark.parametrize(
    "payloads",
    [[], ["text"], [b"a", None], [bytes(9 << 20)] * 2, [b""] * 65_536],
    ids=["none", "text", "nothing", "large", "many"],
)
async def test_what_is_no_batch_is_refused_and_takes_no_number(
    form: Form, tmp_path: Path, payloads: list[Any]
) -> None:
    async with form.opened(tmp_path / "j") as journal:
        for call in (journal.append, journal.append_many):
            if call == journal.append and len(payloads) != 1:
                continue
            with pytest.raises(lodeq.UsageError):
                await form(call, payloads if call == journal.append_many else payloads[0])
        with pytest.raises(lodeq.UsageError):
            await form(journal.append, b"a", until="done")
        with pytest.raises(lodeq.UsageError):
            await form(journal.append, b"a", ttl=0)
        with pytest.raises(lodeq.UsageError):
            await form(journal.append_many, [b"a"], headers=[{}, {}])
        assert await form(journal.append, b"a") == Ack(1, 1, "buffered")


async def test_a_named_tailer_goes_on_where_it_was_stored(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j") as journal:
        await form(journal.append_many, [b"%d" % i for i in range(10)], until="flushed")
        tailer = await form(journal.tailer, "mailer")
        assert tailer.name == "mailer"
        assert texts(await form(tailer.read, 4)) == [b"0", b"1", b"2", b"3"]
        await form(tailer.store)
        assert texts(await form(tailer.read_back, 2)) == [b"3", b"2"]
        await form(tailer.seek, 9)
        assert tailer.following == 9
        assert texts(await form(tailer.read)) == [b"8", b"9"]
        await form(tailer.seek_time, 0)
        assert texts(await form(tailer.read, 1)) == [b"0"]
        assert not tailer.gaps
        await form(tailer.close)
        with pytest.raises(lodeq.ClosedError):
            await form(tailer.read)
    async with form.opened(tmp_path / "j") as journal:
        tailer = await form(journal.tailer, "mailer")
        assert await form.some(tailer, 3, is_stored=True) == [b"4", b"5", b"6"]
        assert texts(await form((await form(journal.tailer, "mailer")).read, 1)) == [b"6"]
        assert await form.some(tailer, 4) == [b"6", b"7", b"8", b"9"]
        with pytest.raises(lodeq.InvalidNameError):
            await form(journal.tailer, "../x")
        with pytest.raises(lodeq.UsageError):
            await form(journal.tailer, start="middle")


async def test_a_read_waits_for_an_append_or_its_time(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j") as journal:
        tailer = await form(journal.tailer)
        assert await form(tailer.read) == []
        assert await form(tailer.read, wait=0.001) == []
        found: list[bytes] = []

        async def follow() -> None:
            found.extend(texts(await form(tailer.read, wait=None)))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await form(journal.append, b"a")
        assert found == [b"a"]


async def test_files_are_completed_and_go(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j", roll=Roll(records=2)) as journal:
        for n in range(6):
            await form(journal.append, b"%d" % n)
        await form(journal.roll)
        await form(journal.append, b"6", until="flushed")
        slow = await form(journal.tailer, "slow", start=3)
        rule = Retention(records=0)
        assert [f.first for f in await form(journal.trim, rule, dry_run=True)] == [1]
        assert [f.first for f in await form(journal.trim, rule)] == [1]
        await form(slow.close)
        await form(journal.forget, "slow")
        assert [f.first for f in await form(journal.trim, rule)] == [3, 5]
        assert await form(journal.trim) == []
        tailer = await form(journal.tailer, start=1)
        assert texts(await form(tailer.read)) == [b"6"]
        assert [(gap.first, gap.last) for gap in tailer.gaps] == [(1, 6)]


async def test_what_is_written_can_be_asked_for(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j") as journal:
        await form(journal.append, b"a")
        await form(journal.flush)
        other = lodeq.journal.open_tailer(tmp_path / "j")
        assert texts(other.read_now()) == [b"a"]
        await form(journal.sync)
        other.close()


async def test_an_end_is_final(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j") as journal:
        await form(journal.append, b"a")
        tailer = await form(journal.tailer)
        await form(journal.close)
        await form(journal.close)
        for call in (partial(journal.append, b"b"), journal.flush, journal.sync, journal.roll):
            with pytest.raises(lodeq.ClosedError):
                await form(call)
        with pytest.raises(lodeq.ClosedError):
            await form(journal.trim, Retention(records=0))
        await form(tailer.close)
    async with form.opened(tmp_path / "j") as journal:
        assert journal.following == 2


async def test_one_process_writes(form: Form, tmp_path: Path) -> None:
    async with form.opened(tmp_path / "j"):
        with pytest.raises(lodeq.LockedError):
            async with form.opened(tmp_path / "j"):
                pass
    with pytest.raises(lodeq.UsageError):
        async with form.opened(tmp_path / "j", flush="never"):
            pass


LEFT = {"threads", "read_now"}  # of the loop's own code
# What the form for threads makes its own calls of.
OF_THREADS = {"put_back", "take_back", "next_held", "next_read"}


@pytest.mark.parametrize(("own", "twin"), [(Journal, ThreadJournal), (Tailer, ThreadTailer)])
def test_the_blocking_form_has_every_call(own: type, twin: type) -> None:
    for name, call in inspect.getmembers(own, inspect.isfunction):
        if name.startswith("_") or name in LEFT or name in OF_THREADS:
            continue
        asked = inspect.signature(call).parameters
        there = inspect.signature(getattr(twin, name)).parameters
        none_of(
            f"{name}: {key}" for key, how in asked.items() if key not in there or there[key] != how
        )
