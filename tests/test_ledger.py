"""The ledger of the long gates adds up, also after a crash in the middle of a line."""

from __future__ import annotations

from ledger import Ledger


def test_pieces_add_up_and_the_next_goes_on(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.next_start("sim") == ledger.total("sim") == 0
    ledger.add("sim", start=0, done=100, failed=0, seconds=2.04)
    ledger.add("sim", done=50, failed=1, seconds=1.0, seeds=[117])
    ledger.add("power", done=7, failed=0, seconds=1.0)
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.next_start("sim") == again.total("sim") == 150
    assert [piece["start"] for piece in again.pieces("sim")] == [0, 100]
    assert again.pieces("sim")[1]["seeds"] == [117]
    lines = again.report().splitlines()
    assert [line.split()[0] for line in lines] == ["power", "sim"]
    assert "150 done    1 failed" in lines[1]


def test_a_line_that_a_crash_cut_off_does_not_count(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.add("sim", done=100, failed=0, seconds=1.0)
    with path.open("ab") as file:
        file.write(b'{"gate": "sim", "start": 100, "do')
    assert ledger.total("sim") == 100
    ledger.add("sim", done=10, failed=0, seconds=1.0)
    assert ledger.total("sim") == 110


def test_the_table_is_where_a_fresh_clone_goes_on(tmp_path):
    table = tmp_path / "ledger.md"
    ledger = Ledger(tmp_path / "one.jsonl", table)
    ledger.add("sim", done=100, failed=1, seconds=60.0)
    ledger.add("sim", done=50, failed=0, seconds=30.0)
    ledger.add("power", done=7, failed=0, seconds=1.0)
    ledger.add("check", done=0, failed=0, seconds=9.0)  # a step without tests
    ledger.write_table()
    clone = Ledger(tmp_path / "two.jsonl", table)
    assert clone.next_start("sim") == clone.total("sim") == 150
    assert clone.report() == ledger.report()
    written = table.read_text()
    for each in (ledger, clone):  # what is in the table already is not counted twice
        each.write_table()
        assert table.read_text() == written


def test_the_table_holds_pieces_of_several_checkouts(tmp_path, monkeypatch):
    table = tmp_path / "ledger.md"
    monkeypatch.setattr("ledger.commit", lambda: "aaa")
    one = Ledger(tmp_path / "one.jsonl", table)
    one.add("sim", done=100, failed=0, seconds=1.0)
    one.write_table()
    monkeypatch.setattr("ledger.commit", lambda: "bbb")
    other = Ledger(tmp_path / "two.jsonl", table)
    other.add("sim", done=10, failed=0, seconds=1.0)
    other.write_table()
    assert [line.split(" | ")[1:5] for line in table.read_text().splitlines()[8:]] == [
        ["aaa", "0", "100", "100"],
        ["bbb", "100", "110", "10"],
    ]
    one.write_table()
    assert one.total("sim") == 110
