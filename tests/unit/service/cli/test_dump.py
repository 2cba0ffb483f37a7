"""``lodeq segments dump``: every format, damaged or live, and nothing raw on the terminal."""

import base64
import gzip
from pathlib import Path

import pytest
from support_service import AT_US, IDS, MESSAGES, open_journal, spoil, state_of

from lodeq.engine.files.lockfile import LockFile
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.formats.ledgerq import codec
from lodeq.segments.item import Record
from lodeq.segments.journal.log_format import encode_frame
from lodeq.segments.journal.positions import store_place
from lodeq.segments.journal.small_files import TailerPosition as TailerPlace

KEYS = {"id", "offset", "file", "timestamp", "headers", "priority", "expires_at", "payload"}


def payloads(told: list[dict]) -> list[bytes]:
    return [base64.b64decode(one["payload"], validate=True) for one in told]


def test_json_of_every_format(place, cli) -> None:
    told = cli.json("dump", place.path)
    assert payloads(told) == MESSAGES
    assert all(one.keys() == KEYS for one in told)
    ids = [one["id"] for one in told]
    assert ids in ([id.hex() for id in IDS], [1, 2, 3], [0, 1, 2])
    for one, message in zip(told, MESSAGES, strict=True):
        file = place.path / one["file"] if place.path.is_dir() else place.path
        assert message in file.read_bytes()[one["offset"] :]


def test_a_file_of_a_folder(place, cli) -> None:
    told = payloads(cli.json("dump", place.file))
    assert told
    assert all(message in MESSAGES for message in told)


def test_the_table_shows_no_control_character(place, cli) -> None:
    out = cli("dump", place.path).stdout
    assert r"second \x1b[31m message" in out
    assert all(char.isprintable() or char == "\n" for char in out)
    assert len(out.splitlines()) == 4
    if place.path.name in ("journal", "ledgerq"):
        assert r"n=\x072" in out


def test_damage_is_passed_over(place, cli) -> None:
    spoil(place.file)
    result = cli("dump", place.path, "--json", code=1)
    left = result.stdout.splitlines()
    assert 1 <= len(left) <= 2
    assert place.file.name in result.stderr
    assert " at " in result.stderr


def test_a_longer_table_has_one_header(tmp_path: Path, cli) -> None:
    path = tmp_path / "1.sqs"
    records = (Sqs().encode(n.to_bytes(16, "big"), b"x") for n in range(450))
    path.write_bytes(HEADER + b"".join(records))
    out = cli("dump", path).stdout.splitlines()
    assert len(out) == 451
    assert sum("payload" in line for line in out) == 1
    assert len({line.index("1 B") for line in out[1:]}) == 1


def test_a_limit(place, cli) -> None:
    assert payloads(cli.json("dump", place.path, "--limit", 2)) == MESSAGES[:2]


def test_damage_behind_the_limit_is_not_met(cli, make) -> None:
    place = make("body.sqs")
    spoil(place.file)
    assert payloads(cli.json("dump", place.path, "--limit", 1)) == MESSAGES[:1]


def test_from_a_number(cli, make, tmp_path: Path) -> None:
    for name, numbers in (("journal", [2, 3]), ("ledgerq", [2, 3]), ("rust", [2])):
        told = cli.json("dump", make(name).path, "--from", 2)
        assert [one["id"] for one in told] == numbers, name
    assert "have no numbers" in cli("dump", make("body.sqs").path, "--from", 2, code=2).stderr


def test_from_a_number_reads_no_file_before_it(cli, make) -> None:
    place = make("journal")
    spoil(place.file)
    assert [one["id"] for one in cli.json("dump", place.path, "--from", 3)] == [3]
    assert cli.json("dump", place.path, "--from", 99) == []


def test_from_a_number_behind_damage(cli, tmp_path: Path) -> None:
    root = tmp_path / "journal"
    writer = open_journal(root)
    for n in range(1, 1001):
        writer.append([b"message %d." % n])
    writer.close()
    (log,) = root.rglob("*.log")
    spoil(log, b"message 700.")
    result = cli("dump", root, "--from", 690, "--json", code=1)
    told = [line.split(",")[0] for line in result.stdout.splitlines()]
    assert told == [f'{{"id":{n}' for n in range(690, 1001) if n != 700]
    assert cli.json("dump", log, "--from", 995)[0]["id"] == 995


