"""What a user sees: escaped texts, times, and a bar that comes only where it should."""

import io
import sys

import pytest

from lodeq.service.cli import tables
from lodeq.service.cli.display import reason_text
from lodeq.service.cli.output import Column, shown
from lodeq.service.cli.records import rfc3339
from lodeq.service.cli.tables import Bar, Rows


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("größe ✓".encode(), "größe ✓"),
        (b"\x1b[2J\x00\x7f", r"\x1b[2J\x00\x7f"),
        (b"a\nb\tc\r\\", r"a\nb\tc\r\\"),
        (b"\xff\xfe", r"\\xff\\xfe"),
        ("\u202e\x9b\udcff\U000e0001", r"\u202e\x9b\udcff\U000e0001"),
    ],
)
def test_nothing_unprintable_is_shown(data: bytes | str, text: str) -> None:
    assert shown(data) == text


def test_times() -> None:
    assert rfc3339(1_700_000_000_500_000_000) == "2023-11-14T22:13:20.5Z"
    assert rfc3339(0) is None
    assert rfc3339(1 << 70) is None


class TestRows:
    COLUMNS = (Column("id", 3, 8), Column("text", 6, 40, may_be_cut=True))

    def lines(self, capsys, *rows: tuple[str, str]) -> list[str]:
        with Rows(self.COLUMNS, Bar("", 0)) as table:
            for id, text in rows:
                table.add({"id": id, "text": text})
        return capsys.readouterr().out.splitlines()

    def test_as_wide_as_what_it_holds(self, capsys) -> None:
        assert self.lines(capsys, ("1", "a"), ("22222", "b")) == [
            "id     text",
            "1      a",
            "22222  b",
        ]

    def test_a_row_is_one_line_where_there_is_no_terminal(self, capsys) -> None:
        assert self.lines(capsys, ("1234567890", "[red]b[/]")) == [
            "id        text",
            "1234567890  [red]b[/]",
        ]

    def test_what_may_not_be_cut_is_folded_on_a_terminal(self, capsys, monkeypatch) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert self.lines(capsys, ("1234567890", "[red]b[/]")) == [
            "id        text",
            "12345678  [red]b[/]",
            "90",
        ]

    def test_on_a_narrow_terminal(self, capsys, monkeypatch) -> None:
        monkeypatch.setattr(tables, "PIPE_COLUMNS", 20)
        assert self.lines(capsys, ("1", "x" * 100))[1] == "1    " + "x" * 12 + "…"
        monkeypatch.setattr(tables, "PIPE_COLUMNS", 4)
        assert self.lines(capsys, ("1", "x" * 100))[1] == "1    xxxxx…"

    def test_no_row_no_header(self, capsys) -> None:
        assert self.lines(capsys) == []


class TestBar:
    def terminal(self, monkeypatch, name: str = "stderr") -> Terminal:
        """Not a fixture: streams are set anew when a test begins."""
        stream = Terminal()
        monkeypatch.setattr(sys, name, stream)
        monkeypatch.setenv("TERM", "xterm")
        return stream

    def test_much_work_has_a_bar(self, monkeypatch) -> None:
        stderr = self.terminal(monkeypatch)
        with Bar("dump", (64 << 20) + 1) as bar:
            bar.at("a", 1 << 20)
            bar.at("b", 1 << 20)
        assert "dump" in stderr.getvalue()

    def test_short_work_has_none(self, monkeypatch) -> None:
        stderr = self.terminal(monkeypatch)
        with Bar("dump", 64 << 20) as bar:
            bar.at("a", 64 << 20)
        assert stderr.getvalue() == ""

    def test_long_work_has_one(self, monkeypatch) -> None:
        stderr = self.terminal(monkeypatch)
        monkeypatch.setattr(tables, "_BAR_S", 0.001)
        with Bar("dump", 10) as bar:
            bar._timer.join()
        assert "dump" in stderr.getvalue()

    def test_it_gives_way_to_rows_on_the_same_terminal(self, monkeypatch) -> None:
        stdout, _ = (self.terminal(monkeypatch, name) for name in ("stdout", "stderr"))
        bar = Bar("dump", 1 << 30)
        with bar, Rows([Column("a", 5, 5)], bar) as rows:
            rows.add({"a": "b"})
        bar.close()
        assert stdout.getvalue().split() == ["a", "b"]

    def test_none_where_nobody_looks(self, monkeypatch) -> None:
        stderr = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stderr)
        with Bar("dump", 1 << 30) as bar:
            bar.at("a", 1 << 30)
        assert stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("KeyError: 'CHF'\n  jobs.py:13 in charge", "KeyError: 'CHF' at jobs.py:13 in charge"),
        ("E: x\n  a.py:1 in f\n  b.py:2 in g", "E: x at a.py:1 in f, b.py:2 in g"),
        ("two\nlines\r\n\n  and \x1b more\n", "two / lines / and \\x1b more"),
        ("E: x\ny\n  a.py:1 in f\n  b.py:2 in g", "E: x / y at a.py:1 in f, b.py:2 in g"),
        ("", ""),
    ],
)
def test_a_reason_is_one_line_with_where_it_was_raised(reason, line):
    assert reason_text(reason) == line
