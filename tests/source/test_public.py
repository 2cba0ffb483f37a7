"""The public face: what it names is documented, and the tree of errors is the one printed."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from support_sources import none_of

import lodeq
from lodeq import errors, segments

BRANCH = re.compile(r"(?P<indent>(?:│  |   )*)[├└]─ (?P<name>\w+)(?: \((?P<also>\w+)\))?")


def printed_tree() -> dict[str, tuple[str, ...]]:
    """Each class drawn in the docstring of ``errors``, with the names of its bases."""
    tree: dict[str, tuple[str, ...]] = {"LodeqError": ("Exception",)}
    above = ["LodeqError"]
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        branch = BRANCH.match(line.removeprefix("    "))
        if branch is None:
            continue
        depth = len(branch["indent"]) // 3 + 1
        assert depth <= len(above), f"no parent for {line!r}"
        assert branch["name"] not in tree, f"{branch['name']} is printed twice"
        also = (branch["also"],) if branch["also"] else ()
        tree[branch["name"]] = (above[depth - 1], *also)
        above[depth:] = [branch["name"]]
    return tree


def defined_tree() -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(base.__name__ for base in cls.__bases__)
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    }


def is_documented(thing: object) -> bool:
    """A docstring of its own, not an inherited one nor the one ``dataclass`` makes up."""
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    made_up = inspect.isclass(thing) and str(doc).startswith(f"{thing.__name__}(")
    return bool(doc and doc.strip()) and not made_up


def test_the_printed_error_tree_is_the_real_one() -> None:
    assert printed_tree() == defined_tree()


def test_every_error_is_listed() -> None:
    assert set(errors.__all__) == set(defined_tree())


def test_every_error_says_what_it_means() -> None:
    none_of(name for name in errors.__all__ if not is_documented(getattr(errors, name)))


@pytest.mark.parametrize("name", ["errors", "journal", "lifecycle", "sync", "worker"])
def test_a_public_module_can_be_imported(name: str) -> None:
    module = importlib.import_module(f"lodeq.{name}")
    assert getattr(lodeq, name) is module
    assert [one for one in module.__all__ if not hasattr(module, one)] == []


def test_a_public_module_has_what_its_package_has() -> None:
    assert lodeq.journal.__all__ == segments.journal.__all__
    assert lodeq.lifecycle.__all__ == segments.lifecycle.__all__
    assert lodeq.journal.Retention is segments.journal.Retention


def test_types_are_told() -> None:
    assert Path(lodeq.__file__).with_name("py.typed").is_file()


def test_every_public_name_exists() -> None:
    assert lodeq.__all__
    assert not [name for name in lodeq.__all__ if not hasattr(lodeq, name)]


def test_every_public_name_is_documented() -> None:
    public = {name: getattr(lodeq, name) for name in lodeq.__all__}
    can_be = {
        name: thing
        for name, thing in public.items()
        if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)
    }
    assert not [name for name, thing in can_be.items() if not is_documented(thing)]
