"""Files made to be slow cost in proportion to their size: counted in bytes read, not in time."""

from collections.abc import Callable

import pytest

from lodeq.errors import SegmentCorruptError
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.formats.rdq import Rdq, Verdict
from lodeq.segments.item import Format
from lodeq.segments.source import BytesSource

SIZE = 1 << 16
FAR = SIZE // 2
TIMES = 200  # a few reads of each byte, and for each place that looks like a record those of a mark


class Counting(BytesSource):
    """``bytes``: so many were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.bytes = 0

    def read(self, offset: int, count: int) -> bytes:
        found = super().read(offset, count)
        self.bytes += len(found)
        return found


def big(number: int, count: int) -> bytes:
    return number.to_bytes(count, "big")


def judged(what: Verdict) -> Rdq:
    return Rdq(lambda id, offset, size: what)


CHECKED = b"\x04"
CASES: dict[str, tuple[Callable[[], Format], bytes, bytes]] = {
    "sqs: a head at every fifth byte": (Sqs, HEADER, CHECKED + big(FAR, 4)),
    "sqs: heads with ids": (Sqs, HEADER, CHECKED + big(FAR, 4) + b"\x04" * 20),
    "sqs: heads a page long": (Sqs, HEADER, CHECKED + big(4097, 4) + bytes(20)),
    "sqs: bad records of no body": (Sqs, HEADER, CHECKED + big(25, 4) + bytes(20)),
    "sqs: heads that reach past the end": (Sqs, HEADER, CHECKED + big(1 << 30, 4)),
    "sqs: holes and nothing": (Sqs, HEADER, b"\x02" + big(5, 4) + b"\x09"),
    "sqs: zeros and ones": (lambda: Sqs(is_current=True), HEADER, bytes(50) + b"\x01"),
    "rdq: a size at every eighth byte": (Rdq, b"", big(FAR, 8)),
    "rdq: sizes that lead to an end": (Rdq, b"", big(255, 8)),
    "rdq: one id for all": (Rdq, b"", big(16, 8) + b"\xff" * 17),
    "rdq: zeros": (Rdq, b"", bytes(4095) + b"\x01"),
    "rdq: ends everywhere": (Rdq, b"", bytes(5) + b"\x01\xff"),
    "rdq: none is in the index": (lambda: judged(Verdict.INVALID), b"", bytes(6) + b"\x01\xff"),
    "rdq: all are gone": (lambda: judged(Verdict.PREVIOUSLY_VALID), b"", big(16, 8) + b"\xff" * 17),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("what", ["scan", "salvage"])
def test_no_file_costs_more_than_its_size_allows(case: str, what: str) -> None:
    make, start, unit = CASES[case]
    source = Counting((start + unit * (SIZE // len(unit) + 1))[:SIZE])
    try:
        found = list(getattr(make(), what)(source))
    except SegmentCorruptError:
        assert what == "scan"  # which believes, or raises
    else:
        if what == "salvage":  # and tells of every byte
            at = 64 if start else 0
            for item in found:
                assert item.offset == at
                at += item.size
            assert at == SIZE
    assert source.bytes <= TIMES * SIZE
