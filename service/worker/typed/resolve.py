"""Annotations as types: strings, forward references, generics.

A name that is not there (imported for type checkers alone, or defined further down) leaves its one
annotation open; the values of that argument then pass as they are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from inspect import unwrap
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

__all__ = [
    "caller_names",
    "globals_of",
    "hints_of_class",
    "is_ready",
    "log_open",
    "resolved",
    "type_variables",
]

log = logging.getLogger("lodeq.worker")
FRAMES = 12  # looked through for the one that defines a function


def resolved(
    annotation: Any, globals_: Mapping[str, Any], names: Mapping[str, Any]
) -> tuple[Any, str | None]:
    """Return the type of one annotation, or why it has none."""
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = get_type_hints(holder, dict(globals_), dict(names), include_extras=True)
    except Exception as error:  # noqa: BLE001 - an annotation in a string is any code
        return Any, f"{type(error).__name__}: {error}"
    return hints["it"], None


def globals_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the names of the module that wrote a function: also of a method, partial, wrapper."""
    while True:
        inner = unwrap(function)
        inner = getattr(inner, "func", inner)  # functools.partial
        if inner is function:
            break
        function = inner
    found = getattr(function, "__globals__", None)
    if found is None:
        found = getattr(type(function).__call__, "__globals__", {})
    names: Mapping[str, Any] = found
    return names


def caller_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the local names where a function is being registered: of classes defined there."""
    module = globals_of(function)
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            break
        if frame.f_globals is module and frame.f_locals is not frame.f_globals:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def hints_of_class(kind: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of a class's fields; one that cannot be resolved is ``Any``, and logged."""
    known = {**names, kind.__name__: kind}
    try:
        return get_type_hints(kind, localns=known, include_extras=True)
    except Exception:  # noqa: BLE001 - then one by one
        hints: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            module = vars(sys.modules.get(base.__module__, SimpleNamespace()))
            for name, annotation in vars(base).get("__annotations__", {}).items():
                hints[name], why = resolved(annotation, module, known)
                if why is not None:
                    log_open(f"{kind.__qualname__}.{name}", annotation, why)
        return hints


def is_ready(kind: type, names: Mapping[str, Any]) -> bool:
    """Return whether all types of a class's fields are defined by now."""
    try:
        get_type_hints(kind, localns={**names, kind.__name__: kind})
    except Exception:  # noqa: BLE001 - an annotation in a string is any code
        return False
    return True


def log_open(what: str, annotation: Any, why: str) -> None:
    """Log an annotation that has no type."""
    log.warning(
        "%s: the annotation %r cannot be resolved (%s): its values pass unchecked, as they are",
        what,
        annotation,
        why,
        extra={"event": "annotation_open"},
    )


def type_variables(kind: Any, outer: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what stands for each type variable of a class, in it and in its bases."""
    origin = get_origin(kind) or kind
    found: dict[Any, Any] = {}
    parameters = getattr(origin, "__parameters__", ())
    for variable, given in zip(parameters, get_args(kind), strict=False):
        found[variable] = outer.get(given, given) if isinstance(given, TypeVar) else given
    for base in getattr(origin, "__orig_bases__", ()):
        if get_args(base) and get_origin(base) is not None:
            for variable, given in type_variables(base, found).items():
                found.setdefault(variable, found.get(given, given))
    return found