def test_headers_only(place, cli) -> None:
    told = cli.json("dump", place.path, "--headers-only")
    assert [one["payload"] for one in told] == [None] * 3
    if place.path.name in ("journal", "ledgerq"):
        assert told[1]["headers"] == {"n": "\x072"}
    assert "message" not in cli("dump", place.path, "--headers-only").stdout


def test_headers_only_goes_on_behind_damage(cli, make) -> None:
    place = make("body.sqs")
    data = bytearray(place.path.read_bytes())
    data[102] = 9
    place.path.write_bytes(data)
    result = cli("dump", place.path, "--headers-only", "--json", code=1)
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.count("unrecognised_record_type") == 1


def test_fields(cli, tmp_path: Path) -> None:
    head = codec.encode_header(codec.SegmentHeader(1, AT_US * 1000))
    squeezed = gzip.compress(b"a" * 100)
    good = Record(
        0,
        0,
        squeezed,
        sequence=7,
        timestamp_ns=AT_US * 1000 + 5,
        priority=2,
        expires_ns=AT_US * 1000 + 10**9,
        headers={"k": "ä\udcff"},
        encoding="gzip",
    )
    bomb = Record(
        0, 0, squeezed[:-4] + b"\xff\xff\xff\xff", sequence=8, timestamp_ns=AT_US, encoding="gzip"
    )
    path = tmp_path / "1.log"
    path.write_bytes(head + codec.encode(good) + codec.encode(bomb))
    first, second = cli.json("dump", path, code=1)
    assert base64.b64decode(first["payload"]) == b"a" * 100
    assert "encoding" not in first
    assert first["timestamp"] == "2023-11-14T22:13:20.000000005Z"
    assert (first["expires_at"], first["priority"]) == ("2023-11-14T22:13:21Z", 2)
    assert first["headers"] == {"k": "ä\udcff"}  # a byte that is no UTF-8
    assert second["encoding"] == "gzip"
    assert "payload of 4294967295 bytes" in cli("dump", path, code=1).stderr


class TestLive:
    """A writer is at work. Nothing of it is changed, and its half record is no damage."""

    @pytest.mark.parametrize("command", ["dump", "verify", "lag"])
    def test_a_journal(self, command: str, tmp_path: Path, cli) -> None:
        root = tmp_path / "journal"
        writer = open_journal(root, records=2)
        for message in MESSAGES:
            writer.append([message])
        writer.flush()
        store_place(str(root), "mailer", TailerPlace(2, AT_US))
        newest = max(root.rglob("*.log"))
        with newest.open("ab") as file:
            file.write(encode_frame(4, AT_US, [b"half"])[:-3])
        before = state_of(root)
        cli(command, root)
        cli(command, root, "--json")
        if command != "lag":
            cli(command, newest)
        assert state_of(root) == before
        writer.close()
        if command != "lag":
            assert newest.name in cli(command, root, code=1).output

    @pytest.mark.parametrize("command", ["dump", "verify"])
    @pytest.mark.parametrize("tail", [bytes(1000), Sqs().encode(bytes(16), b"half")[:-1]])
    def test_bodies(self, command: str, tail: bytes, tmp_path: Path, cli) -> None:
        folder = tmp_path / "store" / "bodies"
        folder.mkdir(parents=True)
        for number in (2, 10):
            (folder / f"{number}.sqs").write_bytes(
                HEADER + Sqs().encode(bytes(15) + b"%c" % number, b"x")
            )
        with (folder / "10.sqs").open("ab") as file:
            file.write(tail)
        lock = LockFile.acquire(str(tmp_path / "store" / "lock"))
        before = state_of(tmp_path)
        cli(command, folder)
        cli(command, folder / "10.sqs")
        assert state_of(tmp_path) == before
        lock.release()
        cli(command, folder, code=1)

    @pytest.mark.parametrize("command", ["dump", "verify"])
    def test_every_format_stays_as_it_is(self, command: str, place, cli) -> None:
        spoil(place.file)
        before = state_of(place.path)
        cli(command, place.path, code=1)
        assert state_of(place.path) == before
