"""A relative path means the folder in which it was given, wherever the process goes later."""

from pathlib import Path

import pytest

import lodeq
from lodeq.client.cluster.address import node_addresses
from lodeq.client.transport.transport import Target
from lodeq.engine.files.paths import absolute_path
from lodeq.replication.etcd.address import parse_address
from lodeq.worker import App

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def go(tmp_path, monkeypatch):
    """Goes to another folder."""
    return lambda: monkeypatch.chdir(tmp_path / "there")


@pytest.mark.parametrize("made", [str, Path])
def test_the_folder_of_an_app(here, go, made):
    app = App(made("store"))
    go()
    assert app.store == str(here / "store")


def test_the_folder_that_an_app_is_given_later(here, go):
    app = App()
    app.store = "store"
    go()
    assert app.store == str(here / "store")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("unix://a.sock", "unix://{}/a.sock"),
        ("lodeq://unix:a.sock,b:7000", "lodeq://unix://{}/a.sock,b:7000"),
        ("tcp://a:7000", "tcp://a:7000"),
    ],
)
def test_the_address_of_an_app(here, go, given, meant):
    app = App(given)
    go()
    assert app.store == meant.format(here)


async def test_an_app_that_joins_opens_the_store_where_it_was_named(here, go):
    app = App("store", serve=True, join=True)
    go()
    async with app:
        assert (here / "store").is_dir()


async def test_a_store_that_is_opened_later(here, go):
    handle = lodeq.open("store")
    go()
    async with handle:
        assert (here / "store").is_dir()


async def test_a_client_that_connects_later(here, go):
    async with lodeq.open("store", serve=True):
        handle = lodeq.connect("unix://store.sock")
        go()
        async with handle as client:
            assert (await client.health()).ok


async def test_a_client_whose_socket_has_a_path_that_is_too_long(tmp_path, monkeypatch):
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    async with lodeq.open(tmp_path / "store", serve=True):
        (deep / "s").symlink_to(tmp_path / "store.sock")
        monkeypatch.chdir(deep)
        async with lodeq.connect("unix://s") as client:
            assert (await client.health()).ok


def test_the_socket_of_a_client(here, go):
    target = Target("unix://a.sock", None, 30.0)
    assert target.uds == str(here / "a.sock")


def test_the_sockets_of_a_cluster(here):
    assert node_addresses("lodeq://unix:a.sock") == [f"unix://{here}/a.sock"]


async def test_a_cluster_from_within_a_folder_with_a_comma_in_its_name(tmp_path, monkeypatch):
    (tmp_path / "a,b").mkdir()
    monkeypatch.chdir(tmp_path / "a,b")
    async with (
        lodeq.open("store", serve=True),
        lodeq.connect("lodeq://unix:store.sock") as client,
    ):
        assert (await client.health()).ok


@pytest.mark.parametrize("name", ["tokens", "checkpoints"])
def test_the_files_of_a_server(here, go, name):
    serve = lodeq.Serve(**{name: "some/file"})
    go()
    assert getattr(serve, name) == str(here / "some" / "file")


def test_the_files_of_an_address_of_etcd(here, go):
    address = parse_address("etcd://a/orders?user=u&password-file=secret")
    go()
    assert address.password_file == here / "secret"


@pytest.mark.parametrize("bad", ["", "a\0b", "redis:/a"])
def test_what_is_no_path_is_refused_where_it_is_used(here, bad):
    assert absolute_path(bad) == bad


@pytest.mark.parametrize("bad", ["", "a\0b", "redis:/a"])
async def test_an_app_whose_store_is_no_path_is_refused_when_it_starts(here, bad):
    app = App(bad)
    with pytest.raises(lodeq.StorePathError):
        await app.__aenter__()
