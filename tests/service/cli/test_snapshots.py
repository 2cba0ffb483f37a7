"""Snapshots by hand, of a store that nothing has open."""

from datetime import datetime
from pathlib import Path

import pytest
from support_cli import first, make, objects, run

from lodeq.engine.bulk.snapshot_lease import pin_snapshot

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "s", shards=2)


def test_a_snapshot_from_first_to_last(store):
    assert run("snapshots", store).stdout == ""
    assert objects("snapshots", store) == []
    one = run("snapshot", store).stdout.strip()
    two = first("snapshot", store, "--keep", "2h")
    assert objects("snapshots", store)[1] == two
    assert [told["id"] for told in objects("snapshots", store)] == [one, two["id"]]
    assert Path(two["path"], "snapshot.json").is_file()
    created, expires = (
        datetime.fromisoformat(two[f"{name}_at"]) for name in ("created", "expires")
    )
    assert (expires - created).total_seconds() == 7200
    assert [mark[0] for mark in two["shards"]] == [0, 1]
    title, *rows = run("snapshots", store).stdout.splitlines()
    assert title.split() == ["id", "kept", "until", "shards", "path"]
    assert [row.split()[0] for row in rows] == [one, two["id"]]
    assert "--yes" in run("release-snapshot", store, one, code=2).stderr
    assert run("release-snapshot", store, one, "--yes").stdout == f"{one} released\n"
    assert first("release-snapshot", store, two["id"], "--yes") == {
        "id": two["id"],
        "released": True,
    }
    assert "has no snapshot" in run("release-snapshot", store, one, "--yes", code=2).stderr
    assert objects("snapshots", store) == []


def test_one_that_is_kept_for_ever(store):
    taken = first("snapshot", store)
    pin_snapshot(str(store), taken["id"], (1 << 63) - 1)
    assert "9999-12-31" in run("snapshots", store).stdout


@pytest.mark.parametrize(
    "args",
    [
        ["snapshot", "--keep", "soon"],
        ["snapshot", "--keep", "0"],
        ["release-snapshot", "..", "--yes"],
    ],
)
def test_wrong_input_is_exit_code_2(store, args):
    assert run(args[0], store, *args[1:], code=2).stderr
    assert objects("snapshots", store) == []


def test_no_store_is_made(tmp_path):
    for command in ("snapshot", "snapshots"):
        assert "holds no store" in run(command, tmp_path / "none", code=2).stderr
    assert list(tmp_path.iterdir()) == []
