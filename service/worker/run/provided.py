"""Values that ``setup`` yields, given to the functions that ask for them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from ....errors import UsageError

__all__ = ["FROM_SETUP", "NOTHING", "names_from_setup", "value_from"]

NOTHING: Final = object()  # there is no setup, or it is not entered


class _FromSetup:
    """The type of ``FROM_SETUP``."""

    def __repr__(self) -> str:
        return "FROM_SETUP"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            "this argument comes from App(setup=…) when a worker runs the function: pass it "
            "yourself where you call the function directly"
        )


FROM_SETUP: Final[Any] = _FromSetup()
"""The default of a parameter that a worker fills in: ``pool: Pool = FROM_SETUP``."""


def names_from_setup(signature: inspect.Signature) -> frozenset[str]:
    """Return the parameters that a worker fills in."""
    return frozenset(p.name for p in signature.parameters.values() if p.default is FROM_SETUP)


def value_from(yielded: Any, name: str, kind: Any) -> Any:
    """Return what is meant for one parameter.

    Args:
        yielded: by ``setup``: a mapping by parameter, the one object itself, or an object with an
            attribute for each.
        name: of the parameter.
        kind: its annotation; a class is checked.

    Raises:
        UsageError: there is no such value, or it is of another class.
    """
    if yielded is NOTHING:
        raise UsageError(f"{name}=FROM_SETUP needs App(setup=…), around the work that runs it")
    is_class = isinstance(kind, type)
    if isinstance(yielded, Mapping):
        value = yielded.get(name, NOTHING)
    elif is_class and isinstance(yielded, kind):
        return yielded
    else:
        value = getattr(yielded, name, NOTHING)
    if value is NOTHING:
        raise UsageError(f"setup yielded no {name!r}: {type(yielded).__name__} has none")
    if is_class and not isinstance(value, kind):
        raise UsageError(
            f"setup yielded {type(value).__name__} as {name!r}, which is annotated {kind.__name__}"
        )
    return value
