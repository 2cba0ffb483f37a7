"""An import of many small items, its work counted: nothing that is slow is done for each."""

import json
import os

import pytest

import lodeq
from lodeq.repository.api.view import EngineView
from lodeq.service.transfer import chunk_files, import_run
from lodeq.service.transfer.chunk_files import ChunkFiles

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
N = 5000


@pytest.fixture
def anyio_backend():
    return "asyncio"


def queue_of(folder, per_file):
    """persist-queue's, with so many numbers in it."""
    os.mkdir(folder)
    for at in range(0, N, per_file):
        items = b"".join(b"%d\n" % n for n in range(at, min(N, at + per_file)))
        (folder / f"q{at // per_file:05}").write_bytes(items)
    ends = {"chunksize": per_file, "size": N, "tail": [0, 0, 0], "head": [-(-N // per_file), 0, 0]}
    (folder / "info").write_text(json.dumps(ends))
    return folder


@pytest.mark.parametrize("per_file", [100, N])
async def test_an_import_of_many_small_items(tmp_path, monkeypatch, per_file):
    folder, counts = queue_of(tmp_path / "old", per_file), {}

    def counted(module, name):
        plain = getattr(module, name)

        def call(*args, **options):
            counts[name] = counts.get(name, 0) + 1
            return plain(*args, **options)

        monkeypatch.setattr(module, name, call)

    for module, name in (
        (EngineView, "enqueue_imported"),
        (import_run, "write_note"),
        (chunk_files, "FileSource"),
        (chunk_files, "_chunks"),
        (os, "listdir"),
        (os, "fsync"),
    ):
        counted(module, name)
    async with lodeq.open(tmp_path / "jobs", block_cache_bytes=8 << 20) as engine:
        counts.clear()
        report = await import_run.import_tasks(engine, ChunkFiles(os.fspath(folder)), queue="mail")
        assert (report.imported, report.unreadables) == (N, 0)
        (shard,) = (await engine.stats()).shards
        assert shard.commits <= 2 + N / 500
        assert shard.syncs <= 2 + N / 500
        assert counts.pop("enqueue_imported") <= 1 + N / 500
        assert counts.pop("FileSource") <= 1 + N // per_file
        assert counts.pop("_chunks") == 1
        assert counts.pop("listdir", 0) <= 2
        assert counts.pop("fsync", 0) <= 2 + N / 500
        assert not counts
        again = await import_run.import_tasks(engine, ChunkFiles(os.fspath(folder)), queue="mail")
        assert (again.imported, again.already) == (0, N)
