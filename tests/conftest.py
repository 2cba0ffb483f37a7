"""What every test shares."""

import gc

import hypothesis
import pytest

import lodeq

# A deadline per example measures the machine, not the code.
hypothesis.settings.register_profile("lodeq", deadline=None)
hypothesis.settings.load_profile("lodeq")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The compiled build takes no stand-ins for its parts, and none of its functions is patched."""
    if lodeq.COMPILED:
        out = [item for item in items if item.get_closest_marker("interpreted")]
        items[:] = [item for item in items if item not in set(out)]
        config.hook.pytest_deselected(items=out)


def pytest_collection_finish() -> None:
    """Keep what stays for the whole run (modules, thousands of items) out of garbage searches."""
    gc.collect()
    gc.freeze()
