"""Every pytest run of a project with lodeq installed imports the plugin: it costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import lodeq.testing

COUNT = """
import sys
import pytest
before = set(sys.modules)
import lodeq.testing.plugin
after = set(sys.modules) - before
ours = sorted(name for name in after if name.split(".")[0] == "lodeq")
print(len(after), *ours)
"""


def loaded(code: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout.split()


def test_the_plugin_imports_next_to_nothing() -> None:
    count, *ours = loaded(COUNT)
    assert ours == ["lodeq", "lodeq.errors", "lodeq.testing", "lodeq.testing.plugin"]
    assert int(count) < 20  # with what of the standard library is not there yet


def test_each_public_name_is_where_it_is_said_to_be() -> None:
    assert sorted(lodeq.testing.__all__) == lodeq.testing.__all__
    assert set(lodeq.testing._HOME_OF) == set(lodeq.testing.__all__)
    tree = ast.parse(Path(lodeq.testing.__file__).read_text("utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    said = {
        name.name: node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert said == lodeq.testing._HOME_OF
    for name in lodeq.testing.__all__:
        assert getattr(lodeq.testing, name).__module__.startswith("lodeq.testing.")
    assert set(lodeq.testing.__all__) <= set(dir(lodeq.testing))
