"""A log file made of heads alone, each true and each of a frame that is none."""

from xxhash import xxh3_64_digest

from lodeq.segments.item import Damage
from lodeq.segments.journal.log_format import encode_frame, encode_header
from lodeq.segments.journal.log_walk import JournalLog
from lodeq.segments.source import BytesSource


class CountingSource(BytesSource):
    __slots__ = ("read_bytes",)

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.read_bytes = 0

    def read(self, offset: int, count: int) -> bytes:
        data = super().read(offset, count)
        self.read_bytes += len(data)
        return data


def test_what_is_read_grows_with_the_file_and_not_with_its_square() -> None:
    head = encode_frame(1, 1, [bytes(200_000)])[:28]
    head += xxh3_64_digest(head)[4:]
    source = CountingSource(encode_header(1, 1) + head * 62_500)
    items = list(JournalLog().salvage(source))
    assert [type(item) for item in items] == [Damage]
    assert source.read_bytes < 80 * source.size  # each head alone: 6,000 times
