"""Which format: by magic, by suffix where there is none, by names in a folder; else it is asked."""

from pathlib import Path

import pytest
from support_service import MAKERS

from lodeq.errors import StorageError, UsageError
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.detect import FORMATS, codec_of, detect, is_ours
from lodeq.segments.formats.ledgerq.index import Index
from lodeq.segments.formats.ledgerq.index import encode_index as encode_ledgerq_index
from lodeq.segments.journal.log_format import encode_header

EXPECTED = {
    "body.sqs": "sqs",
    "foreign.sqs": "sqs",
    "old.rdq": "rdq",
    "stores": "sqs",
    "ledgerq": "ledgerq",
    "rust": "rust-queue",
    "journal": "journal",
}


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_format(name: str, tmp_path: Path) -> None:
    place = MAKERS[name](tmp_path / name)
    assert detect(place.path).format == detect(place.file).format == EXPECTED[name]
    assert detect(place.path).is_folder == place.path.is_dir()
    assert codec_of(str(place.file), EXPECTED[name]).name == EXPECTED[name]


@pytest.mark.parametrize("name", ["body.sqs", "foreign.sqs", "ledgerq", "journal"])
def test_a_magic_counts_whatever_the_name(name: str, tmp_path: Path) -> None:
    place = MAKERS[name](tmp_path / name)
    other = tmp_path / "other.rdq"
    other.write_bytes(place.file.read_bytes())
    assert detect(other).format == EXPECTED[name]


@pytest.mark.parametrize(
    ("suffix", "name"), [("sqs", "sqs"), ("rdq", "rdq"), ("data", "rust-queue")]
)
@pytest.mark.parametrize("data", [b"", b"????", bytes(100)])
def test_a_suffix_counts_where_there_is_no_magic(
    suffix: str, name: str, data: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"1.{suffix}"
    path.write_bytes(data)
    assert detect(path).format == name


@pytest.mark.parametrize("name", ["1.log", "1", "1.idx"])
def test_what_cannot_be_told_is_asked(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"?" * 100)
    with pytest.raises(UsageError, match="--format"):
        detect(path)
    assert detect(path, "journal").format == "journal"


def test_a_format_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=", ".join(FORMATS)):
        detect(tmp_path, "zip")


def test_files_that_belong_to_others(tmp_path: Path) -> None:
    journal = MAKERS["journal"](tmp_path / "journal").path
    index = tmp_path / "1.idx"
    index.write_bytes(encode_ledgerq_index(Index(1, ())))
    for path in (journal / "position", *journal.rglob("*.idx"), index):
        with pytest.raises(UsageError, match="give the log file"):
            detect(path)


class TestFolder:
    def test_without_its_small_files(self, tmp_path: Path) -> None:
        for name, small in (("journal", "position"), ("ledgerq", "metadata.dat")):
            place = MAKERS[name](tmp_path / name)
            (place.path / small).unlink()
            assert detect(place.path).format == name
        rust = MAKERS["rust"](tmp_path / "rust").path
        for path in rust.glob("manifest.*"):
            path.unlink()
        assert detect(rust).format == "rust-queue"

    def test_both_of_a_store_that_was_converted(self, tmp_path: Path) -> None:
        (tmp_path / "1.rdq").touch()
        assert detect(tmp_path).format == "rdq"
        (tmp_path / "2.sqs").touch()
        assert detect(tmp_path).format == "sqs"

    def test_a_day_of_a_journal(self, tmp_path: Path) -> None:
        (tmp_path / f"{1:020}.log").write_bytes(encode_header(1, 0))
        with pytest.raises(UsageError, match="the journal's folder"):
            detect(tmp_path)

    def test_nothing_that_is_known(self, tmp_path: Path) -> None:
        (tmp_path / "LOCK").touch()
        (tmp_path / "position").write_bytes(b"12,5")
        with pytest.raises(UsageError, match="holds no segments"):
            detect(tmp_path)

    def test_several(self, tmp_path: Path) -> None:
        (tmp_path / "1.sqs").touch()
        (tmp_path / "metadata.dat").touch()
        with pytest.raises(UsageError, match="ledgerq or sqs"):
            detect(tmp_path)
        assert detect(tmp_path, "sqs").format == "sqs"

    def test_one_that_cannot_be_read(self, tmp_path: Path, monkeypatch) -> None:
        def refuse(path: str) -> list[str]:
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr("os.listdir", refuse)
        with pytest.raises(StorageError, match="cannot list"):
            detect(tmp_path)


def test_links_are_followed_once(tmp_path: Path) -> None:
    path = tmp_path / "1.sqs"
    path.write_bytes(HEADER)
    (tmp_path / "link").symlink_to(path)
    assert detect(tmp_path / "link").path == str(path)


@pytest.mark.parametrize(
    ("data", "ours"),
    [(HEADER, True), (HEADER[:4] + b"\3", False), (b"RSQS\2", False), (b"", False)],
)
def test_ours(data: bytes, ours: bool, tmp_path: Path) -> None:
    path = tmp_path / "1.sqs"
    path.write_bytes(data)
    assert is_ours(str(path)) is ours


def test_a_foreign_sqs_has_a_foreign_codec(tmp_path: Path) -> None:
    path = MAKERS["foreign.sqs"](tmp_path / "1.sqs").path
    assert codec_of(str(path), "sqs") == Sqs(foreign=True)
