"""Lease tokens and payloads stay where they belong: in the lease, in the row, with the worker.

A run with everything in it, logging at DEBUG; then all that came out of it is searched.
"""

import asyncio
import dataclasses
import hmac
import logging
import os
import re
from types import SimpleNamespace

import pytest

import lodeq
from lodeq import LodeqError, NewTask
from lodeq.engine.records.keyspace import LEASE, LEASE_END, TASK
from lodeq.engine.runtime import ids
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.repository.tasks import lease_operations

pytestmark = pytest.mark.anyio

MIB = 1 << 20
SECRET = "hunter2-of-the-payload"


def spellings(token):
    """How sixteen bytes come to stand in a text."""
    number = int.from_bytes(token, "big")
    return [
        token.hex(),
        repr(token)[2:-1],
        str(number),
        f"{number:x}",
        str(int.from_bytes(token, "little")),
        repr(list(token)),
    ]


def texts_of(value, seen=None):
    """Every text that a value shows, however somebody looks at it."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    yield repr(value)
    yield str(value)
    if isinstance(value, BaseException):
        yield from texts_of(list(value.args), seen)
        yield from texts_of(vars(value), seen)
        for other in (value.__cause__, value.__context__):
            if other is not None:
                yield from texts_of(other, seen)
    elif dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        yield from texts_of([getattr(value, field.name) for field in fields], seen)
    elif isinstance(value, dict):
        yield from texts_of([*value.keys(), *value.values()], seen)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from texts_of(part, seen)


class Run:
    """An engine driven through everything; what it says, and the tokens it gave out."""

    def __init__(self, path):
        self.path = path
        self.out = []
        self.tokens = []

    def took(self, leases):
        """Leases as a user holds them: their reprs count, their ``token`` does not."""
        self.tokens += [lease.token for lease in leases]
        self.out += list(leases)
        return leases

    async def fails(self, call):
        try:
            await call
        except LodeqError as error:
            self.out.append(error)
            return
        raise AssertionError("it did not fail")

    async def everything(self):
        limits = lodeq.Limits(payload_bytes_max=10_000)
        async with lodeq.open(self.path, limits=limits) as engine:
            queue = engine.queue("mail", max_attempts=2, backoff=lodeq.Backoff("fixed", base=0.0))
            self.out += [engine, queue]
            self.out += await queue.enqueue_many([NewTask({"n": n}) for n in range(20)])
            a, b, c, d, *rest = self.took(await queue.claim(limit=12, worker="w", exported=True))
            await a.complete({"ok": True}, then=[NewTask(b"next")])
            await a.complete({"ok": True})  # compared with the hash of the token
            await b.nack(reason="because")
            await c.bury("over")
            await d.release()
            for late in (a, b, c, d):
                await self.fails(late.nack())
            await self.fails(b.complete())
            self.out.append(await engine.complete_many([(b, None), (rest[0], None)]))
            self.out.append(await engine.heartbeat_many([c, rest[1]]))
            self.took(await queue.claim(limit=1))
            for state in ("ready", "leased", "dead", "completed"):
                self.out += await queue.list(state)
            self.out += await queue.dead_letters()
            self.out += [await engine.result(a.task_id), await engine.get(rest[1].task_id)]
            self.out += [await engine.stats(), await engine.health(), await queue.stats()]
            self.out += [await engine.verify(), repr(vars(lodeq))]
            await engine.checkpoint(self.path.parent / "copy")

    def damage(self):
        """A lease without its task, and one whose record is cut: what is found wrong is told."""
        store = RocksStore.open(self.path / "shard0", shared=SharedMemory(8 * MIB), create=False)
        (key, _), (other, raw), *_ = store.scan(LEASE, LEASE_END, 100)
        store.write([(TASK + key[len(LEASE) :], None), (other, raw[:-4])])
        store.close()

    async def look_again(self):
        try:
            async with lodeq.open(self.path):
                raise AssertionError("the damage was not seen")
        except LodeqError as error:
            self.out.append(error)
        async with lodeq.open(self.path, recovery="salvage") as engine:
            self.out += [await engine.verify(), await engine.stats(), await engine.health()]
            self.took(await engine.queue("mail").claim(limit=100))
            (row, *_) = engine._state.shards[0].store.scan(LEASE, LEASE_END, 1)
            engine._state.shards[0].store.write([(TASK + row[0][len(LEASE) :], None)])
            report = await engine.verify()
            assert not report.ok
            self.out += [report, *report.findings]


@pytest.fixture
async def run(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    one = Run(tmp_path / "store")
    await one.everything()
    one.damage()
    await one.look_again()
    one.out += [caplog.text, *(vars(record) for record in caplog.records)]
    return one


async def test_tokens_come_out_nowhere(run):
    assert len(run.tokens) > 10
    assert len({*run.tokens}) == len(run.tokens)
    texts = [text for thing in run.out for text in texts_of(thing)]
    assert len(texts) > 500
    whole = "\n".join(texts)
    found = [form for token in run.tokens for form in spellings(token) if form in whole]
    assert found == []


def read_below(top):
    return [
        path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not re.fullmatch(r"\d+\.(log|sst)", path.name)
    ]


async def test_tokens_lie_in_no_file_but_those_of_rocksdb(run):
    """``LOG``, the manifest of a checkpoint, the lock: what people copy into a bug report."""
    texts = read_below(run.path.parent)
    assert len(texts) > 10
    for token in run.tokens:
        for form in (token, token.hex().encode(), token.hex().upper().encode()):
            assert not any(form in text for text in texts)


async def test_the_search_finds_what_is_there(run):
    token = run.tokens[0]
    shown = [lodeq.LeaseLostError(f"the token was {token.hex()}"), {"x": [repr(token)]}, [token]]
    for thing in shown:
        assert any(form in text for text in texts_of(thing) for form in spellings(token))


class Loud:
    """A value that shows itself to whoever formats it."""

    def __repr__(self):
        return SECRET

    __str__ = __repr__


async def test_payloads_stand_in_no_error_and_no_log(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    run = Run(tmp_path / "store")
    limits = lodeq.Limits(payload_bytes_max=100, headers_bytes_max=100, result_bytes_max=100)
    async with lodeq.open(run.path, limits=limits, compression="zlib") as engine:
        queue = engine.queue("mail")
        for payload in (SECRET * 100, {SECRET: Loud()}, {SECRET: 1 << 80}, [SECRET, "\ud800"]):
            await run.fails(queue.enqueue(payload))
            await run.fails(queue.enqueue_many([NewTask(payload)]))
            await run.fails(queue.enqueue(b"x", headers={"h": payload}))
        await queue.enqueue({"password": SECRET}, headers={"auth": SECRET})
        lease = await queue.claim_one()
        for result in (SECRET * 100, {SECRET: Loud()}):
            await run.fails(lease.complete(result))
        run.out += [lease, queue, engine, await engine.stats(), await engine.verify()]
        await lease.release()
    run.out += [caplog.text, *(vars(record) for record in caplog.records)]
    assert len(run.out) > 15
    assert [text for thing in run.out for text in texts_of(thing) if SECRET in text] == []


async def test_a_reason_is_cut(tmp_path):
    """What a failing worker says is kept with the task: as much of it as was agreed."""
    limits = lodeq.Limits(reason_bytes_max=16)
    async with lodeq.open(tmp_path / "store", limits=limits) as engine:
        queue = engine.queue("mail", max_attempts=1)
        await queue.enqueue(b"x")
        with pytest.raises(RuntimeError):
            async with await queue.claim_one():
                raise RuntimeError("a" * 40)
        (dead,) = await queue.dead_letters()
        assert len(dead.reason.encode()) <= 16


def test_a_token_is_sixteen_bytes_of_the_kernel(monkeypatch):
    """A guess is worth nothing: no bit of it is from a clock or a counter."""
    drawn = []

    def urandom(n):
        drawn.append(os.urandom(n))
        return drawn[-1]

    monkeypatch.setattr(ids, "os", SimpleNamespace(urandom=urandom))
    source = ids.IdSource(ids.SystemRng())
    tokens = [source.token() for _ in range(600)]
    assert len({*tokens}) == 600
    assert {len(token) for token in tokens} == {16}
    assert {*tokens} <= {block[at : at + 16] for block in drawn for at in range(0, len(block), 16)}


async def test_tokens_are_compared_in_constant_time(tmp_path, monkeypatch):
    compared = []

    def compare(a, b):
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(lease_operations, "hmac", SimpleNamespace(compare_digest=compare))
    async with lodeq.open(tmp_path / "store") as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        await lease.complete(b"r")
        await lease.complete(b"r")
        lease.token = bytes(16)
        with pytest.raises(lodeq.LeaseLostError):
            await lease.complete(b"r")
    assert [a == b for a, b in compared] == [True, False]
