"""The mechanical part of the house rules, in one pass over the sources.

What ruff and import-linter forbid (`make check`) is not asked here again.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from support_sources import (
    BESIDE,
    PACKAGE,
    PYTHON,
    ROOT,
    TEXT_FILES,
    name_of,
    nodes_of,
    none_of,
    parse,
    text_of,
    top_of,
)

FACES = {
    "journal.py",
    "lifecycle.py",
    "worker.py",
}  # modules that hand on what lies deeper, as an ``__init__.py`` does
Function = ast.FunctionDef | ast.AsyncFunctionDef


def calls(path: Path, name: str) -> Iterator[ast.Call]:
    """Calls of this name, plain (``print``) or dotted (``time.sleep``)."""
    if name.rpartition(".")[2] in text_of(path):  # most files need not be parsed
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield node


def places(path: Path, nodes: Iterable[ast.expr]) -> Iterator[str]:
    return (f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}" for node in nodes)


def lines_matching(pattern: str) -> Iterator[str]:
    found = re.compile(pattern)
    return (
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in TEXT_FILES
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if found.search(line)
    )


def assignments(module: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Names bound by assignment at module level, each with its value."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for leaf in ast.walk(target):
                    if isinstance(leaf, ast.Name):
                        yield leaf.id, node.value


def declared_all(module: ast.Module) -> list[str] | None:
    values = [value for name, value in assignments(module) if name == "__all__"]
    return list(ast.literal_eval(values[0])) if values and values[0] is not None else None


def made(module: ast.Module) -> set[str]:
    return {node.name for node in module.body if isinstance(node, Function | ast.ClassDef)}


def handed_on(module: ast.Module) -> set[str]:
    """Names an ``__init__.py``, or another face, imports from its own package."""
    return {
        alias.asname or alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.level > 0
        for alias in node.names
    }


def lazy(module: ast.Module) -> set[str]:
    """Names that a module-level ``__getattr__`` imports, as its ``if TYPE_CHECKING`` says."""
    blocks = [node for node in module.body if isinstance(node, ast.If)]
    if not any(isinstance(node, Function) for block in blocks for node in block.body):
        return set()
    shown = [block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING"]
    inside = ast.Module([node for block in shown for node in block.body], [])
    return handed_on(inside) | {name for name, _ in assignments(inside)}


def faults_of_all(module: ast.Module, *, is_face: bool) -> Iterator[str]:
    """Every public class and function is listed; a constant may be, where it is meant to."""
    required = made(module) | (handed_on(module) | lazy(module) if is_face else set())
    listed = declared_all(module) or []
    public = {name for name in required if not name.startswith("_")}
    known = required | lazy(module) | {name for name, _ in assignments(module)}
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        yield f"__all__ lists {name} twice"
    for name in sorted(public.difference(listed)):
        yield f"__all__ does not list {name}"
    for name in sorted(set(listed) - known):
        yield f"__all__ lists {name}, which is not here"


def test_there_is_something_to_check() -> None:
    assert ROOT / "errors.py" in PACKAGE
    assert Path(__file__).resolve() in PYTHON
    assert len(PACKAGE) > 300
    assert len(PYTHON) > 700


def test_all_is_what_is_public() -> None:
    none_of(
        f"{name_of(path)}: {fault}"
        for path in PACKAGE
        for fault in faults_of_all(
            parse(path), is_face=path.name == "__init__.py" or name_of(path) in FACES
        )
    )


def test_the_search_finds_what_all_gets_wrong() -> None:
    module = ast.parse('__all__ = ["A", "A", "C"]\nclass A: ...\ndef b(): ...\n_c = 1\n')
    assert list(faults_of_all(module, is_face=False)) == [
        "__all__ lists A twice",
        "__all__ does not list b",
        "__all__ lists C, which is not here",
    ]
    face = ast.parse("from .deep import name")
    assert list(faults_of_all(face, is_face=True)) == ["__all__ does not list name"]
    assert list(faults_of_all(face, is_face=False)) == []
    deferred = ast.parse(
        "__all__ = ['a', 'c']\nif TYPE_CHECKING:\n    from .deep import a, b\n"
        "if not TYPE_CHECKING:\n    def __getattr__(name): ...\n"
    )
    assert list(faults_of_all(deferred, is_face=True)) == [
        "__all__ does not list b",
        "__all__ lists c, which is not here",
    ]
    assert list(faults_of_all(deferred, is_face=False)) == ["__all__ lists c, which is not here"]


def test_no_test_sleeps() -> None:
    tests = (path for path in PYTHON if top_of(path) == "tests")
    none_of(line for path in tests for line in places(path, calls(path, "time.sleep")))


def test_nothing_is_left_to_do() -> None:
    words = "|".join(["TO" + "DO", "FIX" + "ME"])
    none_of(lines_matching(rf"\b(?:{words})\b"))


def test_no_path_of_a_machine() -> None:
    none_of(lines_matching(r"(?<![\w.:/}$*-])/(?:home|root|work)(?![\w-])"))


def test_nothing_points_outside_the_checkout() -> None:
    none_of(lines_matching(r"\.\./shared"))


def test_packages_are_the_folders() -> None:
    config = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    folders = {
        ".".join(["lodeq", *path.relative_to(ROOT).parent.parts])
        for path in PACKAGE
        if path.name == "__init__.py"
    }
    renamed = config["tool"]["setuptools"]["package-dir"]
    for name, folder in renamed.items():
        if folder != ".":
            folders.remove(".".join(["lodeq", *folder.split("/")]))
            folders.add(name)
    assert sorted(config["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_every_folder_of_modules_is_a_package() -> None:
    none_of(name_of(path) for path in PACKAGE if not (path.parent / "__init__.py").is_file())


def test_the_folders_beside_are_no_packages() -> None:
    none_of(
        name_of(path) for path in PYTHON if top_of(path) in BESIDE and path.name == "__init__.py"
    )


def test_the_folders_of_unit_tests_are_those_of_the_package() -> None:
    units = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(units) for path in PYTHON if units in path.parents}
    none_of(
        f"tests/unit/{folder.as_posix()}: there is no {folder.as_posix()}/ in the package"
        for folder in sorted(folders)
        if not (ROOT / folder / "__init__.py").is_file()
    )


def test_the_root_hides_no_module_of_the_standard_library() -> None:
    names = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not names.intersection(sys.stdlib_module_names)
    assert not (ROOT / "conftest.py").exists()


# -- docstrings --------------------------------------------------------------------------

ARGS = re.compile(r"^Args:\n((?: {4,}.*\n?|\n)+)", re.MULTILINE)
ARG = re.compile(r"^ {4}(\*{0,2}\w[\w, *]*):", re.MULTILINE)


def documented(node: ast.AST) -> Iterator[tuple[str, Function]]:
    """A docstring, and the function whose arguments it may name."""
    if isinstance(node, Function):
        yield ast.get_docstring(node) or "", node
    elif isinstance(node, ast.ClassDef):
        for one in node.body:
            if isinstance(one, Function) and one.name in {"__init__", "__new__"}:
                yield ast.get_docstring(node) or "", one


def parameters(function: Function) -> set[str]:
    given = function.args
    all_of = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in all_of if one is not None}


def test_arguments_that_are_explained_are_those_there_are() -> None:
    none_of(
        f"{name_of(path)}:{function.lineno}: {name}"
        for path in PYTHON
        if "Args:" in text_of(path)
        for node in nodes_of(path)
        for doc, function in documented(node)
        if (args := ARGS.search(doc))
        for names in ARG.findall(args[1])
        for name in names.replace("*", "").split(", ")
        if name not in parameters(function)
    )
