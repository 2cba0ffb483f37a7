"""What the logs we learned from got wrong, one test for each, by its number.

L1 to L14: LedgerQ; R1 to R12: the Rust persistent queue. What was a defect of a queue rather than
of its log is tested against the engine.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop, settle

import lodeq
from lodeq.engine.runtime.clock import SystemClock
from lodeq.segments.formats.ledgerq.codec import LedgerQ
from lodeq.segments.item import Record
from lodeq.segments.journal.cursor import Gap, LogCursor
from lodeq.segments.journal.journal import Journal
from lodeq.segments.journal.log_format import HEADER_BYTES
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.journal.open import open_journal, open_tailer
from lodeq.segments.journal.retention import Retention
from lodeq.segments.journal.roll import Roll
from lodeq.segments.journal.view import FolderView
from lodeq.segments.source import FileSource
from lodeq.testing import ManualClock

KILLED = """
import asyncio, os, signal, sys
import lodeq
from lodeq.segments.journal.open import open_journal

async def main():
    journal = await open_journal(sys.argv[1])
    for i in range(int(sys.argv[2])):
        await journal.append(b"%d" % i, until=sys.argv[3])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def write_and_be_killed(path: Path, n: int, until: str) -> None:
    """In another process, which does not get to close anything."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(n), until], check=False)
    assert done.returncode == -9


def opening(path: Path, **how: Any) -> Any:
    return open_journal(path, **{"clock": ManualClock(), **how})


def logs(path: Path) -> list[Path]:
    return [Path(file.path) for file in FolderView(str(path)).files()]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


async def told(journal: Journal) -> list[bytes]:
    return [record.payload for record in await journal.tailer().read(100_000)]


# -- LedgerQ ---------------------------------------------------------------------------------


@on_loop
async def test_l1_no_number_is_ahead_of_its_record(tmp_path: Path) -> None:
    write_and_be_killed(tmp_path / "j", 100, "buffered")
    async with opening(tmp_path / "j") as journal:
        found = await told(journal)
        assert journal.following == len(found) + 1
        assert (await journal.append(b"next")).first == len(found) + 1
        await journal.flush()
        assert await told(journal) == [*found, b"next"]


@pytest.mark.parametrize("size", [0, 1, 63])
@on_loop
async def test_l2_a_file_without_its_header_is_no_obstacle(tmp_path: Path, size: int) -> None:
    write_and_be_killed(tmp_path / "j", 1, "flushed")
    os.truncate(logs(tmp_path / "j")[0], size)
    async with opening(tmp_path / "j") as journal:
        await journal.append(b"a", until="flushed")
        assert await told(journal) == [b"a"]
    assert len(logs(tmp_path / "j")) == 1


@on_loop
async def test_l3_a_torn_tail_opens_at_the_first_attempt_and_blocks_nobody(tmp_path: Path) -> None:
    write_and_be_killed(tmp_path / "j", 3, "flushed")
    path = logs(tmp_path / "j")[0]
    os.truncate(path, path.stat().st_size - 3)
    async with opening(tmp_path / "j") as journal:
        await journal.append(b"a", until="flushed")
        assert await told(journal) == [b"0", b"1", b"a"]


@on_loop
async def test_l4_damage_in_an_older_file_hides_nothing_else(tmp_path: Path) -> None:
    async with opening(tmp_path / "j", roll=Roll(records=3)) as journal:
        for i in range(9):
            await journal.append(b"%d" % i, until="flushed")
        flip(logs(tmp_path / "j")[0], HEADER_BYTES + 40)
        tailer = journal.tailer()
        assert [r.payload for r in await tailer.read()] == [b"%d" % i for i in range(1, 9)]
        assert [(gap.first, gap.last) for gap in tailer.gaps] == [(1, 1)]
        assert tailer.gaps[0].findings[0].path == str(logs(tmp_path / "j")[0])


@on_loop
async def test_l5_l6_priorities_deliver_each_once_also_after_a_restart(tmp_path: Path) -> None:
    async with lodeq.open(tmp_path / "s") as engine:
        queue = engine.queue("q")
        for i in range(6):
            await queue.enqueue(b"%d" % i, priority=9 if i == 5 else 0)
        (first,) = await queue.claim()
        assert first.payload == b"5"
        await first.complete()
    async with lodeq.open(tmp_path / "s") as engine:
        leases = await engine.queue("q").claim(limit=100)
        assert [lease.payload for lease in leases] == [b"%d" % i for i in range(5)]
        assert await engine.queue("q").claim() == []


@on_loop
async def test_l7_nothing_unread_is_removed(tmp_path: Path) -> None:
    async with opening(tmp_path / "j", roll=Roll(records=1)) as journal:
        tailer = journal.tailer("slow")  # opened, no more
        for i in range(5):
            await journal.append(b"%d" % i, until="flushed")
        assert journal.trim(Retention(records=0)) == []
        assert len(await tailer.read()) == 5


@on_loop
async def test_l8_a_redriven_payload_is_what_was_enqueued(tmp_path: Path) -> None:
    payload = b"compressible " * 500
    async with lodeq.open(tmp_path / "s", compression="zlib") as engine:
        queue = engine.queue("q")
        receipt = await queue.enqueue(payload)
        (lease,) = await queue.claim()
        await lease.bury("for a look")
        await queue.redrive([receipt.id])
        (again,) = await queue.claim()
        assert again.payload == payload


@on_loop
async def test_l9_a_nack_delivers_again(tmp_path: Path) -> None:
    async with lodeq.open(tmp_path / "s") as engine:
        queue = engine.queue("q", backoff=lodeq.Backoff("fixed", base=0.0))
        await queue.enqueue(b"a")
        (lease,) = await queue.claim()
        await lease.nack()
        (again,) = await queue.claim(wait=5.0)
        assert (again.payload, again.attempt) == (b"a", 2)


@on_loop
async def test_l10_a_second_writer_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "pass")
        other = subprocess.run(  # noqa: ASYNC221 - nothing else is to run meanwhile
            [sys.executable, "-c", code, str(tmp_path / "j"), "1", "flushed"],
            check=False,
            capture_output=True,
            text=True,
        )
        assert "LockedError" in other.stderr
        assert str(os.getpid()) in other.stderr
        assert (await journal.append(b"a")).first == 1


@on_loop
async def test_l11_reading_and_opening_leave_nothing_behind(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        await journal.append(b"a")
    before = sorted((path, path.stat().st_size) for path in (tmp_path / "j").rglob("*"))
    for _ in range(3):
        async with opening(tmp_path / "j"):
            tailer = open_tailer(tmp_path / "j", clock=ManualClock())
            assert len(await tailer.read()) == 1
            tailer.close()
    assert sorted((path, path.stat().st_size) for path in (tmp_path / "j").rglob("*")) == before


@on_loop
async def test_l12_long_headers_are_kept_or_refused(tmp_path: Path) -> None:
    long = "v" * 70_000
    async with opening(tmp_path / "j") as journal:
        await journal.append(b"a", headers={"k": long}, until="flushed")
        (record,) = await journal.tailer().read()
        assert record.headers == {"k": long}
    with pytest.raises(lodeq.PayloadTooLargeError):
        LedgerQ().encode(Record(0, 0, b"", sequence=1, timestamp_ns=1, headers={"k": long}))


@on_loop
async def test_l13_a_new_file_is_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    async with opening(tmp_path / "j", flush="sync", roll=Roll(records=1)) as journal:
        for i in range(2):
            synced.clear()
            await journal.append(b"%d" % i)
            assert str(logs(tmp_path / "j")[i].parent) in synced
    # Nothing of a file that is complete is written again, and the position has a checksum.
    position = tmp_path / "j" / "position"
    for at in (8, 4096 + 8):
        flip(position, at)
    async with opening(tmp_path / "j") as journal:
        assert (journal.following, journal.findings) == (3, ())


@on_loop
async def test_l14_a_lost_index_is_rebuilt_and_readers_are_many(tmp_path: Path) -> None:
    async with opening(tmp_path / "j", roll=Roll(records=600)) as journal:
        for _ in range(20):
            await journal.append_many([b"x"] * 100, until="flushed")
        for path in (tmp_path / "j").rglob("*.idx"):
            path.unlink()
        tailers = [journal.tailer(f"t{i}", start=100 * i + 1) for i in range(19)]
        for i, tailer in enumerate(tailers):
            assert (await tailer.read(1))[0].sequence == 100 * i + 1
        assert await journal.tailer(start="end").read() == []  # no error: there is nothing


# -- the Rust queue --------------------------------------------------------------------------


@on_loop
async def test_r1_a_clean_end_writes_everything(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        for i in range(10_000):
            assert (await journal.append(b"%d" % i)).state == "buffered"
    async with opening(tmp_path / "j") as journal:
        assert await told(journal) == [b"%d" % i for i in range(10_000)]


@on_loop
async def test_r2_a_crash_before_the_first_roll_erases_nothing(tmp_path: Path) -> None:
    for turn in range(1, 4):
        write_and_be_killed(tmp_path / "j", 20, "flushed")
        async with opening(tmp_path / "j") as journal:
            assert len(await told(journal)) == 20 * turn


@on_loop
async def test_r3_an_empty_payload_is_a_record(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        for payload in (b"", b"a", b"", b"", b"b"):
            await journal.append(payload)
    async with opening(tmp_path / "j") as journal:
        assert await told(journal) == [b"", b"a", b"", b"", b"b"]


@on_loop
async def test_r4_no_record_is_lost_for_its_size_or_the_count_of_a_file(tmp_path: Path) -> None:
    async with opening(tmp_path / "j", roll=Roll(bytes=4096, records=7)) as journal:
        sizes = [10, 5000, 4096, 1, 100_000, *[50] * 30]
        acks = [await journal.append(bytes(size)) for size in sizes]
        await journal.flush()
        records = await journal.tailer().read()
        assert [(r.sequence, len(r.payload)) for r in records] == [
            (ack.first, size) for ack, size in zip(acks, sizes, strict=True)
        ]
    assert all(path.stat().st_size > HEADER_BYTES for path in logs(tmp_path / "j"))


@on_loop
async def test_r5_the_number_that_is_returned_is_the_number_that_is_stored(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        returned: dict[int, bytes] = {}

        async def appender(name: int) -> None:
            for i in range(500):
                payload = b"%d:%d" % (name, i)
                returned[(await journal.append(payload)).first] = payload
                if i % 7 == name:
                    await asyncio.sleep(0)

        await asyncio.gather(*(appender(name) for name in range(4)))
        await journal.flush()
        records = await journal.tailer().read(10_000)
        assert {r.sequence: r.payload for r in records} == returned


@on_loop
async def test_r6_every_file_has_an_index_and_a_seek_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opening(tmp_path / "j", roll=Roll(records=2000)) as journal:
        for _ in range(5000):
            await journal.append(bytes(1000))
        await journal.flush()
        assert len(list((tmp_path / "j").rglob("*.idx"))) == 2
        read = FileSource.read
        seen: list[int] = []

        def counted(source: FileSource, offset: int, count: int) -> bytes:
            data = read(source, offset, count)
            seen.append(len(data))
            return data

        monkeypatch.setattr(FileSource, "read", counted)
        tailer = journal.tailer(start=3999)
        assert [r.sequence for r in await tailer.read(1)] == [3999]
        assert sum(seen) < 2 << 20  # of 5 MB, mostly read ahead


@on_loop
async def test_r7_a_flush_in_batches_damages_no_file(tmp_path: Path) -> None:
    how = {"flush": "batch", "batch_bytes": 100, "roll": Roll(records=10)}
    async with opening(tmp_path / "j", **how) as journal:
        for i in range(100):
            await journal.append(b"%d" % i)
    for path in logs(tmp_path / "j"):
        with FileSource(path) as source:
            assert JournalLog().verify(source) == []
    async with opening(tmp_path / "j") as journal:
        assert len(await told(journal)) == 100


def test_r8_a_reader_beside_a_writer_is_told_of_no_damage(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    found: list[int] = []
    (tmp_path / "j").mkdir()
    ended = threading.Event()

    def read() -> None:
        cursor = LogCursor(FolderView(str(tmp_path / "j")), gaps.append)
        while True:
            is_last = ended.is_set()
            batch = cursor.read()
            found.extend(record.sequence for record in batch)
            if is_last and not batch:
                break
        cursor.close()

    async def write() -> None:
        async with open_journal(tmp_path / "j", roll=Roll(bytes=200_000)) as journal:
            for i in range(3000):
                await journal.append(bytes(i % 3000), until="flushed")

    reader = threading.Thread(target=read)
    reader.start()
    asyncio.run(write())
    ended.set()
    reader.join()
    assert gaps == []
    assert found == list(range(1, 3001))


@on_loop
async def test_r9_a_damaged_record_is_passed_over_and_told_once(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        for i in range(3):
            await journal.append(b"%d" % i, until="flushed")
        flip(logs(tmp_path / "j")[0], HEADER_BYTES + 45 + 36)
        tailer = journal.tailer()
        assert [r.payload for r in await tailer.read()] == [b"0", b"2"]
        assert await tailer.read() == []
        assert [(gap.first, gap.last) for gap in tailer.gaps] == [(2, 2)]


@pytest.mark.parametrize("beside", [True, False])
@on_loop
async def test_r10_a_tailer_before_the_first_append_is_told_it(
    tmp_path: Path, beside: bool
) -> None:
    async with opening(tmp_path / "j") as journal:
        tailer = journal.tailer() if beside else open_tailer(tmp_path / "j", clock=SystemClock())
        assert await tailer.read() == []
        await journal.append(b"a", until="flushed")
        assert [r.payload for r in await tailer.read(wait=5.0)] == [b"a"]


@on_loop
async def test_r11_a_roll_between_two_reads_hides_nothing(tmp_path: Path) -> None:
    async with opening(tmp_path / "j") as journal:
        tailer = journal.tailer()
        await journal.append(b"0", until="flushed")
        assert len(await tailer.read()) == 1
        for i in range(1, 4):
            await journal.append(b"%d" % i)
            await journal.roll()
        assert [(r.sequence, r.payload) for r in await tailer.read()] == [
            (2, b"1"),
            (3, b"2"),
            (4, b"3"),
        ]
        assert not tailer.gaps


@on_loop
async def test_r12_a_journal_can_be_moved(tmp_path: Path) -> None:
    async with opening(tmp_path / "j", roll=Roll(records=1)) as journal:
        for i in range(3):
            await journal.append(b"%d" % i)
        tailer = journal.tailer("t")
        await settle()
        await tailer.read(2)
        tailer.store()
    shutil.move(tmp_path / "j", tmp_path / "elsewhere")
    async with opening(tmp_path / "elsewhere") as journal:
        assert await told(journal) == [b"0", b"1", b"2"]
        assert [r.payload for r in await journal.tailer("t").read()] == [b"2"]


@on_loop
async def test_r12_a_time_is_stored(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opening(tmp_path / "j", clock=clock) as journal:
        await journal.append(b"a")
        clock.advance(2.5)
        await journal.append(b"b")
        await journal.append(b"c", time_us=123, until="flushed")
        first, second, own = await journal.tailer().read()
        assert second.time_us - first.time_us == 2_500_000
        assert own.time_us == 123
