"""``lodeq segments lag``: how far named tailers are behind."""

from pathlib import Path

import pytest
from support_service import AT_US, MESSAGES, open_journal

from lodeq.segments.journal.positions import store_place
from lodeq.segments.journal.small_files import TailerPosition
from lodeq.service.cli.maintenance import segments
from lodeq.testing import ManualClock


@pytest.fixture
def root(tmp_path: Path, monkeypatch) -> Path:
    import datetime

    writer = open_journal(tmp_path / "journal", records=2)
    for message in MESSAGES:
        writer.append([message])
    writer.close()
    at = datetime.datetime.fromtimestamp(AT_US // 1_000_000 + 90, datetime.UTC)
    monkeypatch.setattr(segments, "SystemClock", lambda: ManualClock(at))
    return tmp_path / "journal"


def store(root: Path, name: str, following: int) -> None:
    store_place(str(root), name, TailerPosition(following, AT_US))


def test_each_tailer(root: Path, cli) -> None:
    store(root, "slow", 2)
    store(root, "done", 4)
    done, slow = cli.json("lag", root)
    assert slow == {
        "tailer": "slow",
        "next": 2,
        "behind": 2,
        "first_unread_at": "2023-11-14T22:13:20Z",
        "age_s": 90.0,
        "stored_at": "2023-11-14T22:13:20Z",
    }
    assert (done["behind"], done["first_unread_at"], done["age_s"]) == (0, None, None)
    assert [line.split() for line in cli("lag", root).stdout.splitlines()] == [
        ["tailer", "next", "behind", "age"],
        ["done", "4", "0"],
        ["slow", "2", "2", "90.0", "s"],
    ]


def test_what_it_has_not_read_may_be_gone(root: Path, cli) -> None:
    store(root, "slow", 1)
    next(root.rglob(f"{1:020}.log")).unlink()
    (slow,) = cli.json("lag", root)
    assert (slow["behind"], slow["age_s"]) == (3, 90.0)


def test_no_tailer(root: Path, cli) -> None:
    assert cli.json("lag", root) == []


def test_a_damaged_place_does_not_hide_the_others(root: Path, cli) -> None:
    store(root, "a", 1)
    store(root, "c", 1)
    (root / "tailers" / "b").write_bytes(b"?")
    result = cli("lag", root, "--json", code=1)
    assert len(result.stdout.splitlines()) == 2
    assert "tailers/b at 0" in result.stderr


@pytest.mark.parametrize("name", ["body.sqs", "ledgerq"])
def test_only_a_journal_has_tailers(name: str, make, cli) -> None:
    assert "not the folder of a journal" in cli("lag", make(name).path, code=2).stderr
