"""Tables block by block: whatever is in one, it is judged."""

import pytest

from lodeq.engine.recovery import table_blocks as tb
from lodeq.engine.recovery import table_scan


@pytest.mark.parametrize("name", [b"fullfilter.rocksdb.BuiltinBloomFilter", b"rocksdb.properties"])
def test_a_handle_that_is_none_loses_the_table_and_nothing_else(tmp_path, name):
    path = tmp_path / "000001.sst"
    with open(path, "xb") as writer:
        at = tb.append_block(writer, [(b"rocksdb.num.entries", tb.varint(7))])
        meta = {b"rocksdb.properties": b"".join(map(tb.varint, at)), name: b"\xff"}
        index_at = tb.append_block(writer, [], has_length=False)
        tb.append_footer(writer, tb.append_block(writer, sorted(meta.items())), index_at)
    found = tb.inspect_table(str(path))
    assert (found.is_strange, found.is_lost, found.is_whole) == (False, True, False)


def test_a_table_that_cannot_be_read_a_second_time_is_an_error_of_the_disk(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(100))
    monkeypatch.setattr(table_scan, "scan_table", lambda fd: table_scan.Found())
    with pytest.raises(OSError, match="Input/output"):
        table_scan.write_scanned(str(tmp_path / "a"), str(tmp_path / "b"))
