"""Shapes of objects with named fields, stored as maps: dataclasses, named tuples, typed dicts.

Fields are found when the first value comes, so types may refer to themselves and to what is defined
further down. A field that is missing on reading takes its default; one that the type does not have
is dropped.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ....errors import UsageError
from ....repository.model.calls.mismatch import Mismatch, name_of
from .shape import Shape

__all__ = [
    "UPGRADE",
    "VERSION",
    "Field",
    "FieldsShape",
    "Versions",
    "attrs_fields",
    "dataclass_fields",
]

VERSION: Final = "__lodeq_version__"
UPGRADE: Final = "__lodeq_upgrade__"
VERSION_KEY: Final = "$v"


class Field(NamedTuple):
    """One field of a type."""

    name: str
    shape: Shape
    is_required: bool


class Versions:
    """The version of a type's stored form, and the hook that reads older ones.

    Args:
        kind: the type; without ``__lodeq_version__`` nothing is stored, and nothing upgraded.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._version = getattr(kind, VERSION, None)
        hook = getattr(kind, UPGRADE, None)
        self._upgrade: Callable[[dict[str, Any], int], Any] | None = hook
        version = self._version
        if version is None and hook is None:
            return
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise UsageError(
                f"{name_of(kind)}.{VERSION} must be a whole number from 1 on, not {version!r}"
            )

    @property
    def is_upgraded(self) -> bool:
        """Whether what comes without a version is of an older one."""
        return self._version is not None and self._version != 1

    def stamp(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Add the version; the first is not written."""
        if self._version is None or self._version == 1:
            return stored
        return {VERSION_KEY: self._version, **stored}

    def upgrade(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields as this version of the type has them."""
        fields = dict(stored)
        if self._version is None:
            return fields
        version = fields.pop(VERSION_KEY, 1)
        if version == self._version:
            return fields
        name = name_of(self._kind)
        if not isinstance(version, int) or version > self._version:
            raise Mismatch(
                f"stored by version {version!r} of {name}, and this process has {self._version}"
            )
        if self._upgrade is None:
            raise Mismatch(f"stored by version {version} of {name}, which has no {UPGRADE}")
        try:
            fields = self._upgrade(fields, version)
        except Exception as error:
            raise Mismatch(f"{name}.{UPGRADE} of version {version} raised {error!r}") from error
        if not isinstance(fields, dict):
            raise Mismatch(f"{name}.{UPGRADE} must return a dict, not {name_of(type(fields))}")
        return fields


class FieldsShape(Shape):
    """An object stored as a map of its fields.

    Args:
        kind: the type.
        fields: finds the fields; called once, when the first value comes.
        get: one field of a value; raises ``KeyError`` if the value lacks it.
        make: makes a value from its fields by name.
        is_map: the value is a dict itself (a ``TypedDict``): unknown keys are refused.
        is_ready: whether the types of its fields are defined by now.
    """

    is_free = False
    wire = frozenset({"map"})

    def __init__(
        self,
        kind: type,
        fields: Callable[[], list[Field]],
        get: Callable[[Any, str], Any],
        make: Callable[[dict[str, Any]], Any],
        *,
        is_map: bool = False,
        is_ready: Callable[[], bool],
    ) -> None:
        self.text = name_of(kind)
        self._kind = kind
        self._find = fields
        self._get = get
        self._make = make
        self._is_map = is_map
        self._is_ready = is_ready
        self._versions = Versions(kind)
        self._found: list[Field] | None = None

    @property
    def _fields(self) -> list[Field]:
        if self._found is None:
            self._found = self._find()
        return self._found

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        self._check(value)
        stored = {}
        for name, shape, is_required in self._fields:
            try:
                given = self._get(value, name)
            except (KeyError, AttributeError):
                if is_required:
                    raise Mismatch("missing").below(f".{name}") from None
                continue
            try:
                stored[name] = shape.encode(given)
            except Mismatch as error:
                raise error.below(f".{name}") from None
        return self._versions.stamp(stored)

    def _check(self, value: Any) -> None:
        if self._is_map:
            if not isinstance(value, dict):
                raise Mismatch.expected(f"{self.text} (a dict)", value)
            unknown = set(value).difference(field.name for field in self._fields)
            if unknown:
                raise Mismatch(f"{self.text} has no key {min(map(str, unknown))!r}")
        elif type(value) is not self._kind:
            if isinstance(value, self._kind):
                raise Mismatch(
                    f"expected {self.text}, got its subclass {name_of(type(value))}, whose own "
                    "fields would be lost: annotate that, or both with |"
                )
            raise Mismatch.expected_object(self.text, value)

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if not self._is_map and isinstance(stored, self._kind):
            return stored
        if isinstance(stored, list | tuple) and issubclass(self._kind, tuple):
            # As msgpack packs a named tuple where nothing is annotated.
            stored = {f.name: value for f, value in zip(self._fields, stored, strict=False)}
        if not isinstance(stored, Mapping):
            raise Mismatch.expected(f"{self.text} as a map", stored)
        given, values = self._versions.upgrade(stored), {}
        for name, shape, is_required in self._fields:
            if name not in given:
                if is_required:
                    raise Mismatch("missing").below(f".{name}")
                continue
            try:
                values[name] = shape.decode(given[name])
            except Mismatch as error:
                raise error.below(f".{name}") from None
        try:
            return self._make(values)
        except RecursionError:
            raise
        except Exception as error:  # from __post_init__, or a validator of attrs
            raise Mismatch(f"{self.text} refuses these fields: {_said(error)}") from error

    def parts(self) -> Iterable[tuple[str, Shape]]:
        """See ``Shape``. Of types that are defined further down it says nothing yet."""
        if self._found is None and not self._is_ready():
            return []
        return [(f".{field.name}", field.shape) for field in self._fields]

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        if depth < 1:
            return "any"
        known: list[Any] = ["object", self.text]
        if not self._versions.is_upgraded:
            fields = {f"{f.name}{'' if f.is_required else '?'}": f.shape for f in self._fields}
            known.append({name: shape.schema(depth - 1) for name, shape in fields.items()})
        return ["or", known, ["list", "any"]] if issubclass(self._kind, tuple) else known


def _said(error: Exception) -> str:
    """Return the first line of an error, and its type where its text does not stand alone."""
    text = str(error).partition("\n")[0][:200]
    return text if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {text}"


def attrs_fields(kind: Any, shape_of: Callable[[str], Shape]) -> list[Field]:
    """Return the fields of an attrs class that its ``__init__`` takes."""
    missing = sys.modules["attr"].NOTHING
    return [
        Field(f.name, shape_of(f.name), f.default is missing)
        for f in kind.__attrs_attrs__
        if f.init
    ]


def dataclass_fields(kind: type, shape_of: Callable[[str], Shape]) -> list[Field]:
    """Return the fields of a dataclass that its ``__init__`` takes."""
    missing = dataclasses.MISSING
    return [
        Field(f.name, shape_of(f.name), f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(kind)
        if f.init
    ]
