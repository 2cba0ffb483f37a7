"""The typed side of one task function: its arguments and its result."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from ....errors import UsageError
from ....repository.model.calls.mismatch import Mismatch
from ....repository.model.calls.schemas import schema_text
from .build import Builder
from .resolve import caller_names, globals_of, log_open, resolved
from .shape import Shape

__all__ = ["TypedSignature"]

log = logging.getLogger("lodeq.worker")


class TypedSignature:
    """Annotations of a function as shapes; what cannot be resolved yet is tried again when used.

    Args:
        function: the function.
        name: its name, for errors.
        signature: its signature.
        others: parameters that no task carries; ``kinds`` has their types.
        ends: base class of values that end a run in another way, so that no result is stored.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        signature: inspect.Signature,
        others: frozenset[str] = frozenset(),
        ends: type | tuple[()] = (),
    ) -> None:
        self._others = others
        self._ends = ends
        self.kinds: dict[str, Any] = {}
        self._name = name
        self._globals = globals_of(function)
        self._builder = Builder(caller_names(function))
        self._names = self._builder.names
        self._shapes: dict[str, Shape] = {}
        self._open: dict[str, Any] = {}
        self._rest: str | None = None
        self._result = Shape()
        self._has_warned = False
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                self._rest = parameter.name
            self._add(parameter.name, parameter.annotation)
        self._add("return", signature.return_annotation)

    def _add(self, name: str, annotation: Any) -> None:
        if annotation is inspect.Parameter.empty:
            return
        found, why = resolved(annotation, self._globals, self._names)
        if why is not None:
            self._open[name] = annotation
            return
        self._set(name, found)

    def _set(self, name: str, annotation: Any) -> None:
        if name in self._others:
            self.kinds[name] = annotation
            return
        try:
            if name == "return":
                annotation = self._without_ends(_value_of(annotation))
                # What cannot be stored of a result is lost, and its work would be done again.
                builder = Builder(self._names, takes_naive=True)
                self._result = builder.shape(annotation)
            else:
                self._shapes[name] = self._builder.shape(annotation)
        except UsageError as error:
            what = "the result" if name == "return" else f"argument {name}"
            raise UsageError(f"{self._name}(): {what}: {error}") from None

    def _without_ends(self, annotation: Any) -> Any:
        """Return the annotation without what decides how a run ends: no result is stored of it."""
        is_union = get_origin(annotation) in (Union, UnionType)
        members = get_args(annotation) if is_union else (annotation,)
        kept = [
            one for one in members if not (isinstance(one, type) and issubclass(one, self._ends))
        ]
        if len(kept) == len(members):
            return annotation
        return Union[tuple(kept)] if kept else None  # noqa: UP007 - of as many as there are

    def _close(self) -> None:
        """Resolve what was not there when the function was registered; from now on it is."""
        for name, annotation in self._open.items():
            found, why = resolved(annotation, self._globals, self._names)
            if why is None:
                self._set(name, found)
            else:
                what = "the result" if name == "return" else f"argument {name}"
                log_open(f"{self._name}(): {what}", annotation, why)
        self._open = {}

    def _shape(self, name: str) -> Shape | None:
        if name not in self._shapes and self._rest is not None:
            name = self._rest
        return self._shapes.get(name)

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are stored.

        Raises:
            UsageError: one is not what its annotation says; the text says where.
        """
        return self._each(arguments, is_encoding=True)

    def decode(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a stored call; raises as ``encode``."""
        return self._each(stored, is_encoding=False)

    def _each(self, given: Mapping[str, Any], *, is_encoding: bool) -> dict[str, Any]:
        if self._open:
            self._close()
        out = dict(given)
        for name, value in given.items():
            shape = self._shape(name)
            if shape is None or shape.is_free:
                continue
            try:
                out[name] = shape.encode(value) if is_encoding else shape.decode(value)
            except Mismatch as error:
                raise UsageError(
                    f"{self._name}(): argument {name}{error.path}: {error.what}"
                ) from (error.cause or error.__cause__)
            except RecursionError:
                raise UsageError(f"{self._name}(): argument {name} is nested too deeply") from None
        return out

    def schema(self, name: str) -> str:
        """Return the schema of a parameter as it is published; empty if it says nothing."""
        if self._open:
            self._close()
        shape = self._shapes.get(name)
        return "" if shape is None or shape.is_free else schema_text(shape.schema)

    def encode_result(self, value: Any) -> Any:
        """Return a result as it is stored.

        The work is done, so a result that is not what its annotation says is no failure: it is
        logged once, and stored as it is, if it can be.
        """
        if self._open:
            self._close()
        if self._result.is_free:
            return value
        try:
            return self._result.encode(value)
        except (Mismatch, RecursionError) as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s() returned what its annotation does not say: %s; it is stored as it is",
                    self._name,
                    _place(error),
                    extra={"event": "result_untyped"},
                )
            return value

    def check_result(self) -> None:
        """Refuse a result that msgpack does not carry, before a run has any side effect.

        Raises:
            UsageError: its annotation names such a class; the text says where.
        """
        found = self._result.unstorable(set())
        if found is not None:
            raise UsageError(
                f"{self._name}(): the result{found[0]} is {found[1]}, which cannot be stored: "
                "return plain values, a dataclass or a model, or give the app a codec: App(codec=…)"
            )

    def decode_result(self, stored: Any) -> Any:
        """Return the result of a stored one.

        Raises:
            UsageError: it is not what the annotation says.
        """
        if self._open:
            self._close()
        try:
            return self._result.decode(stored)
        except Mismatch as error:
            raise UsageError(f"{self._name}(): {_place(error)}") from (
                error.cause or error.__cause__
            )

    @property
    def has_typed_result(self) -> bool:
        """Whether a stored result has to be read by its annotation."""
        if self._open:
            self._close()
        return not self._result.is_free


def _place(error: Exception) -> str:
    return f"result{error.path}: {error.what}" if isinstance(error, Mismatch) else str(error)


def _value_of(annotation: Any) -> Any:
    """Return what is awaited, of a plain function that returns an awaitable."""
    origin, given = get_origin(annotation), get_args(annotation)
    if given and isinstance(origin, type) and issubclass(origin, Awaitable):
        return given[-1] if issubclass(origin, Coroutine) else given[0]
    return annotation
