"""The walks of ARCHITECTURE.md name functions that a call passes, in the order it passes them."""

import asyncio
import re
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support_http import LinkedOpening, asgi_client
from support_ingest import create, publish
from support_sources import ROOT

import lodeq
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.testing import ManualClock

pytestmark = pytest.mark.skipif(lodeq.COMPILED, reason="a profile sees no compiled function")
PACKAGE = f"{Path(lodeq.__file__).parent}/"
WALK = re.compile(r"^### (.+?)\n(?:.*?)```text\n(.*?)```", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^ *(\S+\.py) +([A-Za-z_][\w.]*)", re.MULTILINE)


@contextmanager
def following():
    """Every (file, function) in the order they begin, in this thread and in those that start."""
    begun = []

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            begun.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield begun
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def enqueue(folder):
    async with lodeq.open(folder) as engine:
        with following() as begun:
            await engine.queue("mail").enqueue(b"x")
    return begun


async def claim(folder):
    async with lodeq.open(folder) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        with following() as begun:
            await queue.claim(limit=1)
    return begun


async def claim_of_several(folder):
    async with lodeq.open(folder) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([lodeq.NewTask(b"x")] * 2)
        with following() as begun:
            assert len(await queue.claim(limit=2)) == 2
    return begun


async def complete(folder):
    async with lodeq.open(folder) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        (lease,) = await queue.claim(limit=1)
        with following() as begun:
            await lease.complete()
    return begun


async def sweep(_):
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x", max_attempts=2)
        lease = (await queue.claim(limit=1, lease=10, exported=True))[0]
        with following() as begun:
            clock.advance(60)
            while (await queue.stats()).leased:  # noqa: ASYNC110 - turn by turn
                await asyncio.sleep(0)
        assert lease.attempt == 1
    return begun


async def fsync(folder):
    with following() as begun:  # the thread that syncs begins with the store
        async with lodeq.open(folder, durability="fsync") as engine:
            begun.clear()
            await engine.queue("mail").enqueue(b"x")
            passed = list(begun)
    return passed


async def load(folder):
    await create(Path(folder))
    with following() as begun:
        publish(Path(folder), [lodeq.NewTask(b"x")])
        async with lodeq.open(folder) as engine:
            await engine.ingest()
    return begun


async def http_call(folder):
    async with lodeq.open(folder) as engine, asgi_client(make_app(engine, Settings())) as client:
        with following() as begun:
            answer = await client.post("/v1/queues/mail/tasks", json={"payload": "x"})
        assert answer.status_code == 201
    return begun


async def link_call(folder):
    async with lodeq.open(folder) as inner, LinkedOpening(_given(inner)) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"first")
        with following() as begun:
            await queue.enqueue(b"x")
    return begun


async def _given(engine):
    return engine


SCENES = {
    "Enqueue": enqueue,
    "Claim": claim,
    "Claim of several": claim_of_several,
    "Complete": complete,
    "Sweep": sweep,
    "Fsync": fsync,
    "Load": load,
    "HTTP call": http_call,
    "Call over the link": link_call,
}
WALKS = {
    title: STEP.findall(picture)
    for title, picture in WALK.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
}


def test_there_is_a_picture_for_each_walk():
    assert list(WALKS) == list(SCENES)
    assert min(map(len, WALKS.values())) >= 5


@pytest.mark.parametrize("title", SCENES)
def test_a_call_passes_what_its_walk_names(title, tmp_path):
    begun = asyncio.run(SCENES[title](tmp_path / "store"))
    assert [step for step in WALKS[title] if step not in begun] == []
    left = iter(begun)
    passed = [step for step in WALKS[title] if step in left]
    assert passed == WALKS[title], "they begin in another order"


def test_files_that_the_page_names_are_there():
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = set(re.findall(r"`((?:\w+/)+[\w*]+\.py|\w+(?:/\w+)+/)`", page))
    assert len(named) > 30
    assert [name for name in sorted(named) if not list(ROOT.glob(name.rstrip("/")))] == []
    functions = re.findall(r"`((?:\w+/)+\w+\.py)` \(((?:`[\w.]+`(?:, )?)+)\)", page)
    missing = [
        (file, name)
        for file, names in functions
        for name in re.findall(r"`[\w.]*?(\w+)`", names)
        if not re.search(rf"def {name}\(|class {name}\b", (ROOT / file).read_text("utf-8"))
    ]
    assert functions
    assert missing == []
