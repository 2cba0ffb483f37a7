"""Nodes as processes over a real etcd: all of these tests are slow."""

from pathlib import Path

import pytest
from support_etcd import EtcdServers, shared_servers

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def servers() -> EtcdServers:
    """Three members, which other tests use as well."""
    return shared_servers()


@pytest.fixture
def one_server(tmp_path):
    """One member of its own: for what cannot be undone."""
    made: list[EtcdServers] = []

    def make(**given) -> EtcdServers:
        made.append(EtcdServers(tmp_path, 1, **given))
        return made[0]

    yield make
    for server in made:
        server.stop()
