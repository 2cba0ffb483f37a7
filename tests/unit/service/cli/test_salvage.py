"""``lodeq segments salvage``: what can be read, whole, in a new file of the same format."""

import errno
import json
import os
from pathlib import Path

import pytest
from support_service import AT, AT_US, IDS, MESSAGES, open_journal, spoil, state_of

from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.formats.ledgerq.codec import SegmentHeader, encode, encode_header
from lodeq.segments.formats.ledgerq.folder import read_directory
from lodeq.segments.formats.ledgerq.state import Metadata, RetryState, encode_metadata
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.formats.rust_queue.codec import variant_of
from lodeq.segments.formats.rust_queue.reader import Variant
from lodeq.segments.formats.rust_queue.writer import write_directory as write_rust
from lodeq.segments.item import Record
from lodeq.segments.source import FileSource


def payloads(cli, path: Path) -> list[str]:
    return [one["payload"] for one in cli.json("dump", path)]


def test_all_of_what_is_whole(place, tmp_path: Path, cli) -> None:
    out = tmp_path / place.save_as
    before = state_of(place.path)
    (told,) = cli.json("salvage", place.path, "--out", out)
    assert (told["records"], told["damages"], told["damage"]) == (3, 0, [])
    assert payloads(cli, out) == payloads(cli, place.path)
    assert cli("verify", out).exit_code == 0
    assert state_of(place.path) == before
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_is_left_behind_damage(place, tmp_path: Path, cli) -> None:
    spoil(place.file)
    left = cli("dump", place.path, "--json", code=1).stdout.splitlines()
    out = tmp_path / place.save_as
    result = cli("salvage", place.path, "--out", out, "--json", code=1)
    told = json.loads(result.stdout)
    assert told["records"] == len(left)
    assert told["damaged_bytes"] == sum(one["size"] for one in told["damage"]) > 0
    assert place.file.name in result.stderr
    assert payloads(cli, out) == [json.loads(line)["payload"] for line in left]


def test_a_single_file(place, tmp_path: Path, cli) -> None:
    out = tmp_path / place.save_as
    assert "records saved to" in cli("salvage", place.file, "--out", out).stdout
    assert payloads(cli, out) == payloads(cli, place.file)


@pytest.mark.parametrize("is_folder", [True, False])
def test_an_out_that_exists_is_refused(is_folder: bool, place, tmp_path: Path, cli) -> None:
    out = tmp_path / place.save_as
    out.mkdir() if is_folder else out.write_bytes(b"mine")
    before = state_of(tmp_path)
    assert "exists" in cli("salvage", place.path, "--out", out, code=2).stderr
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("name", ["stores", "ledgerq", "rust", "journal"])
def test_an_out_within_is_refused(name: str, make, cli) -> None:
    path = make(name).path
    before = state_of(path)
    assert "within" in cli("salvage", path, "--out", path / "saved", code=2).stderr
    assert state_of(path) == before


