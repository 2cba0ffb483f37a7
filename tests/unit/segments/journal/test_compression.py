"""A journal that compresses what gains by it: the same records, in less."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop

import lodeq
from lodeq.engine.records.compression import Compressor
from lodeq.segments.item import Record
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.journal.open import open_journal, open_tailer
from lodeq.segments.journal.writer import LogWriter
from lodeq.segments.source import FileSource
from lodeq.testing import ManualClock

TEXT = b"the same again. " * 200
NOISE = random.Random(7).randbytes(3000)
PAYLOADS = [b"", b"small" * 10, TEXT, NOISE, bytearray(TEXT), TEXT[:1023], TEXT[:1024]]


@pytest.mark.parametrize("how", ["zlib", "zstd"])
@on_loop
async def test_what_is_told_is_what_was_appended(tmp_path: Path, how: Any) -> None:
    if how == "zstd":
        pytest.importorskip("zstandard")
    path, clock = tmp_path / "j", ManualClock()
    journal = await open_journal(path, compression=how, clock=clock)
    await journal.append_many(
        PAYLOADS, headers=[{"k": "v"}] * len(PAYLOADS), ttls=[None] * (len(PAYLOADS) - 1) + [9.0]
    )
    await journal.append(TEXT)
    await journal.append_many([b"a", NOISE], until="fsynced")
    told = [*map(bytes, PAYLOADS), TEXT, b"a", NOISE]
    journal._writer._let_go()  # as if killed: the next open reads it all
    with FileSource(journal._writer.files[0].path) as source:
        assert JournalLog().verify(source) == []
        items = list(JournalLog().scan(source))
        assert [item.payload for item in items if isinstance(item, Record)] == told
        assert source.size < sum(map(len, told)) - 3 * 2900
    async with open_journal(path, clock=clock) as plain:  # reading needs no option
        assert (plain.findings, plain.following) == ((), len(told) + 1)
        await plain.append(TEXT, until="flushed")
        records = await plain.tailer().read()
        assert [record.payload for record in records] == [*told, TEXT]
        assert records[2].headers == {"k": "v"}
        assert [r.payload for r in await open_tailer(path, clock=clock).read()] == [*told, TEXT]


@on_loop
async def test_what_a_batch_holds_is_counted_before(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "j", compression="zlib", clock=ManualClock()) as journal:
        with pytest.raises(lodeq.PayloadTooLargeError):
            await journal.append_many([bytes(9 << 20)] * 2)
        with pytest.raises(lodeq.UsageError, match="payloads are bytes"):
            await journal.append(memoryview(TEXT))  # type: ignore[arg-type]
        assert await journal.append(bytes(17 << 20), until="flushed") == (1, 1, "flushed")
        (record,) = await journal.tailer().read()
        assert record.payload == bytes(17 << 20)


def test_nothing_that_gains_is_a_frame_without_flags(tmp_path: Path) -> None:
    files = []
    for compressor in (None, Compressor("zlib")):
        root = tmp_path / str(len(files))
        writer = LogWriter.open(
            str(root), clock=ManualClock(), roll=lodeq.journal.Roll(), compressor=compressor
        )
        writer.append([b"a", NOISE])
        writer.close()
        files.append(Path(writer.files[0].path).read_bytes())
    assert files[0] == files[1]


def test_an_unknown_one_and_a_missing_extra_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(lodeq.UsageError, match="'lz4' is not"):
        open_journal(tmp_path / "j", compression="lz4")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(lodeq.UsageError, match="needs an extra"):
        open_journal(tmp_path / "j", compression="zstd")
