"""Either transport, one shard and four are in the quick tier; every pair of them in the proof."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
QUICK = {("http", 1), ("link", 4)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # those of all folders
        params = getattr(getattr(item, "callspec", None), "params", {})
        pair = params.get("transport"), params.get("shards")
        if HERE in item.path.parents and None not in pair and pair not in QUICK:
            item.add_marker(pytest.mark.slow)
