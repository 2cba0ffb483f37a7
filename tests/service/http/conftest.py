"""Served engines.

Either transport, one shard and four are in the quick tier; every pair of them in the proof.
"""

from pathlib import Path

import pytest

from lodeq.service.http.link import connection as linked

HERE = Path(__file__).resolve().parent
QUICK = {("http", 1), ("link", 4)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # those of all folders
        params = getattr(getattr(item, "callspec", None), "params", {})
        pair = params.get("transport"), params.get("shards")
        if HERE in item.path.parents and None not in pair and pair not in QUICK:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def cut(monkeypatch):
    """Answers to be cut off: each ends its connection in place of the answer."""
    left = [0]
    real = linked.LinkConnection.answer

    def answer(self, *args):
        if left[0]:
            left[0] -= 1
            self._abort()
        else:
            real(self, *args)

    monkeypatch.setattr(linked.LinkConnection, "answer", answer)
    return left
