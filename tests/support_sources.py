"""The sources as tests read them: each file once, and each syntax tree parsed once."""

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BESIDE = {"bench", "docs", "examples", "tests"}  # in the checkout, not in the package
BUILT = {"build", "dist", "htmlcov", "__pycache__"}
TEXT = {".cfg", ".in", ".ini", ".md", ".py", ".pyi", ".toml", ".txt", ".yaml", ".yml"}


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
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(text_of(path), name_of(path))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, outer ones first."""
    return tuple(ast.walk(parse(path)))


def modules_in(*folders: str) -> list[Path]:
    """The package's modules below these folders."""
    return [path for path in PACKAGE if top_of(path) in folders]


def none_of(violations: Iterable[str]) -> None:
    """Fail with all of them, a line each."""
    found = list(violations)
    assert not found, "\n".join(["", *found])
