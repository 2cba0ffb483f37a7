import pytest

from lodeq import UsageError
from lodeq.coalescer.hosting import Hosting
from lodeq.service.processes.plan import Order, ProcessShards, addresses_of

URLS = ("unix:///run/s.sock.0", "unix:///run/s.sock.1", "unix:///run/s.sock.2")


def test_every_shard_has_one_process():
    parts = [ProcessShards(URLS, n, "unix:///run/s.sock") for n in range(3)]
    for shard in range(8):
        (owner,) = [n for n, part in enumerate(parts) if part.hosts(shard)]
        assert owner == shard % 3
        assert {part.leader(shard) for part in parts} == {URLS[owner]}
    assert all(part.member_urls() == URLS for part in parts)
    assert all(isinstance(part, Hosting) for part in parts)


def test_processes_listen_beside_the_main_address():
    assert addresses_of("unix:///run/s.sock", [], 3) == list(URLS)
    assert addresses_of("tcp://[::1]:70", [71, 72], 2) == ["tcp://[::1]:71", "tcp://[::1]:72"]
    with pytest.raises(UsageError, match="comma"):
        addresses_of("unix:///run/a,b.sock", [], 2)


def test_an_order_is_read_as_it_was_given_and_shows_no_token():
    order = Order(
        path="/srv/jobs",
        number=1,
        shards=8,
        durability="fsync",
        listen=URLS[1],
        urls=URLS,
        front="unix:///run/s.sock",
        block_cache_bytes=1 << 20,
        grace_s=5.0,
        token="sixteen characters",
        hosts=("jobs.example.org",),
        checkpoints="/srv/copies",
    )
    assert Order.of(order.line()) == order
    assert order.line().count(b"\n") == 1
    assert "sixteen" not in repr(order)
