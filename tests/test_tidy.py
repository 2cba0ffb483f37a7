"""The mechanical part of the house rules, checked over the sources themselves."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BESIDE = {"bench", "docs", "examples", "tests"}  # in the checkout, not in the package
BUILT = {"build", "dist", "htmlcov", "__pycache__"}
FACES = {
    "journal.py",
    "lifecycle.py",
    "worker.py",
}  # modules that hand on what lies deeper, as an ``__init__.py`` does
TEXT = {".cfg", ".in", ".ini", ".md", ".py", ".pyi", ".toml", ".txt", ".yaml", ".yml"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_ours(path: Path) -> bool:
    first, *_ = path.relative_to(ROOT).parts
    if path.name.startswith(".") and first not in {".ci", ".gitignore"}:
        return False
    return path.name not in BUILT and not path.name.endswith(".egg-info")


def walk(folder: Path) -> Iterator[Path]:
    """All files below. ``.venv`` is never entered: it holds a link to the root."""
    for path in sorted(folder.iterdir()):
        if not is_ours(path) or path.is_symlink():
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def top_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


TEXT_FILES = [
    path
    for path in walk(ROOT)
    if path.suffix in TEXT or path.name in {"Makefile", ".gitignore"} or top_of(path) == ".ci"
]
PYTHON = [path for path in TEXT_FILES if path.suffix == ".py"]
PACKAGE = [path for path in PYTHON if top_of(path) not in BESIDE | {"setup.py"}]


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), name_of(path))


def lines_of(nodes: Iterable[ast.AST]) -> list[int]:
    return [getattr(node, "lineno", 1) for node in nodes]


def calls(path: Path, *names: str) -> Iterator[ast.AST]:
    """Calls of these names, plain (``print``) or dotted (``time.sleep``)."""
    return (
        node
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    )


def lines_matching(pattern: str) -> list[str]:
    found = re.compile(pattern)
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in TEXT_FILES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if found.search(line)
    ]


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


def imported(module: ast.Module) -> Iterator[str]:
    """Names of the top-level packages a file imports."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def test_there_is_something_to_check() -> None:
    assert ROOT / "errors.py" in PACKAGE
    assert Path(__file__).resolve() in PYTHON


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
class TestModule:
    def test_prints_nothing(self, path: Path) -> None:
        assert not lines_of(calls(path, "print"))

    def test_catches_nothing_bare(self, path: Path) -> None:
        handlers = (node for node in ast.walk(parse(path)) if isinstance(node, ast.ExceptHandler))
        assert not lines_of(handler for handler in handlers if handler.type is None)

    def test_all_is_what_is_public(self, path: Path) -> None:
        """Every public class and function is listed; a constant may be, where it is meant to."""
        module = parse(path)
        is_face = path.name == "__init__.py" or name_of(path) in FACES
        required = made(module) | (handed_on(module) if is_face else set())
        listed = declared_all(module) or []
        assert len(listed) == len(set(listed)), "a name is listed twice"
        assert not {name for name in required if not name.startswith("_")}.difference(listed)
        assert not set(listed).difference(required, (name for name, _ in assignments(module)))


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_stored_bytes_never_become_code(path: Path) -> None:
    assert not {"dill", "marshal", "pickle", "shelve"}.intersection(imported(parse(path)))
    assert not lines_of(calls(path, "eval"))


def test_no_test_sleeps() -> None:
    sleeps = {
        name_of(path): lines_of(calls(path, "time.sleep"))
        for path in PYTHON
        if top_of(path) == "tests"
    }
    assert not {name: lines for name, lines in sleeps.items() if lines}


def test_nothing_is_left_to_do() -> None:
    words = "|".join(["TO" + "DO", "FIX" + "ME"])
    assert not lines_matching(rf"\b(?:{words})\b")


def test_no_path_of_a_machine() -> None:
    assert not lines_matching(r"(?<![\w.:/}$*-])/(?:home|root|work)(?![\w-])")


def test_nothing_points_outside_the_checkout() -> None:
    assert not lines_matching(r"\.\./shared")


def test_packages_are_the_folders() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
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
    assert not [name_of(path) for path in PACKAGE if not (path.parent / "__init__.py").is_file()]


def test_the_folders_beside_are_no_packages() -> None:
    assert not [
        name_of(path) for path in PYTHON if top_of(path) in BESIDE and path.name == "__init__.py"
    ]


def test_the_root_hides_no_module_of_the_standard_library() -> None:
    names = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not names.intersection(sys.stdlib_module_names)
    assert not (ROOT / "conftest.py").exists()
