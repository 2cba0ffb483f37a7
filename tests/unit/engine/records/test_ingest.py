"""The rows a load leaves: what is packed comes back, and nothing damaged does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.records.frame import seal
from lodeq.engine.records.ingest import (
    Ingested,
    LoadedRows,
    Uncounted,
    decode_ingested,
    decode_uncounted,
    encode_ingested,
    encode_uncounted,
)
from lodeq.errors import RecordCorruptError

COUNT = st.integers(0, (1 << 63) - 1)
ROWS = st.builds(
    LoadedRows, st.binary(min_size=1, max_size=64), st.binary(max_size=64), COUNT, COUNT
)


@given(st.builds(Ingested, COUNT, st.binary(min_size=16, max_size=16), COUNT, COUNT, COUNT))
def test_ingested_comes_back(row):
    assert decode_ingested(encode_ingested(row)) == row


@given(COUNT, st.lists(ROWS, max_size=5))
def test_uncounted_comes_back(seq_max, rows):
    raw = encode_uncounted(seq_max, rows)
    assert decode_uncounted(raw) == Uncounted(seq_max, tuple(rows))
    for bad in (raw[:-9] + raw[-8:], seal(raw[:-8] + b"x"), seal(raw[:-8][:-1]), raw[:-1]):
        with pytest.raises(RecordCorruptError):
            decode_uncounted(bad)
