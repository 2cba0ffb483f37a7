"""Fetching a checkpoint from a node that may lie."""

import os
import stat

import httpx
import pytest

import lodeq.testing
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.errors import UnreachableError, UsageError
from lodeq.replication.port import Checkpoint
from lodeq.service.cluster import fetch as fetching
from lodeq.service.cluster.fetch import HttpCheckpoints, ask_node

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
TOKEN = "a token of some length"
HERE = Checkpoint("n1", "http://n1:1", "d1", (1,))


@pytest.fixture
def answers(monkeypatch):
    """Routes of the node, by path; each request is noted."""
    routes, requests = {}, []

    def answer(request):
        requests.append(request)
        found = routes.get(request.url.path)
        if found is None:
            return httpx.Response(404, json={})
        return found if isinstance(found, httpx.Response) else httpx.Response(200, **found)

    transport = httpx.MockTransport(answer)
    client = httpx.AsyncClient
    monkeypatch.setattr(
        fetching.httpx,
        "AsyncClient",
        lambda **given: client(**{**given, "transport": transport}),
    )
    routes["requests"] = requests
    return routes


def offer(answers, files, base="/cluster/checkpoints/d1"):
    answers[base] = {"json": {"files": [[path, len(data)] for path, data in files.items()]}}
    for path, data in files.items():
        answers[f"{base}/{path}"] = {"content": data}


async def fetch(work, token=None):
    return await HttpCheckpoints(token).fetch(HERE, str(work), current_spawner())


async def test_files_come_as_they_are_and_a_second_time_only_what_is_missing(answers, tmp_path):
    files = {"shard0/000001.sst": b"a" * 5000, "manifest": b"m"}
    offer(answers, files)
    work = tmp_path / "w"
    assert await fetch(work, TOKEN) == str(work)
    assert {path: (work / path).read_bytes() for path in files} == files
    assert all(one.headers["authorization"] == f"Bearer {TOKEN}" for one in answers["requests"])
    (work / "manifest").unlink()
    answers["requests"].clear()
    await fetch(work)
    assert [one.url.path.rpartition("/")[2] for one in answers["requests"]] == ["d1", "manifest"]
    assert not list(work.rglob("*.part"))


async def test_what_is_fetched_is_its_owners_alone(answers, tmp_path):
    offer(answers, {"shard0/deep/x": b"x", "y": b"y"})
    old = os.umask(0)
    try:
        await fetch(tmp_path / "w")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o700
    for one in (tmp_path / "w").rglob("*"):
        assert one.is_dir() or stat.S_IMODE(one.stat().st_mode) == 0o600, one


@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\0b", 7, None, "a/."]
)
async def test_a_path_that_leads_elsewhere_is_not_fetched(answers, tmp_path, path):
    answers["/cluster/checkpoints/d1"] = {"json": {"files": [["fine", 1], [path, 1]]}}
    answers["/cluster/checkpoints/d1/fine"] = {"content": b"f"}
    with pytest.raises(UsageError, match="not fetched"):
        await fetch(tmp_path / "w")
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["fine"]


async def test_a_link_in_the_place_of_a_part_is_not_followed(answers, tmp_path):
    offer(answers, {"x": b"x"})
    work, aside = tmp_path / "w", tmp_path / "aside"
    work.mkdir(mode=0o700)
    (work / "x.part").symlink_to(aside)
    with pytest.raises(OSError, match="symbolic"):
        await fetch(work)
    assert not aside.exists()


@pytest.mark.parametrize(
    "document", [[], {}, {"files": 7}, {"files": [7]}, {"files": [["x"]]}, "text"]
)
async def test_a_list_that_is_none(answers, tmp_path, document):
    answers["/cluster/checkpoints/d1"] = {"json": document}
    with pytest.raises((UsageError, ConnectionError), match="http://n1:1"):
        await fetch(tmp_path / "w")


async def test_a_node_that_has_no_such_checkpoint(answers, tmp_path):
    with pytest.raises(ConnectionError, match="404"):
        await fetch(tmp_path / "w")


async def test_of_one_shard_only_its_files_are_fetched(answers, tmp_path):
    files = {
        "checkpoint.json": b"m",
        "shard0/000001.sst": b"a",
        "shard1/000001.sst": b"b",
        "bodies1/x": b"c",
        "shard11/000001.sst": b"d",
    }
    offer(answers, files)
    work = tmp_path / "w"
    await HttpCheckpoints(None).fetch(HERE, str(work), current_spawner(), shards={1})
    found = {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()}
    assert found == {"checkpoint.json", "shard1/000001.sst", "bodies1/x"}


async def test_no_more_is_read_in_a_second_than_is_wanted(answers, tmp_path, monkeypatch):
    clock, slept = lodeq.testing.ManualClock(), []

    async def sleep(seconds):
        slept.append(round(seconds, 6))
        clock.advance(max(0.0, seconds))

    monkeypatch.setattr(fetching.anyio, "sleep", sleep)
    offer(answers, {"shard0/a": b"a" * 3000, "shard0/b": b"b" * 1000, "shard0/c": b""})
    source = HttpCheckpoints(bytes_per_s=2000, clock=clock)
    await source.fetch(HERE, str(tmp_path / "w"), current_spawner())
    assert sum(slept) == 2.0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(404, text="404 page not found\n"), UsageError),  # as etcd's own port says
        (httpx.Response(200, text="<html>"), UnreachableError),
        (httpx.Response(200, json=["ok"]), UnreachableError),
    ],
)
async def test_what_answers_and_is_no_node_is_said_to_be_none(answers, answer, error):
    answers["/cluster/status"] = answer
    with pytest.raises(error, match=r"^http://n1:1 is no node of a cluster"):
        await ask_node("http://n1:1", "GET", "/cluster/status")


async def test_a_node_that_answers_with_what_nobody_can_read_is_none(answers, tmp_path):
    answers["/cluster/status"] = {"content": b"[" * 100_000}
    with pytest.raises(UnreachableError, match="nothing that a node says"):
        await ask_node("http://n1:1", "GET", "/cluster/status")
    answers["/cluster/checkpoints/d1"] = {"content": b"[" * 100_000}
    with pytest.raises(ConnectionError):
        await HttpCheckpoints(TOKEN).fetch(HERE, str(tmp_path / "w"), current_spawner())
