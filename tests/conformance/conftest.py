"""Every loop and every store is in the quick tier; every pair of them in the proof."""

import pytest

QUICK = {("asyncio", "rocks"), ("trio", "memory")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = (
            item.callspec.params
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else {}
        )
        if {"anyio_backend", "form"} <= params.keys():
            loop, (store, _) = params["anyio_backend"], params["form"]
            if (loop if isinstance(loop, str) else loop[0], store) not in QUICK:
                item.add_marker(pytest.mark.slow)
