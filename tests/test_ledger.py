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
