"""``lodeq segments migrate``: a store whose body files are of the older format."""

from pathlib import Path

import pytest
from support_bodies import SIZE, as_v1, names
from support_service import Cli

import lodeq


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three large payloads in ``1.rdq``."""
    with lodeq.sync.open(tmp_path / "s") as engine:
        queue = engine.queue("q")
        for i in range(3):
            queue.enqueue(b"%03d" % i + bytes(SIZE))
    as_v1(tmp_path)
    return tmp_path


def payloads(root: Path) -> list[bytes | None]:
    with lodeq.sync.open(root / "s") as engine:
        return [task.payload and task.payload[:3] for task in engine.queue("q").list("ready")]


def test_it_leaves_the_older_format_and_a_second_one_has_no_work(store: Path, cli: Cli) -> None:
    assert names(store) == ["1.rdq"]
    out = cli("migrate", store / "s").stdout
    assert out == f"3 payloads copied ({3 * (SIZE + 28):,} bytes); 1 files removed, 0 kept\n"
    assert names(store) == ["2.sqs"]
    assert cli("migrate", store / "s").stdout.startswith("0 payloads copied")
    assert payloads(store) == [b"000", b"001", b"002"]


def test_what_cannot_be_read_is_told_and_kept(store: Path, cli: Cli) -> None:
    path = store / "s" / "bodies0" / "1.rdq"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = cli("migrate", store / "s", code=1)
    assert "2 payloads copied" in result.stdout
    assert "cannot be read; its file is kept" in result.stderr
    assert names(store) == ["1.rdq", "2.sqs"]
    assert payloads(store) == [b"000", b"001", None]


def test_what_is_no_store_or_open_is_left_alone(store: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is not a lodeq store" in cli("migrate", tmp_path / "empty", code=2).stderr
    assert list((tmp_path / "empty").iterdir()) == []
    with lodeq.sync.open(store / "s"):
        assert cli("migrate", store / "s", code=2).stderr.startswith("error: ")
    assert names(store) == ["1.rdq"]
