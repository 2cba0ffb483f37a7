"""What works on a folder refuses an address, before anything is made."""

import os

import pytest
from support_cli import make, run

import lodeq
from lodeq.service.cli.connection import check_folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to be in: an address is a relative path."""
    store = make(tmp_path / "s")
    with lodeq.sync.open(store) as engine:
        engine.checkpoint(tmp_path / "copy")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield store
    assert os.listdir(here) == []


@pytest.mark.slow
@pytest.mark.parametrize("url", ["unix:///x/v.sock", "http://localhost:1", "https://a.example/b"])
@pytest.mark.parametrize(
    "args",
    [
        ["init", "URL"],
        ["serve", "URL"],
        ["serve", "new", "--checkpoints", "URL"],
        ["doctor", "URL"],
        ["repair", "URL", "--yes"],
        ["compact", "URL"],
        ["reshard", "URL", "--shards", "2"],
        ["restore", "URL", "new"],
        ["restore", "COPY", "URL"],
        ["backup", "STORE", "URL"],
        ["import", "huey", "COPY", "--to", "URL"],
        ["export", "URL", "--queue", "q", "--to", "new"],
        ["export", "STORE", "--queue", "q", "--to", "URL"],
    ],
    ids=" ".join,
)
def test_an_address_is_no_folder(here, url, args):
    names = {"URL": url, "STORE": here, "COPY": here.parent / "copy"}
    error = run(*(names.get(arg, arg) for arg in args), code=2).stderr
    assert "address of a service" in error


def test_anything_else_may_be_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("a", "/x/unix:", "./unix:x", "./http://x"):
        assert check_folder(path) == path
    for path in ("unix://x", "unix:x", "tcp:x:1", "http:/x"):
        with pytest.raises(lodeq.UsageError, match="address of a service"):
            check_folder(path)
    (tmp_path / "unix:x").mkdir()  # a folder that is there is meant
    assert check_folder("unix:x") == "unix:x"
