"""From an annotation to its shape."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections import abc
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

from ....errors import UsageError
from ....repository.model.calls.mismatch import name_of
from .containers import FixedTuple, ListShape, MapShape, UnionShape, check_key
from .models import PydanticShape, StructShape, is_attrs, is_pydantic, is_struct
from .objects import Field, FieldsShape, attrs_fields, dataclass_fields
from .resolve import hints_of_class, is_ready, type_variables
from .scalars import EnumShape, LiteralShape, MomentShape, OpaqueShape, scalar
from .shape import Shape

__all__ = ["Builder"]

_Variables = Mapping[Any, Any]
_FREE: Final = Shape()
_WRAPPERS: Final = (Annotated, Required, NotRequired, Final, ClassVar)
# What is annotated: which values fit, what is made on reading.
_LISTS: Final[dict[Any, tuple[tuple[type, ...], Callable[[list[Any]], Any]]]] = {
    list: ((list,), list),
    abc.MutableSequence: ((list,), list),
    abc.Sequence: ((list, tuple), list),
    abc.Iterable: ((list, tuple, set, frozenset), list),
    abc.Collection: ((list, tuple, set, frozenset), list),
    collections.deque: ((collections.deque,), collections.deque),
}
_SETS: Final[dict[Any, Callable[[list[Any]], Any]]] = {
    set: set,
    abc.MutableSet: set,
    abc.Set: frozenset,
    frozenset: frozenset,
}
_MAPS: Final[dict[Any, Callable[[dict[Any, Any]], Any] | None]] = {
    dict: None,
    abc.Mapping: None,
    abc.MutableMapping: None,
    collections.OrderedDict: collections.OrderedDict,
    collections.Counter: collections.Counter,
    collections.defaultdict: None,
}


class Builder:
    """Makes shapes; each class with fields once, so that types may refer to themselves.

    Args:
        names: local names where the function was registered, for annotations in strings.
        takes_naive: datetimes may have no time zone.
    """

    def __init__(self, names: Mapping[str, Any], *, takes_naive: bool = False) -> None:
        self._takes_naive = takes_naive
        self.names = dict(names)
        self._made: dict[Any, Shape] = {}

    def shape(self, annotation: Any, variables: _Variables | None = None) -> Shape:
        """Return the shape of an annotation.

        Raises:
            UsageError: its values cannot be stored: a union that cannot be read again, say.
        """
        known = variables or {}
        while True:
            if isinstance(annotation, TypeVar):
                annotation = known.get(annotation, annotation.__bound__ or Any)
            elif isinstance(annotation, NewType):
                annotation = annotation.__supertype__
            elif get_origin(annotation) in _WRAPPERS:
                annotation = get_args(annotation)[0]
            elif hasattr(annotation, "__value__"):  # ``type X = …``
                annotation = annotation.__value__
            else:
                break
        if annotation is None:
            annotation = type(None)
        if annotation in (Any, object) or isinstance(annotation, str | TypeVar):
            return _FREE
        if annotation is datetime and self._takes_naive:
            return MomentShape(takes_naive=True)
        found = scalar(annotation)
        return found if found is not None else self._compound(annotation, known)

    def _compound(self, annotation: Any, known: _Variables) -> Shape:
        origin, given = get_origin(annotation) or annotation, get_args(annotation)
        if origin is Literal:
            return LiteralShape(given)
        if origin in (Union, types.UnionType):
            return self._union(annotation, given, known)
        if origin is tuple:
            return self._tuple(given, known)
        if origin in _LISTS:
            accepts, make = _LISTS[origin]
            return ListShape(origin, accepts, make, self._item(given, known))
        if origin in _SETS:
            accepts, item = (abc.Set,), self._item(given, known)
            return ListShape(origin, accepts, _SETS[origin], item, is_set=True)
        if origin in _MAPS:
            return self._map(annotation, origin, given, known)
        if not isinstance(origin, type):
            return _FREE  # Callable, type[…], Self: nothing that is stored
        return self._class(annotation, origin, known)

    def _item(self, given: tuple[Any, ...], known: _Variables) -> Shape:
        return self.shape(given[0], known) if given else _FREE

    def _tuple(self, given: tuple[Any, ...], known: _Variables) -> Shape:
        if not given or (len(given) == 2 and given[1] is ...):
            return ListShape(tuple, (tuple,), tuple, self._item(given, known))
        return FixedTuple([self.shape(item, known) for item in given if item != ()])

    def _map(
        self, annotation: Any, origin: type, given: tuple[Any, ...], known: _Variables
    ) -> Shape:
        if origin is collections.Counter:
            given = (*given, int) if given else (Any, int)
        key, value = (self.shape(part, known) for part in given or (Any, Any))
        check_key(key, annotation)
        return MapShape(origin, _MAPS[origin], key, value)

    def _union(self, annotation: Any, given: tuple[Any, ...], known: _Variables) -> Shape:
        members = [self.shape(member, known) for member in given]
        if any(member is _FREE for member in members):
            return _FREE
        maps = [i for i, member in enumerate(members) if member.wire == {"map"}]
        tags = {} if len(maps) < 2 else {i: members[i].text for i in maps}
        if len(set(tags.values())) < len(tags):
            raise UsageError(f"{annotation}: two members of a union have one name")
        return UnionShape(members, tags)

    def _class(self, annotation: Any, kind: type, known: _Variables) -> Shape:
        variables = type_variables(annotation, known)
        memo = annotation, tuple(sorted((str(k), str(v)) for k, v in variables.items()))
        shape = self._made.get(memo)
        if shape is None:
            shape = self._made[memo] = self._new_class(annotation, kind, variables)
        return shape

    def _new_class(self, annotation: Any, kind: type, variables: _Variables) -> Shape:
        if issubclass(kind, enum.Enum):
            return EnumShape(kind)
        if is_struct(kind):
            return StructShape(kind, annotation)
        if is_pydantic(kind):
            return PydanticShape(kind)
        if is_attrs(kind):
            return self._attrs(kind, variables)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, variables)
        if is_typeddict(kind):
            return self._typed_dict(kind, variables)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind, variables)
        return OpaqueShape(kind)

    def _shapes(self, kind: type, variables: _Variables) -> Callable[[str], Shape]:
        hints = hints_of_class(kind, self.names)
        return lambda name: self.shape(hints.get(name, Any), variables)

    def _dataclass(self, kind: type, variables: _Variables) -> Shape:
        for name, annotation in vars(kind).get("__annotations__", {}).items():
            if isinstance(annotation, dataclasses.InitVar) or "InitVar" in str(annotation):
                raise UsageError(f"{name_of(kind)}.{name} is an InitVar, which no object keeps")
        return FieldsShape(
            kind,
            lambda: dataclass_fields(kind, self._shapes(kind, variables)),
            getattr,
            lambda values: kind(**values),
            is_ready=partial(is_ready, kind, self.names),
        )

    def _attrs(self, kind: Any, variables: _Variables) -> Shape:
        names = {one.name: one.alias for one in kind.__attrs_attrs__}  # ``_x`` is passed as ``x``
        return FieldsShape(
            kind,
            lambda: attrs_fields(kind, self._shapes(kind, variables)),
            getattr,
            lambda values: kind(**{names[name]: value for name, value in values.items()}),
            is_ready=partial(is_ready, kind, self.names),
        )

    def _named_tuple(self, kind: Any, variables: _Variables) -> Shape:
        def fields() -> list[Field]:
            shapes, defaults = self._shapes(kind, variables), kind._field_defaults
            return [Field(name, shapes(name), name not in defaults) for name in kind._fields]

        ready = partial(is_ready, kind, self.names)
        return FieldsShape(kind, fields, getattr, lambda values: kind(**values), is_ready=ready)

    def _typed_dict(self, kind: Any, variables: _Variables) -> Shape:
        def fields() -> list[Field]:
            shapes, needed = self._shapes(kind, variables), _required(kind, hints())
            return [Field(name, shapes(name), name in needed) for name in hints()]

        def hints() -> dict[str, Any]:
            return hints_of_class(kind, self.names)

        ready = partial(is_ready, kind, self.names)
        return FieldsShape(
            kind, fields, lambda value, name: value[name], dict, is_map=True, is_ready=ready
        )


def _required(kind: Any, hints: Mapping[str, Any]) -> set[str]:
    """Return the keys that have to be there; written as strings, Python 3.11 misses some."""
    needed = set(kind.__required_keys__)
    for name, hint in hints.items():
        if get_origin(hint) is NotRequired:
            needed.discard(name)
        elif get_origin(hint) is Required:
            needed.add(name)
    return needed
