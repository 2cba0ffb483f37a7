"""Every loop and every store is in the quick tier; every pair of them in the proof."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
QUICK = {("asyncio", "rocks"), ("trio", "memory")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # those of all folders
        params = getattr(getattr(item, "callspec", None), "params", {})
        match params.get("anyio_backend"), params.get("form"):
            case ((str(loop) | (str(loop), _)), (str(store), int())) if HERE in item.path.parents:
                if (loop, store) not in QUICK:
                    item.add_marker(pytest.mark.slow)
