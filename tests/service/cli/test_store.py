"""The store as a whole: made, checked, repaired, copied, compacted."""

import pytest
from support_cli import first, make, objects, picture, run

import lodeq
from lodeq.engine.offline.read_only import look_at

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    root = make(tmp_path / "s", shards=2)
    lines = "".join(f"{n}\n" for n in range(50))
    run("enqueue", root, "mail", "--lines", stdin=lines)
    return root


def test_init_says_what_it_made_and_overwrites_nothing(tmp_path):
    told = first("init", tmp_path / "s", "--shards", 3, "--durability", "fsync")
    assert told == {"path": str(tmp_path / "s"), "shards": 3, "durability": "fsync"}
    with lodeq.sync.open(tmp_path / "s") as engine:
        assert (engine.shards, engine.durability) == (3, "fsync")
    assert "is a store already" in run("init", tmp_path / "s", code=2).stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    run("init", tmp_path / "other", code=2)


def test_verify_writes_nothing(store):
    before = picture(store)
    assert run("verify", store).stdout == "nothing is wrong\n"
    assert objects("verify", store) == []
    assert picture(store) == before


def damage(store):
    """Take the index row of a task away, behind the back of the engine."""
    from lodeq.engine.records.keyspace import INDEX, INDEX_END
    from lodeq.engine.store.rocks import RocksStore
    from lodeq.engine.store.rocks_options import SharedMemory

    shard = RocksStore.open(store / "shard0", shared=SharedMemory(8 << 20), create=False)
    rows = shard.scan(INDEX, INDEX_END, 1) or None
    if rows is None:
        shard.close()
        shard = RocksStore.open(store / "shard1", shared=SharedMemory(8 << 20), create=False)
        rows = shard.scan(INDEX, INDEX_END, 1)
    shard.write([(rows[0][0], None)])
    shard.close()


def test_a_finding_is_exit_code_1_and_repair_mends_it(store):
    damage(store)
    found = objects("verify", store, code=1)
    assert {one["kind"] for one in found} == {"no_place", "counters"}
    assert "no_place" in run("verify", store, code=1).stdout
    before = picture(store)
    assert objects("repair", store, "--dry-run", code=1) == found
    assert "--yes" in run("repair", store, code=2).stderr
    assert picture(store) == before
    told = first("repair", store, "--yes")
    assert told["left"] == []
    assert "1 tasks requeued" in told["done"][0]
    assert run("repair", store).stdout == "nothing to repair\n"
    assert first("repair", store) == {"done": [], "left": []}
    assert run("repair", store, "--dry-run").stdout == "nothing to repair\n"
    assert objects("repair", store, "--dry-run") == []
    assert len(objects("ls", store, "mail")) == 50


def test_backup_and_restore(store, tmp_path):
    told = first("backup", store, tmp_path / "copy")
    assert (told["shards"], told["path"]) == (2, str(tmp_path / "copy"))
    assert told["bytes"] > 0
    run("backup", store, tmp_path / "copy", code=2)
    assert run("verify", tmp_path / "copy").stdout == "nothing is wrong\n"
    assert "restored to" in run("restore", tmp_path / "copy", tmp_path / "new").stdout
    assert len(objects("ls", tmp_path / "new", "mail")) == 50
    run("restore", tmp_path / "copy", store, code=2)


def test_compact(store):
    run("purge", store, "mail", "--yes")
    told = first("compact", store)
    assert told["table_bytes"] > 0
    assert run("verify", store).stdout == "nothing is wrong\n"


def test_a_lifecycle_journal_is_told_what_is_done_here(tmp_path):
    root = tmp_path / "s"
    with lodeq.sync.open(root, journal="tasks"):
        pass
    task_id = first("enqueue", root, "mail", "x")["id"]
    run("cancel", root, task_id, "--yes")
    lines = objects("segments", "dump", root / "journals" / "tasks")
    assert len(lines) >= 3  # opened, enqueued, cancelled


def test_nothing_is_left_in_the_temporary_folder(store, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    for command in ("ls", "stats", "verify"):
        run(command, store)
    look_at(store).close()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_verify_reads_the_payloads_of_a_checkpoint(tmp_path, harm):
    root, copy = make(tmp_path / "s"), tmp_path / "copy"
    with lodeq.sync.open(root) as engine:
        engine.queue("mail").enqueue(bytes(100_000))
        engine.checkpoint(copy)
    assert run("verify", copy).stdout == "nothing is wrong\n"
    file = copy / "bodies0" / "1.sqs"
    raw = file.read_bytes()
    file.unlink()
    if harm == "damaged":
        file.write_bytes(raw[:5000] + b"ouch" + raw[5004:])
    found = objects("verify", copy, code=1)
    assert [one["kind"] for one in found] == ["file", "body"]
    assert "1.sqs" in found[0]["detail"]
    assert "1.sqs" in found[1]["detail"]
    assert run("verify", root).stdout == "nothing is wrong\n"


def test_repair_settles_a_payload_that_is_gone(tmp_path):
    root = make(tmp_path / "s")
    with lodeq.sync.open(root) as engine:
        engine.queue("mail").enqueue(bytes(100_000))
    (root / "bodies0" / "1.sqs").unlink()
    assert "body" in run("verify", root, code=1).stdout
    run("repair", root, "--yes")
    assert run("verify", root).stdout == "nothing is wrong\n"
