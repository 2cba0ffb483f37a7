"""From persist-queue's queue of files: as three serializers frame it, around damage."""

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from support_import import PICKLED, bomb, run_import, tasks_of
from support_service import state_of

from lodeq import UsageError
from lodeq.service.transfer.chunk_files import ChunkFiles
from lodeq.service.transfer.entries import CONTENT_TYPE, PICKLE, Unreadable

pytestmark = pytest.mark.slow

Frame = Callable[[bytes], bytes]


def pickled_info(tail: tuple[int, int, int], head: tuple[int, int, int]) -> bytes:
    """As version 1.1 writes it, for numbers of a byte."""
    lists = [b"]\x94(" + b"".join(b"K%c" % n for n in ends) + b"e" for ends in (tail, head)]
    names = (b"chunksize", b"size", b"tail", b"head")
    values = [b"K\x03", b"K\x06", *lists]
    items = b"".join(
        b"\x8c%c%b\x94%b" % (len(name), name, value)
        for name, value in zip(names, values, strict=True)
    )
    return b"\x80\x04}\x94(" + items + b"u."


def info(tail: tuple[int, int, int], head: tuple[int, int, int]) -> dict[str, object]:
    return {"chunksize": 3, "size": 4, "tail": list(tail), "head": list(head)}


def sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "little") + raw


def line(raw: bytes) -> bytes:
    return raw + b"\n"


SERIALIZERS: dict[str, tuple[list[bytes], Frame, Callable[..., bytes]]] = {
    PICKLE: (
        [b"\x80\x04K%c." % n for n in range(5)],
        lambda raw: raw,
        pickled_info,
    ),
    "application/json": (
        [b'{"n": %d}' % n for n in range(5)],
        line,
        lambda *ends: line(json.dumps(info(*ends)).encode()),
    ),
    "application/msgpack": (
        [msgpack.packb({"n": n}) for n in range(5)],
        sized,
        lambda *ends: sized(msgpack.packb(info(*ends))),
    ),
}


def make(folder: Path, content_type: str) -> list[bytes]:
    """Five items, three a file, the first of them over, and half of one behind the end."""
    items, frame, encode = SERIALIZERS[content_type]
    framed = [frame(item) for item in items]
    folder.mkdir()
    (folder / "q00000").write_bytes(b"".join(framed[:3]))
    (folder / "q00001").write_bytes(b"".join(framed[3:]) + framed[0][:-1])
    ends = (0, 1, len(framed[0])), (1, 2, len(b"".join(framed[3:])))
    (folder / "info").write_bytes(encode(*ends))
    return items


@pytest.mark.parametrize("content_type", SERIALIZERS)
def test_items_come_in_order_as_they_are(tmp_path: Path, content_type: str) -> None:
    items = make(tmp_path / "source", content_type)
    before = state_of(tmp_path / "source")
    report = run_import("persist-queue", tmp_path / "source", tmp_path / "store")
    assert (report.imported, report.unreadables) == (4, 0)
    found = tasks_of(tmp_path / "store")
    assert [task.payload for task in found] == items[1:]
    assert found[0].headers == {CONTENT_TYPE: content_type}
    assert state_of(tmp_path / "source") == before
    assert run_import("persist-queue", tmp_path / "source", tmp_path / "store").already == 4


def told(folder: Path) -> tuple[list[bytes], list[tuple[str, int]]]:
    payloads, problems = [], []
    for one in ChunkFiles(str(folder)).entries():
        if isinstance(one, Unreadable):
            problems.append((one.file, one.damage.offset))
        else:
            payloads.append(one.payload)
    return payloads, problems


@pytest.mark.parametrize("content_type", [PICKLE, "application/msgpack"])
def test_behind_damage_the_next_file_goes_on(tmp_path: Path, content_type: str) -> None:
    items = make(tmp_path / "q", content_type)
    file = tmp_path / "q" / "q00000"
    size = len(file.read_bytes()) // 3
    file.write_bytes(file.read_bytes()[: 2 * size] + b"\xff" * size)
    assert told(tmp_path / "q") == ([items[1], *items[3:]], [("q00000", 2 * size)])


def test_without_a_position_all_that_is_there_waits(tmp_path: Path) -> None:
    items = make(tmp_path / "q", PICKLE)
    (tmp_path / "q" / "info").unlink()
    last = len(items[0])
    assert told(tmp_path / "q") == (items, [("q00001", 2 * last)])
    (tmp_path / "q" / "info").write_bytes(b"\x80\x04N.")
    assert told(tmp_path / "q") == (items, [("info", 0), ("q00001", 2 * last)])


def test_files_that_are_gone_or_cut_are_told(tmp_path: Path) -> None:
    items = make(tmp_path / "q", PICKLE)
    (tmp_path / "q" / "q00000").unlink()
    file = tmp_path / "q" / "q00001"
    file.write_bytes(items[3])
    assert told(tmp_path / "q") == ([items[3]], [("q00000", 0), ("q00001", len(items[3]))])


def test_cbor_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "q", PICKLE)
    (tmp_path / "q" / "info").write_bytes(sized(b"\xa4ichunksize"))
    with pytest.raises(UsageError, match="cbor2"):
        ChunkFiles(str(tmp_path / "q"))


def test_nothing_is_loaded(tmp_path: Path) -> None:
    folder, target = tmp_path / "q", tmp_path / "made by a pickle"
    folder.mkdir()
    (folder / "q00000").write_bytes(bomb(target) + PICKLED)
    (folder / "info").write_bytes(bomb(target))
    payloads, problems = told(folder)
    assert (payloads, problems) == ([bomb(target), PICKLED], [("info", 0)])
    assert not target.exists()


def test_two_queues_of_files_share_no_keys(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for name in ("a", "b"):
        make(tmp_path / name, PICKLE)
        report = run_import("persist-queue", tmp_path / name, store)
        assert (report.imported, report.already) == (4, 0)
    (tmp_path / "a").rename(tmp_path / "c")
    report = run_import("persist-queue", tmp_path / "c", store, source_id=str(tmp_path / "a"))
    assert (report.imported, report.already) == (0, 4)
