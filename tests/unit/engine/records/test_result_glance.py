"""A glance never passes over a record that a search means."""

import random

import pytest

from lodeq.engine.records.face import Face, pack_face, unpack_face
from lodeq.engine.records.result import ResultRecord, decode_result, encode_result
from lodeq.engine.records.result_glance import ANY_TIME, ResultGlance

WORDS = ["Timeout", "straße", "ÜBER", "smtp", "İstanbul", "K", "7", "", "…", "n=3, to='a'"]


def record(draw: random.Random) -> ResultRecord:
    def text(n: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(n)))

    labels = tuple(f"{draw.choice('ab')}={draw.choice(WORDS)}" for _ in range(draw.randrange(3)))
    face = pack_face(Face(text(3), text(60), labels))
    return ResultRecord(
        *(0, draw.randrange(1, 5), 5, 1, 1, 2),
        created_us=draw.randrange(100),
        ready_us=0,
        leased_us=0,
        finished_us=draw.randrange(100),
        retention_ms=0,
        raw_bytes=0,
        queue=draw.choice([b"mail", b"mai", b"mailx"]),
        tenant=draw.choice([b"", b"t", b"mail"]),
        worker=draw.choice([b"", b"w1"]),
        error=text(4).encode() + draw.choice([b"", b"\xc3", b"\xff"]),
        value=draw.choice([b"", b"smtp timeout"]),
        face=face,
        history_s=draw.choice([0, 60]),
    )


def is_meant(r: ResultRecord, **meant: object) -> bool:
    face, error = unpack_face(r.face), r.error.decode("utf-8", "replace")
    texts = (face.function, face.preview, *face.labels, error)
    text, reason = meant.get("text"), meant.get("reason")
    return (
        r.status in meant["statuses"]
        and meant.get("queue") in (None, r.queue)
        and meant.get("tenant") in (None, r.tenant)
        and meant["created"][0] <= r.created_us <= meant["created"][1]
        and meant["finished"][0] <= r.finished_us <= meant["finished"][1]
        and (reason is None or reason.lower() in error.lower())
        and (text is None or any(text.casefold() in one.casefold() for one in texts))
    )


def meant(draw: random.Random) -> dict:
    return {
        "statuses": frozenset(draw.sample(range(1, 5), draw.randrange(1, 5))),
        "queue": draw.choice([None, None, b"mail"]),
        "tenant": draw.choice([None, None, b"", b"t"]),
        "created": draw.choice([ANY_TIME, (20, 80)]),
        "finished": draw.choice([ANY_TIME, (10, ANY_TIME[1])]),
        "reason": draw.choice([None, "TIMEOUT", "strasse", "\ufffd"]),
        "text": draw.choice([None, "STRASSE", "über", "k", "=7", "\ufffd", "i̇stan"]),
    }


@pytest.mark.parametrize("seed", range(20))
def test_what_is_meant_passes(seed: int) -> None:
    draw = random.Random(seed)
    passed = taken = 0
    for _ in range(200):
        raw, wanted = encode_result(record(draw)), meant(draw)
        glance = ResultGlance(**wanted)
        glance.skips_cut = True
        if is_meant(decode_result(raw), **wanted):
            taken += 1
            assert glance.passes(raw), (raw, wanted)
        passed += glance.passes(raw)
    assert passed < 100  # and most of the others do not
    assert taken > 5


def test_what_may_have_lost_the_text_passes_until_one_did() -> None:
    r = record(random.Random(1))._replace(face=pack_face(Face("f", "to=abc…", ())), error=b"")
    raw = encode_result(r)
    glance = ResultGlance(statuses=frozenset(range(1, 5)), text="abcd")
    assert glance.passes(raw)
    glance.skips_cut = True
    assert not glance.passes(raw)


def test_needles_and_damage() -> None:
    raw = encode_result(record(random.Random(2)))
    every = frozenset(range(1, 5))
    assert not ResultGlance(statuses=every, needles=[b"customer=7"]).passes(raw)
    assert ResultGlance(statuses=every, needles=[raw[80:84]]).passes(raw)
    assert ResultGlance(statuses=every, needles=[b"none"]).passes(raw[:40])  # left to the decoder
