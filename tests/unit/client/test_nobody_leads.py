"""Who is asked about where nobody leads anything: the log of a cluster, or processes of a store."""

import pytest

from lodeq.client.calls import Call
from lodeq.client.cluster import nodes as nodes_module
from lodeq.client.cluster.nodes import Nodes
from lodeq.client.cluster.target import ClusterTarget
from lodeq.client.cluster.topology import Topology
from lodeq.errors import UnreachableError

pytestmark = pytest.mark.anyio
ADDRESS = "lodeq://unix:/run/a.0.sock,unix:/run/a.1.sock"
MAIN = "unix:///run/a.sock"


@pytest.fixture
def nodes(monkeypatch):
    """Nodes that lead nothing, and a client without pauses."""

    async def nothing(*args, **given):
        pass

    monkeypatch.setattr(Nodes, "refresh", nothing)
    monkeypatch.setattr(Topology, "leader", lambda self, shard: None)
    monkeypatch.setattr(nodes_module, "pause", nothing)
    found = Nodes(ClusterTarget(ADDRESS, None, 1.0))
    found.patience_s = 0.0
    return found


async def asked(nodes, shard):
    asking = nodes.leaders() if shard is None else nodes.follow(Call("GET", "/stats"), shard)
    with pytest.raises(UnreachableError) as refused:
        await asking
    return str(refused.value)


@pytest.mark.parametrize("shard", [None, 3])
async def test_a_cluster_is_asked_about_its_log(nodes, shard):
    assert "is its log there?" in await asked(nodes, shard)


@pytest.mark.parametrize("shard", [None, 3])
async def test_processes_of_one_store_have_no_log_and_their_main_address_is_named(nodes, shard):
    nodes.target.front = MAIN
    text = await asked(nodes, shard)
    assert text.startswith(MAIN)
    assert "log" not in text
    assert "does the service stop" in text
