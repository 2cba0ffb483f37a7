"""Which node each shard is taken from, and how much of a backup is believed."""

import json
import os

import pytest

from lodeq.errors import CorruptionError, UsageError
from lodeq.replication.assemble import assemble
from lodeq.replication.backup import BACKUP, NODES, Backup, choose, parts_of, write_backup
from lodeq.replication.port import NO_COPY, Checkpoint


def of(node, *applied):
    return Checkpoint(node, f"http://{node}", f"d-{node}", applied, 5)


def test_of_each_shard_the_most_advanced_is_taken_and_of_equal_ones_few_nodes():
    a, b, c = of("a", 7, 3, NO_COPY), of("b", 7, NO_COPY, 2), of("c", 6, 4, 2)
    assert choose([a, b, c], 3, {}) == (a, c, c)
    assert choose([c, b, a], 3, {}) == (b, c, c)
    found = Backup("x", (a, c, c), (7, 9, 1), {})
    assert found.parts() == {a: [0], c: [1, 2]}
    assert found.lacks() == {1: 5}
    assert choose([of("e", 0)], 1, {})[0].node == "e"  # an empty shard is a shard


def test_a_shard_that_nobody_has_is_named_and_who_did_not_answer():
    with pytest.raises(UsageError, match=r"a copy of shard 1: start .*; d: it is away$"):
        choose([of("a", 7, NO_COPY)], 2, {"d": "it is away"})


def test_what_is_in_a_backup_is_read_back(tmp_path):
    found = Backup("x", (of("a", 7, 3), of("b", 1, 4)), (7, 5), {"c": "gone"})
    write_backup(str(tmp_path), found)
    assert parts_of(str(tmp_path)) == [str(tmp_path / NODES / node) for node in "ab"]
    body = json.loads((tmp_path / BACKUP).read_text())
    assert body["shards"][1] == {"shard": 1, "node": "b", "entry": 4, "last": 5, "taken_ms": 5}
    assert body["unreached"] == {"c": "gone"}
    assert parts_of(str(tmp_path / "a")) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(version=2),
        lambda body: body.update(format="another"),
        lambda body: body["shards"][0].update(node="../a"),
        lambda body: body["shards"][0].pop("node"),
        lambda body: body.update(shards=7),
    ],
)
def test_a_damaged_backup_says_what_to_do(tmp_path, change):
    write_backup(str(tmp_path), Backup("x", (of("a", 7),), (7,), {}))
    body = json.loads((tmp_path / BACKUP).read_text())
    change(body)
    (tmp_path / BACKUP).write_text(json.dumps(body))
    with pytest.raises(CorruptionError, match="name the folders in nodes/ beside it"):
        parts_of(str(tmp_path))
    with pytest.raises(CorruptionError, match="name the folders in nodes/ beside it"):
        assemble(tmp_path / "new", [tmp_path])
    assert not os.path.exists(tmp_path / "new")
