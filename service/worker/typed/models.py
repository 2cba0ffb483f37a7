"""Shapes of models that a library of the user's encodes and checks: msgspec and pydantic.

Neither is a dependency: a type of theirs exists only where they are installed.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from ....engine.runtime.task_id import UUID
from ....repository.model.calls.mismatch import Mismatch, name_of, show
from .objects import Versions
from .scalars import scalar
from .shape import Shape

__all__ = ["PydanticShape", "StructShape", "is_attrs", "is_pydantic", "is_struct"]

_AT: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
_NAMED_MAX: Final = 3  # of further fields that do not fit
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def is_struct(kind: Any) -> bool:
    """Return whether it is a ``msgspec.Struct``."""
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def is_attrs(kind: Any) -> bool:
    """Return whether it is a class of ``attrs``."""
    return isinstance(kind, type) and "attr" in sys.modules and "__attrs_attrs__" in vars(kind)


def is_pydantic(kind: Any) -> bool:
    """Return whether it is a ``pydantic.BaseModel``."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


class StructShape(Shape):
    """A ``msgspec.Struct``: msgspec turns it into plain values and back."""

    is_free = False

    def __init__(self, kind: type, annotation: Any) -> None:
        import msgspec  # noqa: PLC0415 - there, because the type is

        self.text = name_of(annotation)
        self._kind = kind
        self._annotation = annotation
        self._msgspec = msgspec
        self._versions = Versions(kind)
        is_array = kind.__struct_config__.array_like  # type: ignore[attr-defined]
        self.wire = frozenset({"list" if is_array else "map"})

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if type(value) is not self._kind:
            raise Mismatch.expected_object(self.text, value)
        try:
            stored = self._msgspec.to_builtins(value, builtin_types=(bytes,))
        except (TypeError, ValueError) as error:
            raise Mismatch(str(error)) from error
        self._read(stored)
        return self._versions.stamp(stored) if isinstance(stored, dict) else stored

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if isinstance(stored, self._kind):
            return stored
        return self._read(self._versions.upgrade(stored) if isinstance(stored, dict) else stored)

    def schema(self, depth: int) -> Any:
        """See ``Shape``. It has what msgspec surely refuses: missing fields, text for numbers."""
        if depth < 1 or "list" in self.wire:
            return "any"
        known: list[Any] = ["object", self.text]
        if not self._versions.is_upgraded:
            found = self._msgspec.structs.fields(self._kind)
            known.append(
                {_named(f.encode_name, f.required): _field_schema(f.type, depth - 1) for f in found}
            )
        return known

    def _read(self, stored: Any) -> Any:
        try:
            return self._msgspec.convert(
                stored, self._annotation, builtin_types=(bytes, bytearray, datetime)
            )
        except self._msgspec.ValidationError as error:
            mismatch = _of_msgspec(error, stored)
            mismatch.cause = error
            raise mismatch from None


def _of_msgspec(error: Exception, stored: Any) -> Mismatch:
    """Return its error with our path, and the value that stands there."""
    found = _AT.fullmatch(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    value, is_found = stored, True
    for name, index in _STEP.findall(path):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            is_found = False  # ``[...]``: some key of a map
    what = what.replace("`", "")
    what = f"{what[:1].lower()}{what[1:]}"
    head, got, _ = what.partition(", got ")
    mismatch = Mismatch(f"{head}, got {show(value)}" if got and is_found else what)
    return mismatch.below(path) if path else mismatch


class PydanticShape(Shape):
    """A pydantic model: pydantic turns it into values and back, and checks both."""

    is_free = False
    wire = frozenset({"map"})

    def __init__(self, kind: Any) -> None:
        import pydantic  # noqa: PLC0415 - there, because the type is

        self.text = name_of(kind)
        self._kind = kind
        self._error = pydantic.ValidationError
        self._versions = Versions(kind)
        if issubclass(kind, pydantic.RootModel):
            self.wire = frozenset({"any"})

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if type(value) is not self._kind:
            raise Mismatch.expected_object(self.text, value)
        # Without warnings: what does not fit is refused in the next step.
        stored = _plain(value.model_dump(by_alias=True, round_trip=True, warnings=False))
        self._read(stored)
        return self._versions.stamp(stored) if isinstance(stored, dict) else stored

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if isinstance(stored, self._kind):
            return stored
        return self._read(self._versions.upgrade(stored) if isinstance(stored, dict) else stored)

    def schema(self, depth: int) -> Any:
        """See ``Shape``. It has what pydantic surely refuses: missing fields, text for numbers."""
        if depth < 1 or "any" in self.wire or _reads_first(self._kind):
            return "any"
        known: list[Any] = ["object", self.text]
        if not self._versions.is_upgraded and not self._kind.model_config.get("populate_by_name"):
            fields = _model_fields(self._kind, depth - 1)
            if fields is not None:
                known.append(fields)
        return known

    def _read(self, stored: Any) -> Any:
        try:
            return self._kind.model_validate(stored)
        except RecursionError:
            raise
        except self._error as error:
            first, *others = error.errors(include_url=False, include_context=False)
            if first["type"] == "missing":
                what = "missing"
            else:
                what = f"{first['msg'][:1].lower()}{first['msg'][1:]}, got {show(first['input'])}"
            if others:
                named = [_place(one["loc"]) for one in others[:_NAMED_MAX]]
                what += f" (and {len(others)} more: {', '.join(named)}"
                what += ", …)" if len(others) > _NAMED_MAX else ")"
            mismatch = Mismatch(what)
            mismatch.cause = error
            for step in reversed(first["loc"]):
                mismatch.below(_step(step))
            raise mismatch from None
        except Exception as error:  # of a validator
            raise Mismatch(f"a validator of {self.text} raised {error!r:.200}") from error


def _place(steps: Sequence[int | str]) -> str:
    return "".join(map(_step, steps)).removeprefix(".")


def _step(step: int | str) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step}"


