"""The link with the wrong thing in each place, and frames that would cost more than they are."""

import random
import tracemalloc
from contextlib import suppress

import pytest
from fuzz.link_targets import answered, served, wrong_answers, wrong_entries
from support_link import frame, pack

from lodeq.client.transport.entries import AnswerLostError
from lodeq.client.transport.layout import FrameReader, FrameSizeError
from lodeq.service.http.link.requests import MalformedError, read_entry, read_frame, read_hello

MAIL = [0, 0, pack({"queue": "mail"})]
BOMBS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "entries": b"\xdd\x00\x00\x10\x00" + b"\xc0",
    "map": b"\x91\xdf\xff\xff\xff\xff",
    "bytes": b"\x91\x95\x01\x01\x00\x00\xc6\xff\xff\xff\xff",
    "text": b"\x91\x97\x08\x01\xdb\xff\xff\xff\xff",
    "payloads": b"\x91\x95\x02\x01\x00\x00\xdd\xff\xff\xff\xff",
    "leases": b"\x91\x94\x07\x01\xdd\x00\x00\x10\x00",
    "query": b"\x91\x97\x08\x01\xa3GET\xa1/\xdf\xff\xff\xff\xff",
    "extension": b"\x91\xc9\xff\xff\xff\xff\x01",
    "depth": b"\x91" * 300_000,
    "depth of what is passed over": b"\x91\x93\x09\x01" + b"\x91" * 300_000,
    "depth of maps": b"\x91\x93\x09\x01" + b"\x81\x01" * 300_000,
    "nested arrays": b"\xdc\x0f\xff" * 100_000,
    "too many payloads": b"\x91\x95\x02\x01\x00\x00\xdd\x00\x1e\x84\x80"
    + b"\xc4\x02xy" * 2_000_000,
    "too many leases": b"\x91\x94\x07\x01\xdd\x00\x1e\x84\x80" + b"\xc4\x02xy" * 2_000_000,
}


def sent(entries):
    with suppress(MalformedError):
        served(frame(pack(entries)))


@pytest.mark.slow
def test_wrong_things_in_every_place_of_a_request():
    rng = random.Random(1)
    for entry in wrong_entries(rng):
        sent([MAIL, [1, 1, 0, 0, b"x"], entry, [1, 2, 0, 0, b"x"]])


def test_wrong_things_in_every_place_of_an_answer():
    rng = random.Random(1)
    for entry in wrong_answers(rng):
        with suppress(AnswerLostError):
            answered(frame(pack([entry])))
    for raw in (b"\0\0\0\0", b"\xff" * 4, frame(b"\x91" * 100_000), frame(b"\xc1")):
        with pytest.raises(AnswerLostError):
            answered(raw)


def test_answers_that_nobody_asked_for_are_passed_over():
    answered(frame(pack([[id, 0, b"x"] for id in range(100, 4100)])) * 20)


def read_all(body):
    for one in read_frame(body):
        read_entry(one)


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_frame_costs_no_more_than_its_bytes_allow(bomb):
    tracemalloc.start()
    try:
        with pytest.raises((MalformedError, FrameSizeError)):
            read_all(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(bomb) + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", [BOMBS["array"], BOMBS["map"], BOMBS["depth"][:4000]])
def test_a_hello_costs_no_more_either(bomb):
    with pytest.raises(MalformedError):
        read_hello(b"\x01" + bomb)


@pytest.mark.parametrize("size", [0, (8 << 20) + 1, 0x48545450, 0xFFFFFFFF])
def test_a_length_is_refused_before_anything_is_kept(size):
    reader = FrameReader()
    with pytest.raises(FrameSizeError):
        list(reader.feed(size.to_bytes(4, "big")))


def test_a_frame_of_many_reads_is_copied_once():
    """Not once for each read: 8 MiB in reads of 1 KiB would take a minute."""
    body = bytes(8 << 20)
    raw, reader = frame(body), FrameReader()
    found = []
    for at in range(0, len(raw), 1024):
        found += reader.feed(raw[at : at + 1024])
    assert found == [body]
