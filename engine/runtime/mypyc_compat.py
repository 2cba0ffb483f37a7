"""A word to the compiled build, where a class of it has subclasses that are not compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

try:
    from mypy_extensions import mypyc_attr as mypyc_attr
except ImportError:  # only who compiles has it; for everybody else it says nothing

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[_T], _T]:
        """The class as it is."""
        return lambda cls: cls