def _named(name: str, is_required: bool) -> str:
    return name if is_required else f"{name}?"


def _reads_first(kind: Any) -> bool:
    """Return whether a hook of the model's sees what is stored before pydantic does."""
    import pydantic  # noqa: PLC0415 - there, because the type is

    plain: Any = pydantic.BaseModel.__get_pydantic_core_schema__
    own = kind.__get_pydantic_core_schema__
    hooks = kind.__pydantic_decorators__.model_validators.values()
    return own.__func__ is not plain.__func__ or any(one.info.mode != "after" for one in hooks)


def _model_fields(kind: Any, depth: int) -> dict[str, Any] | None:
    """Return the fields of a model; None if one may come under several names."""
    hooks = kind.__pydantic_decorators__.field_validators.values()
    hooked = {name for one in hooks if one.info.mode != "after" for name in one.info.fields}
    found = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias or field.alias or name
        if not isinstance(alias, str):
            return None
        is_free = name in hooked or "*" in hooked or not all(map(_only_narrows, field.metadata))
        schema = "any" if is_free else _field_schema(field.annotation, depth)
        if kind.model_config.get("coerce_numbers_to_str") and "'str'" in repr(schema):
            schema = "any"
        found[_named(alias, field.is_required())] = schema
    return found


# Members of pydantic's own marks that refuse values, or change text; none lets another type pass.
_NARROWING: Final = frozenset(
    {"allow_inf_nan", "ascii_only", "decimal_places", "max_digits", "max_length", "min_length"}
    | {"multiple_of", "pattern", "strict", "strip_whitespace", "to_lower", "to_upper"}
)


def _only_narrows(mark: Any) -> bool:
    """Return whether an annotation's mark refuses values alone, so that its type still holds."""
    if mark is None or isinstance(mark, str):
        return True
    library = type(mark).__module__.partition(".")[0]
    if library in ("annotated_types", "msgspec"):
        return True
    if library != "pydantic":
        return False
    if type(mark).__name__ == "FieldInfo":
        return all(map(_only_narrows, mark.metadata))
    given = {name for name, value in getattr(mark, "__dict__", {}).items() if value is not None}
    return bool(given) and given <= _NARROWING


def _field_schema(kind: Any, depth: int) -> Any:
    """Return what a library's field of this annotation surely needs."""
    if kind is str:
        return ["or", "str", "bytes"]
    if kind in (int, float):
        return "number"
    if is_pydantic(kind):
        return PydanticShape(kind).schema(depth)
    if is_struct(kind):
        return StructShape(kind, kind).schema(depth)
    form, parts = get_origin(kind), get_args(kind)
    if form is Annotated and all(map(_only_narrows, parts[1:])):
        return _field_schema(parts[0], depth)
    if form in (Union, UnionType):
        members = ["None" if one is NoneType else _field_schema(one, depth) for one in parts]
        maps = [one for one in members if one[0] == "object"]
        return "any" if "any" in members or len(maps) > 1 else ["or", *members]
    if form is list and depth >= 1:
        return ["list", _field_schema(parts[0], depth - 1)]
    return "any"


_BY_TYPE: Final = {
    kind: shape
    for kind in (date, datetime, time, timedelta, Decimal, UUID, PurePath)
    if (shape := scalar(kind)) is not None
}


def _plain(value: Any) -> Any:
    """Return plain values for what a model dumps; what nothing here knows stays as it is."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, datetime) and value.utcoffset() is None:
        return value.isoformat()  # whether it may be naive is for the model to say
    for kind, shape in _BY_TYPE.items():
        if isinstance(value, kind) and not (kind is date and isinstance(value, datetime)):
            return shape.encode(value)
    return value
