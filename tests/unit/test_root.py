"""The root package: every public name is there, and none is imported before it is used."""

import ast
import json
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import lodeq
import lodeq.sync

ROOT = Path(lodeq.__file__)


def run(script: str) -> object:
    """Output of a fresh interpreter, from JSON. Warnings are errors there, too."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_the_root_imports_the_errors_alone():
    loaded = run(
        "import sys, json, lodeq; dir(lodeq); lodeq.LodeqError\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('lodeq')]))"
    )
    assert set(loaded) == {"lodeq", "lodeq.errors"}


def test_every_name_resolves_to_itself_each_time():
    for name in lodeq.__all__:
        assert getattr(lodeq, name) is getattr(lodeq, name)
        assert name in vars(lodeq)  # from the second time on, nothing is looked up


@pytest.mark.slow
def test_every_name_resolves_first_of_all():
    """No name needs another one to be imported before it."""
    one_of_each = {module: name for name, module in lodeq._HOME_OF.items() if name in lodeq.__all__}
    names = [*one_of_each.values(), *lodeq._MODULES, "open", "COMPILED"]
    script = (
        "import json, os, lodeq\n"
        f"failed = []\n"
        f"for name in {names!r}:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        try:\n"
        "            getattr(lodeq, name)\n"
        "        except BaseException:\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        failed.append(name)\n"
        "print(json.dumps(failed))"
    )
    assert run(script) == []


def test_a_star_import_brings_every_name():
    found = run("from lodeq import *\nimport json; print(json.dumps(sorted(globals())))")
    assert set(lodeq.__all__) <= set(found)


@pytest.mark.parametrize("module", [lodeq, lodeq.sync])
def test_an_unknown_name_is_an_attribute_error_that_names_the_module(module):
    with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'Nix'"):
        _ = module.Nix
    with pytest.raises(AttributeError):
        _ = module._HOST


def test_an_unknown_name_cannot_be_imported():
    with pytest.raises(ImportError, match="Nix"):
        from lodeq import Nix  # noqa: F401


@pytest.mark.parametrize("module", [lodeq, lodeq.sync])
def test_dir_lists_what_is_public(module):
    listed = dir(module)
    assert listed == sorted(set(listed))
    assert {*module.__all__, "__doc__", "__name__", "__all__"} <= set(listed)
    fresh = f"import json, {module.__name__} as module; print(json.dumps(dir(module)))"
    assert set(module.__all__) <= set(run(fresh))


def test_help_shows_every_class_and_function():
    text = pydoc.render_doc(lodeq, renderer=pydoc.plaintext)
    assert "class Engine(" in text
    assert "class Task(" in text
    assert "connect(url: " in text
    assert lodeq.open.__name__ == "open_engine"
    assert "open = open_engine(" in text or "open_engine(" in text


def test_type_checkers_see_what_the_interpreter_imports():
    """The two lists of the root agree: the one for type checkers, and the one that is used."""
    tree = ast.parse(ROOT.read_text("utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imported = {
        (alias.asname or alias.name): (node.module or "", alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    declared = {
        node.target.id
        for node in block.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    lazy = {
        name: ("", name) if name in lodeq._MODULES else (lodeq._HOME_OF[defined], defined)
        for name in lodeq.__all__
        if name not in declared and not name.endswith("Error")
        for defined in [lodeq._DEFINED_AS.get(name, name)]
    }
    assert imported == lazy
    assert declared == {"COMPILED"}
    assert set(lodeq._HOME_OF) == {lodeq._DEFINED_AS.get(n, n) for n in lazy} - {*lodeq._MODULES}


def test_compiled_tells_the_build():
    from lodeq.repository.tasks import fast_path

    assert lodeq.COMPILED is not fast_path.__file__.endswith((".py", ".pyc"))


def test_which_build_runs_is_known_without_loading_a_store():
    loaded = run(
        "import sys, json, lodeq; lodeq.COMPILED\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('lodeq')]))"
    )
    assert set(loaded) == {"lodeq", "lodeq.errors", "lodeq.repository", "lodeq.repository.tasks"}


def test_a_store_opens_from_a_fresh_import(tmp_path):
    script = f"""
import json, sys, lodeq.sync
before = [name for name in sys.modules if "rocksdict" in name]
with lodeq.sync.open({str(tmp_path / "s")!r}, block_cache_bytes=1 << 20) as engine:
    engine.queue("mail").enqueue(b"x")
    (lease,) = engine.queue("mail").claim()
    lease.complete()
print(json.dumps([before, isinstance(engine, lodeq.sync.SyncEngine)]))
"""
    assert run(script) == [[], True]
