"""Collect the root of the checkout as a plain folder.

The root has an ``__init__.py``, because it is the package ``lodeq``. Left alone, pytest takes it
for a test package and imports the library a second time under the folder's name.
"""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return pytest.Dir.from_parent(parent, path=path) if path == parent.config.rootpath else None