def test_a_full_disk_leaves_nothing(place, tmp_path: Path, cli, monkeypatch) -> None:
    cli("verify", place.path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    before = state_of(place.path)
    assert "No space" in cli("salvage", place.path, "--out", tmp_path / "saved", code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == [place.path.name]
    assert state_of(place.path) == before


def test_an_id_in_two_files_is_saved_once(cli, make, tmp_path: Path) -> None:
    place = make("stores")
    (place.path / "9.rdq").write_bytes(
        Rdq().encode(IDS[0], b"again") + Rdq().encode(bytes(16), b"x")
    )
    result = cli("salvage", place.path, "--out", tmp_path / "saved.sqs", code=1)
    assert "its id has come before" in result.stderr
    with FileSource(tmp_path / "saved.sqs") as source:
        found = [item for item in Sqs().scan(source) if isinstance(item, Record)]
    assert [record.payload for record in found] == [*MESSAGES, b"x"]


def test_frames_of_a_journal_stay_as_they_are(cli, tmp_path: Path) -> None:
    writer = open_journal(tmp_path / "journal", records=4)
    for _ in range(3):
        writer.append(MESSAGES, times_us=[AT_US, 5, 0])
    writer.close()
    (told,) = cli.json("salvage", tmp_path / "journal", "--out", tmp_path / "saved.log")
    assert told["records"] == 9
    before, after = (cli.json("dump", tmp_path / name) for name in ("journal", "saved.log"))
    assert [(one["id"], one["timestamp"]) for one in after] == [
        (one["id"], one["timestamp"]) for one in before
    ]
    assert cli.json("verify", tmp_path / "saved.log") == []


def test_a_journal_without_a_record(cli, tmp_path: Path) -> None:
    open_journal(tmp_path / "journal").close()
    cli("salvage", tmp_path / "journal", "--out", tmp_path / "saved.log")
    assert cli.json("dump", tmp_path / "saved.log") == []


def record(number: int, **fields: int) -> bytes:
    return encode(
        Record(0, 0, b"%d" % number, sequence=number, timestamp_ns=AT_US * 1000, **fields)
    )


class TestLedgerQ:
    def save(self, folder: Path, out: Path, cli, code: int = 0) -> list[int]:
        cli("salvage", folder, "--out", out, code=code)
        return [one["id"] for one in cli.json("dump", out)]

    def test_what_was_read_stays_read(self, cli, make, tmp_path: Path) -> None:
        place = make("ledgerq")
        (place.path / "metadata.dat").write_bytes(encode_metadata(Metadata(9, 3)))
        assert self.save(place.path, tmp_path / "saved", cli) == [1, 2, 3]
        assert read_directory(tmp_path / "saved").metadata == Metadata(9, 3)

    def test_a_position_that_cannot_be(self, cli, make, tmp_path: Path) -> None:
        place = make("ledgerq")
        (place.path / "metadata.dat").write_bytes(encode_metadata(Metadata(2, 900)))
        assert self.save(place.path, tmp_path / "saved", cli) == [1, 2, 3]
        assert read_directory(tmp_path / "saved").metadata == Metadata(4, 1)

    def test_ids_that_do_not_ascend_are_changed_and_told(self, cli, tmp_path: Path) -> None:
        folder = tmp_path / "queue"
        folder.mkdir()
        for base, numbers in ((1, (1, 2, 3)), (1_000_001, (2, 3, 7))):
            head = encode_header(SegmentHeader(base, AT_US * 1000))
            (folder / f"{base:020}.log").write_bytes(head + b"".join(map(record, numbers)))
        assert self.save(folder, tmp_path / "saved", cli, code=1) == [1, 2, 3, 4, 5, 7]

    def test_a_damaged_small_file_is_told(self, cli, make, tmp_path: Path) -> None:
        place = make("ledgerq")
        (place.path / ".retry_state.json").write_bytes(b"{")
        (place.path / "metadata.dat").write_bytes(b"?")
        result = cli("salvage", place.path, "--out", tmp_path / "saved", code=1)
        assert "metadata.dat at 0" in result.stderr
        assert ".retry_state.json at 0" in result.stderr
        assert read_directory(tmp_path / "saved").retries is None

    def test_failures_are_kept(self, cli, make, tmp_path: Path) -> None:
        place = make("ledgerq")
        state = b'{"version": 1, "max_retries": 3, "entries": []}'
        (place.path / ".retry_state.json").write_bytes(state)
        self.save(place.path, tmp_path / "saved", cli)
        assert read_directory(tmp_path / "saved").retries == RetryState(3)

    def test_a_priority_that_cannot_be(self, cli, tmp_path: Path, monkeypatch) -> None:
        raw = bytearray(record(1, priority=2))
        raw[22] = 9
        from lodeq.segments.checksums import crc32c

        raw[-8:-4] = crc32c(bytes(raw[:-8])).to_bytes(4, "little")
        path = tmp_path / "1.log"
        path.write_bytes(encode_header(SegmentHeader(1, AT_US * 1000)) + raw)
        result = cli("salvage", path, "--out", tmp_path / "saved", code=1)
        assert "priority 9 becomes 2" in result.stderr
        assert cli.json("dump", tmp_path / "saved")[0]["priority"] == 2


class TestRustQueue:
    @pytest.mark.parametrize("variant", Variant)
    def test_the_checksum_stays(self, variant: Variant, cli, tmp_path: Path) -> None:
        write_rust(tmp_path / "queue", MESSAGES, day=AT.date(), variant=variant)
        cli("salvage", tmp_path / "queue", "--out", tmp_path / "saved")
        (file,) = (tmp_path / "saved").rglob("*.data")
        assert file.name == "20231114-0000.data"
        with FileSource(file) as source:
            assert variant_of(source) is variant

    def test_what_it_cannot_hold_is_told(self, cli, make, tmp_path: Path) -> None:
        place = make("rust")
        data = place.file.read_bytes()
        place.file.write_bytes(data[:21] + bytes.fromhex("000000001cdf4421") + data[21:])
        result = cli("salvage", place.path, "--out", tmp_path / "saved", code=1)
        assert "not saved: an empty payload" in result.stderr
        assert len(cli.json("dump", tmp_path / "saved")) == 3

    def test_a_file_of_another_name(self, cli, make, tmp_path: Path) -> None:
        path = tmp_path / "some.data"
        path.write_bytes(make("rust").file.read_bytes())
        os.utime(path, (AT.timestamp(), AT.timestamp()))
        cli("salvage", path, "--out", tmp_path / "saved")
        assert (tmp_path / "saved" / "2023" / "11" / "14").is_dir()


def test_a_record_that_is_too_large_for_an_sqs(cli, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "1.rdq"
    path.write_bytes(Rdq().encode(IDS[0], b"x" * 100) + Rdq().encode(IDS[1], b"y"))
    monkeypatch.setattr("lodeq.segments.bodies.sqs.SIZE_MAX", 60)
    result = cli("salvage", path, "--out", tmp_path / "1.sqs", code=1)
    assert "not saved" in result.stderr
    assert (tmp_path / "1.sqs").read_bytes() == HEADER + Sqs().encode(IDS[1], b"y")
