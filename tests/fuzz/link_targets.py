"""Targets: what comes over the link, to a server and to a client.

A decoder alone; a whole server, in which another client must go on and nothing be left behind by
one that sent damage; and a whole client, whose calls must all end with what its callers expect.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import msgspec
from fuzz.target import Target, _b, _id, _q
from support_link import Client, Peer, frame, pack, serving_links

import lodeq.testing
from lodeq.client.transport.entries import AnswerLostError, NotBegunError
from lodeq.client.transport.layout import FrameReader, FrameSizeError, frame_of
from lodeq.errors import LodeqError
from lodeq.service.http.link.requests import MalformedError, read_entry, read_frame, read_hello

__all__ = ["LINKS", "answered", "served", "wrong_answers", "wrong_entries"]

TURNS = 12  # of the loop, behind each input
ENGINE_INPUTS = 300  # then another engine: this one has filled


ANYTHING = (
    None,
    True,
    0,
    -1,
    1 << 63,
    (1 << 64) - 1,
    math.nan,
    math.inf,
    0.5,
    "",
    "x" * 300,
    b"",
    b"x" * 40,
    [],
    [[]] * 20,
    {"a": b"x"},
    {1: {2: 3}},
    msgpack.ExtType(5, b"x"),
)
QUEUES = ("mail", "other", "later")
PATHS = (
    "/queues/mail/tasks",
    "/engine",
    "/queues/mail/stats",
    "/nothing",
    "/%00",
    "//",
    "",
    "/verify",
)


def _proof(rng: random.Random) -> list[Any]:
    return [_id(rng), _q(rng), _b(rng, 20)]


OPTIONS: dict[str, tuple[Any, ...]] = {
    "priority": (0, 9),
    "delay": (0, 1.5),
    "ttl": (60,),
    "dedup_key": ("k", b"k"),
    "on_conflict": ("return", "raise", "replace"),
    "headers": ({"a": 1}, msgpack.ExtType(1, pack({"a": 1})), {"at": [{}]}),
    "run_at": ("2030-01-01T00:00:00Z", msgpack.Timestamp(2_000_000_000)),
    "retry": ({"kind": "fixed"},),
    "labels": ({"a": "b"},),
    "shard_key": ("s",),
}


def _options(rng: random.Random) -> dict[str, Any]:
    """Options, some of which are wrong or do not go together."""
    names = rng.sample(sorted(OPTIONS), rng.randrange(4))
    found = {name: rng.choice(OPTIONS[name]) for name in names}
    if rng.random() < 0.3:
        found[rng.choice((*OPTIONS, "queue", "payload"))] = rng.choice(ANYTHING)
    return found


def _task(rng: random.Random) -> list[Any]:
    options = pack(_options(rng)) if rng.random() < 0.8 else None
    return [rng.randrange(3), rng.choice((b"\xc0", b"x")), options]


def _right(rng: random.Random, id: int) -> list[Any]:
    """An entry as the page has it."""
    kind, handle = rng.randrange(3), rng.randrange(3)
    query = {"limit": "2"} if rng.random() < 0.3 else {}
    entry = rng.choice(
        (
            lambda: [0, handle, pack({"queue": rng.choice(QUEUES)})],
            lambda: [1, id, handle, kind, rng.choice((b"\xc0", b"x", b"\x91\xc0"))],
            lambda: [2, id, handle, 0, [_b(rng, 9) for _ in range(rng.randrange(1, 5))]],
            lambda: [3, id, handle, rng.choice((1, 2, 4096)), 30.0, rng.choice((0, 0, 9)), "w"],
            lambda: [4, id, *_proof(rng), None, None, True],
            lambda: [5, id, [[*_proof(rng), 0, b"r"] for _ in range(rng.randrange(3))]],
            lambda: [6, id, *_proof(rng), rng.choice(("nack", "bury", "x")), None, ""],
            lambda: [7, id, [_proof(rng) for _ in range(rng.randrange(3))], None],
            lambda: [8, id, rng.choice(("GET", "POST")), rng.choice(PATHS), query, None, 5.0],
            lambda: [9, rng.randrange(1, id + 2)],
            lambda: [10, id, handle, kind, b"\xc0", pack(_options(rng))],
            lambda: [11, id, handle, [_task(rng) for _ in range(rng.randrange(1, 5))]],
        )
    )()
    if entry[0] not in (0, 8, 9) and rng.random() < 0.3:
        entry.append(rng.choice((None, 0, 0.01, 60)))  # a deadline
    return entry


def _entries(rng: random.Random, first_id: int) -> list[Any]:
    queue = [0, 0, pack({"queue": "mail"})]
    return [queue, *(_right(rng, first_id + n) for n in range(rng.randrange(1, 9)))]


def wrong_entries(rng: random.Random) -> Iterator[list[Any]]:
    """Each operation with each of its members replaced by anything else, left out, or added to."""
    seen = set()
    while len(seen) < 12:
        right = _right(rng, 1)
        if right[0] in seen:
            continue
        seen.add(right[0])
        for at in range(len(right)):
            yield right[:at]
            for value in ANYTHING:
                yield [*right[:at], value, *right[at + 1 :]]
                yield [*right[:at], value, *right[at:]]
    for name in OPTIONS:
        for value in ANYTHING:
            yield [10, 1, 0, 0, b"x", pack({name: value})]
            yield [11, 1, 0, [[0, b"x", None], [0, b"x", pack({name: value})]]]
    for value in ANYTHING:
        yield [10, 1, 0, 0, b"x", pack(value)]
        yield [11, 1, 0, [[0, b"x", pack(value)]]]
        yield [11, 1, 0, [[value, b"x", None]]]
        yield [11, 1, 0, [[0, value, value]]]
        yield [11, 1, 0, [value]]
    yield from ANYTHING


def _stream(rng: random.Random) -> bytes:
    """Some frames."""
    return b"".join(frame(pack(_entries(rng, 1 + 9 * n))) for n in range(rng.choice((1, 1, 2))))


def _with_length(raw: bytes) -> bytes:
    """One frame of all there is."""
    return frame(raw[4:]) if len(raw) > 4 else raw


# -- the decoder ---------------------------------------------------------------------------


def _bodies(raw: bytes, step: int) -> list[bytes]:
    reader = FrameReader()
    found = []
    for at in range(0, len(raw), step):
        found += reader.feed(raw[at : at + step])
    return found


def _decode_stream(raw: bytes) -> list[Any]:
    bodies = _bodies(raw, max(1, len(raw)))
    assert bodies == _bodies(raw, 7)
    entries = []
    for body in bodies:
        one_by_one = [read_entry(one) for one in _raw_entries(body)]
        whole = read_frame(body)
        assert repr(whole) == repr(one_by_one)
        entries += whole
    return entries


def _raw_entries(body: bytes) -> list[Any]:
    read_frame(body)  # raises where it is none
    found: list[Any] = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
    return found


def _encode_stream(entries: list[Any]) -> bytes:
    return frame_of(msgspec.msgpack.encode(entries))


def _hello(rng: random.Random) -> bytes:
    members = [rng.choice((None, "a token", "")), rng.randbytes(8), "test"]
    return bytes((rng.choice((0, 1, 2, 255)),)) + pack(members)


# -- a server ------------------------------------------------------------------------------


class _Faults(logging.Handler):
    """Keeps the records that only a bug logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


