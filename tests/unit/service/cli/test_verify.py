"""``lodeq segments verify``: every finding, with file, offset and size."""

from pathlib import Path

import pytest
from support_service import MESSAGES, open_journal, spoil

from lodeq.segments.journal.layout import LogFile, list_files
from lodeq.segments.journal.log_format import HEADER_BYTES
from lodeq.segments.journal.small_files import IndexEntry, decode_index, encode_index


def test_nothing_is_wrong(place, cli) -> None:
    assert "nothing is wrong" in cli("verify", place.path).stdout
    assert cli("verify", place.path, "--json").stdout == ""


def test_damage_of_every_format(place, cli) -> None:
    at = spoil(place.file)
    found = cli.json("verify", place.path, code=1)
    assert all(one.keys() == {"file", "offset", "size", "reason"} for one in found)
    first = found[0]
    assert place.file.name == Path(first["file"]).name
    assert first["offset"] <= at <= first["offset"] + first["size"]
    out = cli("verify", place.path, code=1).stdout
    assert all(one["reason"] in out for one in found)


def test_a_single_file(place, cli) -> None:
    assert "nothing is wrong" in cli("verify", place.file).stdout
    spoil(place.file)
    assert cli.json("verify", place.file, code=1)[0]["size"] > 0


class TestJournal:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "journal"
        writer = open_journal(root, records=2)
        for n in range(6):
            writer.append([MESSAGES[n % 3]])
        writer.close()
        return root

    def reasons(self, root: Path, cli) -> list[tuple[str, str]]:
        return [(Path(one["file"]).name, one["reason"]) for one in cli.json("verify", root, code=1)]

    def test_a_file_is_gone(self, root: Path, cli) -> None:
        next(root.rglob(f"{3:020}.log")).unlink()
        assert self.reasons(root, cli) == [
            (f"{5:020}.log", "begins with record 5 where 3 should be")
        ]

    def test_what_was_durable_is_gone(self, root: Path, cli) -> None:
        next(root.rglob(f"{5:020}.log")).unlink()
        assert self.reasons(root, cli) == [("position", "records 5 to 6 were durable and are gone")]

    def test_a_file_of_another_name(self, root: Path, cli) -> None:
        log = next(root.rglob(f"{3:020}.log"))
        log.rename(log.with_name(f"{4:020}.log"))
        assert (f"{4:020}.log", "its header says record 3") in self.reasons(root, cli)

    def test_a_header(self, root: Path, cli) -> None:
        log = next(root.rglob(f"{1:020}.log"))
        data = bytearray(log.read_bytes())
        data[20] ^= 1
        log.write_bytes(data)
        assert self.reasons(root, cli) == [(log.name, "checksum of the header")]
        assert "checksum of the header" in cli("dump", root, code=1).stderr

    def test_a_header_that_is_not_whole(self, root: Path, cli) -> None:
        log = next(root.rglob(f"{5:020}.log"))
        log.write_bytes(log.read_bytes()[: HEADER_BYTES - 1])
        assert self.reasons(root, cli)[0] == (log.name, "the last record is not whole")

    def test_small_files(self, root: Path, cli) -> None:
        (root / "position").write_bytes(bytes(8192))
        (root / "tailers").mkdir()
        (root / "tailers" / "mailer").write_bytes(b"?")
        first, second = (next(root.rglob(f"{n:020}.idx")) for n in (1, 3))
        first.write_bytes(second.read_bytes())
        second.write_bytes(b"?")
        found = self.reasons(root, cli)
        assert [file for file, _ in found] == ["position", first.name, second.name, "mailer"]
        assert found[1][1] == "index: it belongs to another file"

    def test_a_missing_index_is_none(self, root: Path, cli) -> None:
        for index in root.rglob("*.idx"):
            index.unlink()
        assert cli.json("verify", root) == []

    @pytest.mark.parametrize(
        ("entry", "reason"),
        [
            (IndexEntry(1, 0, 70), "index: no frame lies at 70"),
            (IndexEntry(1, 0, 1 << 62), f"index: no frame lies at {1 << 62}"),
            (IndexEntry(2, 0, 64), "index: record 2 is not at 64"),
        ],
    )
    def test_an_index_that_leads_astray(
        self, entry: IndexEntry, reason: str, root: Path, cli
    ) -> None:
        index = next(root.rglob(f"{1:020}.idx"))
        whole = decode_index(index.read_bytes())
        index.write_bytes(encode_index(whole._replace(entries=[entry])))
        assert self.reasons(root, cli) == [(index.name, reason)]

    def test_an_index_that_leads_to_damage(self, root: Path, cli) -> None:
        log = next(root.rglob(f"{1:020}.log"))
        data = bytearray(log.read_bytes())
        data[HEADER_BYTES] ^= 1
        log.write_bytes(data)
        assert {file for file, _ in self.reasons(root, cli)} == {log.name}

    @pytest.mark.parametrize(
        ("command", "option"),
        [("dump", "--json"), ("verify", "--json"), ("salvage", "--out=saved")],
    )
    def test_a_file_that_retention_removes_meanwhile(
        self, command: str, option: str, root: Path, cli, monkeypatch
    ) -> None:
        def listed_before(root: str) -> list[LogFile]:
            first, *others = list_files(root)
            return [first._replace(path=f"{first.path[:-5]}9.log"), *others]

        monkeypatch.chdir(root.parent)
        monkeypatch.setattr("lodeq.service.shared.file_reader.list_files", listed_before)
        out = cli(command, root, option).output
        assert len(out.splitlines()) == {"dump": 4, "verify": 0, "salvage": 1}[command]


def test_a_file_that_the_manifest_has(make, cli, tmp_path: Path) -> None:
    place = make("rust")
    place.file.unlink()
    (one,) = cli.json("verify", place.path, code=1)
    assert one["file"] == "2023/11/14/20231114-0000.data"
    result = cli("salvage", place.path, "--out", tmp_path / "saved", code=1)
    assert result.stderr.startswith(one["file"])
