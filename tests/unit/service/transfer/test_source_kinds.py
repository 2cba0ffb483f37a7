"""A path of the wrong kind is told for what it looks like."""

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from support_import import HUEY, LITEQUEUE, database, ledgerq, message, persist_table

from lodeq import UsageError
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.formats.registry import FOREIGN
from lodeq.segments.formats.rust_queue.writer import write_directory
from lodeq.service.transfer.source_kinds import KINDS, open_source


def rdq(path: Path) -> None:
    path.mkdir()
    (path / "0.rdq").write_bytes(Rdq().encode(bytes(16), b"x"))


def rust(path: Path) -> None:
    write_directory(path, [b"x"], day=datetime.date(2023, 11, 14))


MAKERS: dict[str, Callable[[Path], object]] = {
    "ledgerq": lambda path: ledgerq(path, [message(1, b"x")]),
    "rust-queue": rust,
    "rdq": rdq,
    "persist-queue": lambda path: database(path / "data.db", persist_table("queue_default")),
    "huey": lambda path: database(path / "huey.db", *HUEY),
    "litequeue": lambda path: database(path / "lite.db", *LITEQUEUE),
}


def test_every_kind_is_made() -> None:
    assert tuple(MAKERS) == KINDS


def test_every_foreign_format_can_be_imported() -> None:
    assert {foreign.name for foreign in FOREIGN} <= set(KINDS)


@pytest.mark.parametrize("looks_like", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_as_each(tmp_path: Path, kind: str, looks_like: str) -> None:
    path = tmp_path / "source"
    MAKERS[looks_like](path)
    if kind == looks_like:
        assert open_source(kind, path).kind == kind
        return
    with pytest.raises(UsageError, match=f"no {kind} at .*; it looks like {looks_like}"):
        open_source(kind, path)


def test_what_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a kind of source among .*, got 'kafka'"):
        open_source("kafka", tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        open_source("huey", tmp_path / "none")
    with pytest.raises(UsageError, match="nothing that can be imported"):
        open_source("ledgerq", tmp_path)
    with pytest.raises(UsageError, match="give the file of its database"):
        open_source("huey", tmp_path)
    for name in ("a.db", "b.db"):
        database(tmp_path / name, *HUEY)
    with pytest.raises(UsageError, match="several databases"):
        open_source("huey", tmp_path)
    assert open_source("huey", tmp_path / "a.db").kind == "huey"
