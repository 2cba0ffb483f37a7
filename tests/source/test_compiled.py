"""The modules that `setup.py` compiles: they exist, without what mypyc compiles unsafely."""

import ast
import runpy
from pathlib import Path

import pytest
import setuptools
from support_sources import ROOT, nodes_of

import lodeq
from lodeq.engine.records import keyspace, workflow
from lodeq.engine.runtime import ids
from lodeq.repository.model import encoded_tasks
from lodeq.repository.state import lease_state
from lodeq.repository.tasks import fast_path

SUSPENDS = (ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom)


@pytest.fixture(scope="module")
def compiled() -> list[Path]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(setuptools, "setup", lambda **_: None)
        patched.delenv("LODEQ_COMPILED", raising=False)
        told = runpy.run_path(str(ROOT / "setup.py"))["COMPILED"]
    return [ROOT / folder / f"{name}.py" for folder, names in told.items() for name in names]


def test_every_compiled_module_exists(compiled):
    assert len(compiled) > 20
    assert [path for path in compiled if not path.is_file()] == []


def test_no_coroutine_or_generator_is_compiled(compiled):
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in compiled
        for node in nodes_of(path)
        if isinstance(node, SUSPENDS)
    ]
    assert found == [], "see docs/adr/20261122-compiled-modules.md"


def test_no_slice_object_cuts_bytes_in_a_compiled_module(compiled):
    """Compiled code takes it for a number, and raises when it runs."""
    slices = {
        name
        for module in (keyspace, workflow)
        for name, value in vars(module).items()
        if isinstance(value, slice)
    }
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}"
        for path in compiled
        for node in nodes_of(path)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in slices
    ]
    assert len(slices) > 5
    assert found == []


def test_which_build_this_is_is_told():
    for module in (fast_path, ids, lease_state):
        assert module.__file__.endswith(".py") is not lodeq.COMPILED
    assert encoded_tasks.__file__.endswith(".py")