class _Loop:
    """A loop of its own, and what went wrong in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults = _Faults()
        self.loop.set_exception_handler(lambda _, context: self.faults.seen.append(repr(context)))
        self.engine: Any = None
        self.n = 0

    def run(self, work: Callable[[Any, bytes], Any], raw: bytes) -> None:
        self.loop.run_until_complete(self._run(work, raw))

    async def _run(self, work: Callable[[Any, bytes], Any], raw: bytes) -> None:
        if self.n % ENGINE_INPUTS == 0:
            if self.engine is not None:
                await self.engine.close()
            self.engine = await lodeq.testing.open()
        self.n += 1
        self.faults.seen.clear()
        log, refusals = logging.getLogger("lodeq"), logging.getLogger("lodeq.http")
        log.addHandler(self.faults)
        refusals.setLevel(logging.ERROR)  # not each refusal; other tests look at them
        try:
            await work(self.engine, raw)
        finally:
            refusals.setLevel(logging.NOTSET)
            log.removeHandler(self.faults)
            assert not self.faults.seen, self.faults.seen


@functools.cache
def _the_loop() -> _Loop:
    return _Loop()


async def _some_turns(n: int = TURNS) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def _serve(engine: Any, raw: bytes) -> None:
    serving, admission = serving_links(engine)
    peer, other = Peer(serving, admission), Peer(serving, admission, nonce=b"another!")
    half = len(raw) // 2
    for part in (raw[:half], raw[half:]):
        if part:
            peer.send_bytes(part)
        await _some_turns()
    answers: dict[int, int] = {}
    ends = []
    for body in peer.bodies():
        for id, status, value in msgpack.unpackb(body, strict_map_key=False):
            assert status in (0, 1, 2)
            if status == 2:
                assert value["type"].startswith("urn:lodeq:problem:"), value
                assert value["status"] != 500, value
            if id == 0:
                ends.append(value)
            elif status != 1:
                answers[id] = answers.get(id, 0) + 1
    assert set(answers.values()) <= {1}, answers
    assert len(ends) <= 1
    assert bool(ends) is peer.wire.is_closing()
    peer.wire.abort()
    queue = [0, 0, pack({"queue": "of-the-other"})]
    other.send(queue, other.request(1, 0, 0, b"x"), other.request(3, 0, 1, 30.0, 5, "w"))
    await _some_turns()
    found = other.answers()
    lease = found[2][1][0]
    other.send(other.request(4, *lease[:3], None, None, False))
    await _some_turns()
    assert other.answers()[3] == [0, None]
    other.wire.abort()
    await _some_turns()
    hub = serving.hub
    assert (admission.polls, hub.held_bytes, hub.claims._in_progress) == (0, 0, {})
    assert not serving.connections
    assert not serving.tasks
    if ends:
        raise MalformedError(ends[0]["detail"])


# -- a client ------------------------------------------------------------------------------


PROBLEM = {"type": "urn:lodeq:problem:lease-lost", "status": 409, "detail": "no", "task_id": "x"}


def _right_answers(rng: random.Random) -> list[list[Any]]:
    """To the requests that ``_ask`` makes."""
    lease = [_id(rng), 1, b"t", 5, 1, 1, 1, 30.0, bytes(32), 0, b"x", None, ""]
    return [
        [1, 0, _id(rng)],
        [2, 0, _id(rng) * 2],
        [3, 0, [lease]],
        [4, 0, None],
        [5, 0, [[0, "gone"]]],
        [6, 1, b"\x81\xa5"],
        [6, 0, b"ready\x01"],
        [rng.randrange(1, 7), 2, {**PROBLEM, "task_id": str(uuid.UUID(bytes=_id(rng)))}],
        [0, 3, rng.randrange(7)],
        [77, 0, None],
        [7, 0, [_id(rng), True, rng.choice((None, _id(rng)))]],
        [8, 0, [_id(rng), [_id(rng), True, None]]],
    ]


def _answers(rng: random.Random) -> bytes:
    entries = _right_answers(rng)
    return frame(pack(rng.sample(entries, rng.randrange(1, len(entries)))))


def wrong_answers(rng: random.Random) -> Iterator[list[Any]]:
    """Each answer with each of its members, a lease's and a problem's too, replaced or left out."""
    right = _right_answers(rng)
    for answer in right:
        for at in range(len(answer)):
            yield answer[:at]
            for value in ANYTHING:
                yield [*answer[:at], value, *answer[at + 1 :]]
    lease = right[2][2][0]
    for at in range(len(lease)):
        yield [3, 0, [lease[:at]]]
        for value in ANYTHING:
            yield [3, 0, [[*lease[:at], value, *lease[at + 1 :]]]]
    for name in (*PROBLEM, "receipts", "retry_after_ms", "missing"):
        for value in ANYTHING:
            yield [1, 2, {**PROBLEM, name: value}]
    for value in ANYTHING:
        yield [7, 0, [bytes(16), value, value]]
        yield [7, 0, [value, True, None]]
        yield [8, 0, [value, [bytes(16), True, value]]]
        yield [8, 0, [bytes(16), value]]
        yield [8, 0, [value]]
        yield [5, 0, [value]]
        yield [5, 0, [[0, value]]]
    yield from ANYTHING


async def _ask(engine: Any, raw: bytes) -> None:
    client = Client(asyncio.get_running_loop())
    calls = [asyncio.ensure_future(one) for one in client.calls()]
    await _some_turns(3)
    client.receive(raw)
    await _some_turns(3)
    is_lost = client.wire.is_closing()
    client.connection.connection_lost(None)
    await _some_turns(5)
    assert all(one.done() for one in calls)
    for one in calls:
        error = one.exception()
        if error is not None:
            assert isinstance(error, (LodeqError, AnswerLostError, NotBegunError)), repr(error)
    if is_lost:
        raise AnswerLostError("refused")


def served(raw: bytes) -> None:
    """Send bytes to a server, and see that all is well with it; MalformedError: it refused them."""
    _the_loop().run(_serve, raw)


def answered(raw: bytes) -> None:
    """Send bytes to a client, and see that its calls end; AnswerLostError: it has refused them."""
    _the_loop().run(_ask, raw)


LINKS = {
    "link_hello": Target(
        (), _hello, lambda raw: read_hello(raw or b"\0"), errors=(MalformedError,)
    ),
    "link_requests": Target(
        (),
        _stream,
        _decode_stream,
        _encode_stream,
        errors=(MalformedError, FrameSizeError),
        fix=_with_length,
    ),
    "link_server": Target(
        (),
        _stream,
        served,
        errors=(MalformedError,),
        fix=_with_length,
        rate=0.03,
    ),
    "link_client": Target(
        (),
        _answers,
        answered,
        errors=(AnswerLostError,),
        fix=_with_length,
        rate=0.05,
    ),
}
