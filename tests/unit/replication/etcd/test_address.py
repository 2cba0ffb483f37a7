"""Addresses of etcd: what they mean, and what is wrong with those that are none."""

from pathlib import Path

import pytest

from lodeq.errors import UsageError
from lodeq.replication.etcd.address import EtcdAddress, parse_address


def test_an_address_with_everything():
    url = (
        "etcd://a:1,[::1]:2,10.0.0.3/orders?ttl=5&ca=/c/ca.pem&cert=/c/n.pem&key=/c/n.key"
        "&user=lodeq&password-file=/c/pass&quota=8GiB&copies=3"
    )
    assert parse_address(url) == EtcdAddress(
        ("a:1", "[::1]:2", "10.0.0.3:2379"),
        "orders",
        ttl_s=5,
        ca=Path("/c/ca.pem"),
        cert=Path("/c/n.pem"),
        key=Path("/c/n.key"),
        user="lodeq",
        password_file=Path("/c/pass"),
        quota_bytes=8 << 30,
        copies=3,
    )


def test_further_groups_are_clusters_of_etcd_with_the_same_options():
    found = parse_address("etcd://a:1/orders?group=b:1,c&ttl=5&group=d:4")
    assert found.groups == (("b:1", "c:2379"), ("d:4",))
    assert [one.endpoints for one in found.of_groups] == [("a:1",), ("b:1", "c:2379"), ("d:4",)]
    assert {(one.cluster, one.ttl_s, one.groups) for one in found.of_groups} == {("orders", 5, ())}
    for wrong in ("group=", "group=a:1", "group=b:1&group=b:1", "group=b c", "group=b:0"):
        with pytest.raises(UsageError):
            parse_address(f"etcd://a:1/orders?{wrong}")
    with pytest.raises(UsageError, match="15 at most"):
        parse_address("etcd://a/orders?" + "&".join(f"group=b{n}" for n in range(16)))


def test_what_is_left_out_has_a_default():
    found = parse_address("etcd://a/orders")
    assert found == EtcdAddress(("a:2379",), "orders", ttl_s=3, quota_bytes=2 << 30)
    assert found.prefix == b"/lodeq/orders/"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a/x", "starts with etcd://"),
        ("etcd:a/x", "starts with etcd://"),
        ("etcd:///x", "endpoint '' is not host or host:port"),
        ("etcd://a:0/x", "endpoint 'a:0'"),
        ("etcd://a:65536/x", "endpoint 'a:65536'"),
        ("etcd://a b/x", "endpoint 'a b'"),
        ("etcd://a,a:2379/x", "named twice"),
        ("etcd://" + ",".join(f"h{n}" for n in range(17)) + "/x", "name 1 to 16"),
        ("etcd://a", "cluster name ''"),
        ("etcd://a/X", "cluster name 'X'"),
        ("etcd://a/x/y", "cluster name 'x/y'"),
        ("etcd://u:p@a/x", "carries no password"),
        ("etcd://a/x?ttl=1", "2 to 60"),
        ("etcd://a/x?ttl=61", "2 to 60"),
        ("etcd://a/x?ttl=3.5", "a whole number of seconds"),
        ("etcd://a/x?ttl=", "option ttl has no value"),
        ("etcd://a/x?ttl=3&ttl=4", "given twice"),
        ("etcd://a/x?tls=1", "unknown option 'tls'"),
        ("etcd://a/x?ttl", "not key=value"),
        ("etcd://a/x?cert=c", "belong together"),
        ("etcd://a/x?cert=c&key=k", "needs ca="),
        ("etcd://a/x?user=u", "belong together"),
        ("etcd://a/x?password-file=f", "belong together"),
        ("etcd://a/x?quota=0", "quota=0"),
        ("etcd://a/x?quota=2GB", "as in 2GiB"),
        ("etcd://a/x?copies=0", "a shard has 1 to 16"),
        ("etcd://a/x?copies=17", "a shard has 1 to 16"),
        ("etcd://a/x?copies=all", "how many nodes have a copy"),
    ],
)
def test_what_is_wrong_is_said(url, said):
    with pytest.raises(UsageError) as found:
        parse_address(url)
    assert said in str(found.value)


def test_no_address_at_all():
    with pytest.raises(UsageError, match="is a str, not NoneType"):
        parse_address(None)
