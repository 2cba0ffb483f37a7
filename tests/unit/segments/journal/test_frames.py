"""What could not be read again is never taken, and what was written so is never cut off."""

from array import array
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support_loop import on_loop

import lodeq
from lodeq.segments.journal.journal import Journal
from lodeq.segments.journal.log_format import META_BYTES_MAX, encode_frame
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.journal.open import open_journal
from lodeq.segments.source import FileSource
from lodeq.testing import ManualClock

BAD: list[dict[str, Any]] = [
    {"payloads": []},
    {"payloads": ["text"]},
    {"payloads": [memoryview(array("I", [1, 2]))]},
    {"payloads": [b"a"], "headers": [{"k": 1}]},
    {"payloads": [b"a"], "headers": [{None: "a"}]},
    {"payloads": [b"a"], "headers": ["text"]},
    {"payloads": [b"a"], "headers": [{"k": "\ud800"}]},
    {"payloads": [b"a"], "headers": [None, None]},
    {"payloads": [b"a", b"b"], "times_us": [1]},
    {"payloads": [b"a", b"b"], "ttls": [1.0]},
    {"payloads": [b"a"], "ttls": ["1"]},
    {"payloads": [b"a"], "times_us": [1.5]},
    {"payloads": [b"a"], "times_us": [True]},
    {"payloads": [b"a"], "times_us": [1 << 64]},
    {"payloads": [b"a"], "times_us": [-1 << 64]},
]


async def written(path: Path) -> Journal:
    return await open_journal(path, clock=ManualClock())


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("bad", BAD, ids=map(str, range(len(BAD))))
@on_loop
async def test_a_batch_that_could_not_be_read_is_refused(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    journal = await written(tmp_path / "j")
    with pytest.raises(lodeq.UsageError) as refused:
        await journal.append_many(**bad)
    assert type(refused.value) is lodeq.UsageError
    assert journal.following == 1
    await journal.append(b"a", until="fsynced")
    await journal.close()
    journal = await written(tmp_path / "j")
    assert (journal.following, journal.findings) == (2, ())
    await journal.close()


@on_loop
async def test_headers_are_as_large_as_they_can_be_read(tmp_path: Path) -> None:
    journal = await written(tmp_path / "j")
    room = META_BYTES_MAX - len(msgpack.packb({"h": {"n": ""}})) - 4  # a long text's length
    with pytest.raises(lodeq.PayloadTooLargeError) as large:
        await journal.append(b"a", headers={"n": "x" * (room + 1)})
    assert (large.value.size_bytes, large.value.limit_bytes) == (META_BYTES_MAX + 1, META_BYTES_MAX)
    await journal.append(b"a", headers={"n": "x" * room}, until="fsynced")
    journal._writer._let_go()  # as if killed: nothing is noted
    journal = await written(tmp_path / "j")
    assert (journal.following, journal.findings) == (2, ())
    (record,) = await journal.tailer().read()
    assert len(record.headers["n"]) == room
    await journal.close()


@on_loop
async def test_a_frame_whose_checks_hold_is_no_torn_tail(tmp_path: Path) -> None:
    journal = await written(tmp_path / "j")
    await journal.append(b"a", until="flushed")
    path = Path(journal._writer.files[0].path)
    journal._writer._let_go()
    whole = read(path)
    odd = encode_frame(2, 1, [b"b", b"c"], metas=[msgpack.packb({"new": 1}), b""])
    for behind in (b"", encode_frame(4, 1, [b"d"])):
        write(path, whole + odd + behind)
        journal = await written(tmp_path / "j")
        assert [(f.offset, f.size, f.reason) for f in journal.findings] == [
            (len(whole), len(odd), "metas of another version")
        ]
        assert journal.following == (5 if behind else 4)
        ack = await journal.append(b"next", until="flushed")
        assert read(path).startswith(whole + odd + behind)
        tailer = journal.tailer()
        assert [r.sequence for r in await tailer.read()] == [1, *range(4, ack.last + 1)]
        assert [(gap.first, gap.last) for gap in tailer.gaps] == [(2, 3)]
        with FileSource(path) as source:
            assert [d.reason for d in JournalLog().verify(source)] == [
                "metas of another version",
                "record 4 where 2 should be",
            ]
        journal._writer._let_go()
