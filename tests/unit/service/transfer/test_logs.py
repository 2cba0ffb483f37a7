"""From a Rust queue and from RabbitMQ's message store: payloads, in order, around damage."""

import datetime
from pathlib import Path

import pytest
from support_import import run_import, tasks_of
from support_service import IDS, MESSAGES, spoil, state_of

from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.formats.rust_queue.reader import Variant
from lodeq.segments.formats.rust_queue.writer import write_directory
from lodeq.service.transfer.entries import CONTENT_TYPE

pytestmark = pytest.mark.slow
DAY = datetime.date(2023, 11, 14)


@pytest.mark.parametrize("variant", list(Variant))
def test_a_rust_queue_of_several_files(tmp_path: Path, variant: Variant) -> None:
    payloads = [b"payload %d" % n for n in range(40)]
    source = tmp_path / "source"
    write_directory(source, payloads, day=DAY, variant=variant, file_bytes=200)
    before = state_of(source)
    report = run_import("rust-queue", source, tmp_path / "store")
    assert (report.imported, report.unreadables) == (40, 0)
    assert [task.payload for task in tasks_of(tmp_path / "store")] == payloads
    assert state_of(source) == before


def test_equal_payloads_are_as_many_tasks(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_directory(source, [b"same"] * 5, day=DAY)
    assert run_import("rust-queue", source, tmp_path / "store").imported == 5
    assert run_import("rust-queue", source, tmp_path / "store").already == 5
    assert len(tasks_of(tmp_path / "store")) == 5


def test_damage_and_missing_files_of_a_rust_queue_are_told(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_directory(source, MESSAGES * 9, day=DAY, file_bytes=200)
    files = sorted(source.rglob("*.data"))
    at = spoil(files[0])
    lost = sum(files[2].read_bytes().count(text) for text in MESSAGES)
    files[2].unlink()
    report = run_import("rust-queue", source, tmp_path / "store")
    assert report.imported == 27 - 1 - lost
    places = {(one.file, one.damage.offset) for one in report.unreadable}
    name = files[0].relative_to(source).as_posix()
    assert any(file == name and offset <= at for file, offset in places)
    assert any(files[2].name in file for file, _ in places)


@pytest.mark.parametrize("file_bytes", [1 << 20, 200])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_records_that_only_the_small_files_of_a_rust_queue_know_of_are_missing(
    tmp_path: Path, file_bytes: int, is_emptied: bool
) -> None:
    source = tmp_path / "source"
    write_directory(source, [b"payload"] * 40, day=DAY, file_bytes=file_bytes)
    cut = min(source.rglob("*.data"))
    size = cut.stat().st_size
    cut.write_bytes(b"" if is_emptied else cut.read_bytes()[: -len(b"payload") - 8])
    lost = (size - cut.stat().st_size) // (len(b"payload") + 8)
    name = cut.relative_to(source).as_posix()
    for _ in range(2):
        report = run_import("rust-queue", source, tmp_path / "store")
        assert report.imported + report.already == 40 - lost
        places = [(one.file, one.damage.offset) for one in report.unreadable]
        assert places == [(name, cut.stat().st_size)]


def test_bodies_of_rabbitmq_stay_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    etf = b"\x83m\x00\x00\x00\x03abc"
    (source / "0.rdq").write_bytes(Rdq().encode(IDS[0], etf) + Rdq().encode(IDS[1], b"plain"))
    (source / "1.sqs").write_bytes(HEADER + Sqs().encode(IDS[2], b"converted"))
    report = run_import("rdq", source, tmp_path / "store")
    assert (report.imported, report.unreadables) == (3, 0)
    found = tasks_of(tmp_path / "store")
    assert [task.payload for task in found] == [etf, b"plain", b"converted"]
    assert found[0].headers == {
        CONTENT_TYPE: "application/x-erlang-binary",
        "message-id": IDS[0].hex(),
    }
    assert found[1].headers == {"message-id": IDS[1].hex()}


def test_an_import_goes_on_behind_its_mark(tmp_path: Path) -> None:
    """Also where the marked file has damage, and after it has grown."""
    source = tmp_path / "source"
    source.mkdir()
    file = source / "0.rdq"
    file.write_bytes(Rdq().encode(IDS[0], b"a") + b"damaged" + Rdq().encode(IDS[1], b"b"))
    first = run_import("rdq", source, tmp_path / "store")
    assert (first.imported, first.unreadables) == (2, 1)
    with file.open("ab") as more:
        more.write(b"damaged too" + Rdq().encode(IDS[2], b"c"))
    second = run_import("rdq", source, tmp_path / "store")
    assert (second.imported, second.already, second.unreadables) == (1, 2, 2)
    assert [task.payload for task in tasks_of(tmp_path / "store")] == [b"a", b"b", b"c"]


def test_a_mark_that_is_not_there_any_more_counts_for_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    file = source / "0.rdq"
    file.write_bytes(Rdq().encode(IDS[0], b"a") + Rdq().encode(IDS[1], b"b"))
    run_import("rdq", source, tmp_path / "store")
    file.write_bytes(Rdq().encode(IDS[1], b"b") + Rdq().encode(IDS[2], b"c"))  # compacted, and on
    report = run_import("rdq", source, tmp_path / "store")
    assert (report.imported, report.already) == (1, 1)


def test_two_rust_queues_share_no_keys(tmp_path: Path) -> None:
    """The same payloads at the same places are as many tasks; a path is a source's name."""
    a, b, store = tmp_path / "a", tmp_path / "b", tmp_path / "store"
    write_directory(a, [b"tick", b"tick", b"A3"], day=DAY)
    write_directory(b, [b"tick", b"tick", b"B3"], day=DAY)
    assert run_import("rust-queue", a, store).imported == 3
    report = run_import("rust-queue", b, store)
    assert (report.imported, report.already) == (3, 0)
    assert len(tasks_of(store)) == 6


@pytest.mark.parametrize("keeps_note", [True, False])
def test_a_rust_queue_that_was_moved_is_known_by_its_id(tmp_path: Path, keeps_note: bool) -> None:
    old, new, store = tmp_path / "old", tmp_path / "new", tmp_path / "store"
    write_directory(old, [b"tick", b"tock"], day=DAY)
    assert run_import("rust-queue", old, store).imported == 2
    old.rename(new)
    for note in [] if keeps_note else store.glob("import-*"):
        note.unlink()
    report = run_import("rust-queue", new, store, source_id=str(old.resolve()))
    assert (report.imported, report.already) == (0, 2)
    report = run_import("rust-queue", new, store, source_id="another")
    assert (report.imported, report.already) == (2, 0)
    assert run_import("rust-queue", new, store, source_id="another").already == 2
