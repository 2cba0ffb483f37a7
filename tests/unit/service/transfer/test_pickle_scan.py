"""Where pickles end is told without a load; plain values are read, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_import import PICKLED

from lodeq import SegmentCorruptError
from lodeq.service.transfer.pickle_scan import end_of_pickle, plain_value

# The ``info`` of a queue of persist-queue 1.1, as it wrote it.
INFO = bytes.fromhex(
    "8004953e000000000000007d94288c096368756e6b73697a65944b038c0473697a65944b068c047461696c945d94"
    "284b004b024b44658c0468656164945d94284b024b024b4465752e"
)
GLOBAL = b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR."


@pytest.mark.parametrize("pickle", [PICKLED, INFO, GLOBAL, b"\x80\x04\x8e" + bytes(8) + b"."])
def test_the_end_is_found_wherever_it_begins(pickle: bytes) -> None:
    assert end_of_pickle(pickle) == len(pickle)
    assert end_of_pickle(b"ab" + pickle + pickle, 2) == 2 + len(pickle)
    for size in range(len(pickle)):
        with pytest.raises(SegmentCorruptError):
            end_of_pickle(pickle[:size])


def test_a_position_is_read() -> None:
    assert plain_value(INFO) == {"chunksize": 3, "size": 6, "tail": [0, 2, 68], "head": [2, 2, 68]}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"M\x01\x02", 513),
        (b"J\xff\xff\xff\xff", -1),
        (b"\x8a\x05\x00\x00\x00\x00\x01", 1 << 32),
        (b"X\x02\x00\x00\x00ab", "ab"),
        (b"]K\x01a", [1]),
        (b"}\x8c\x01aq\x00h\x00s", {"a": "a"}),
    ],
)
def test_plain_values(body: bytes, value: object) -> None:
    assert plain_value(b"\x80\x04" + body + b".") == value


@pytest.mark.parametrize(
    "pickle",
    [
        GLOBAL,
        PICKLED,  # a tuple
        b"\x80\x04.",
        b"\x80\x04K\x01K\x02a.",
        b"\x80\x04e.",
        b"\x80\x04h\x07.",
        b"\x80\x04}]K\x01s.",
        b"\x80\x04X\x01\x00\x00\x00\xff.",
    ],
)
def test_anything_else_is_refused(pickle: bytes) -> None:
    with pytest.raises(SegmentCorruptError):
        plain_value(pickle)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_else(data: bytes) -> None:
    for read in (end_of_pickle, plain_value):
        try:
            read(b"\x80\x04" + data)
        except SegmentCorruptError:
            pass
