"""Nothing misses the calls that only Linux has: what macOS needs, as far as it can be tried."""

import ctypes
import errno
import fcntl
import os

import pytest

import lodeq
from lodeq.engine.files import durable_files
from lodeq.segments.bodies import punch

pytestmark = pytest.mark.anyio


@pytest.fixture
def elsewhere(monkeypatch):
    """A system without Linux's own calls."""
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "sched_getaffinity")

    class Libc:
        pass

    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **kwargs: Libc())


async def test_a_store_lives_there(elsewhere, tmp_path):
    path = tmp_path / "store"
    for durability in ("fsync", "fsync"):
        async with lodeq.open(path, durability=durability, journal="life") as engine:
            queue = engine.queue("jobs")
            receipt = await queue.enqueue(b"x" * 300_000, durable=True)
            (lease,) = await queue.claim()
            assert lease.payload == b"x" * 300_000
            await lease.complete(b"y")
            assert (await engine.result(receipt.id)).value == b"y"
            assert not (await engine.verify()).findings


def test_a_full_sync_goes_through_the_drive(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(durable_files, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, what: calls.append((fd, what)))
    durable_files.sync_data(7)
    assert calls == [(7, 51)]


def test_space_that_cannot_be_given_back_is_said_so(elsewhere, tmp_path):
    file = tmp_path / "1.sqs"
    file.write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
        punch.punch(str(file), 0, 1 << 20, is_v1=False)
