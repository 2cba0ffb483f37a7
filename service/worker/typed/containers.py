"""Shapes of what holds other values: lists, sets, tuples, maps, unions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ....errors import UsageError
from ....repository.model.calls.mismatch import Mismatch, key_step, name_of, show
from .shape import Shape

__all__ = ["FixedTuple", "ListShape", "MapShape", "UnionShape", "check_key"]

_NUMBER: Final = re.compile(r"-?\d{1,20}")  # as the key of a map, in JSON


class ListShape(Shape):
    """Values of one shape in a list; sets and variadic tuples are stored as lists, too.

    Args:
        kind: the annotation's class, for errors.
        accepts: types of values that fit; text and bytes never do.
        make: makes the container from a list.
        item: the shape of each value.
        is_set: order carries no meaning: equal sets are stored alike.
    """

    is_free = False
    wire = frozenset({"list"})

    def __init__(
        self,
        kind: type,
        accepts: tuple[type, ...],
        make: Callable[[list[Any]], Any],
        item: Shape,
        *,
        is_set: bool = False,
    ) -> None:
        self.text = f"{name_of(kind)}[{item.text}]"
        self._name = name_of(kind)
        self._accepts = accepts
        self._make = make
        self._item = item
        self._is_set = is_set

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        self._check(value, self._accepts)
        stored = self._each(list(value), self._item.encode)
        if self._is_set:
            try:
                stored.sort()
            except TypeError:
                stored.sort(key=repr)
        return stored

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        self._check(stored, (list, tuple, *self._accepts))
        values = self._each(list(stored), self._item.decode)
        try:
            return self._make(values)
        except TypeError:
            raise Mismatch(f"expected {self.text}, got values that cannot be in a set") from None

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        return "any" if depth < 1 else ["list", self._item.schema(depth - 1)]

    def parts(self) -> Iterable[tuple[str, Shape]]:
        """See ``Shape``."""
        return [("[]", self._item)]

    def _check(self, value: Any, accepts: tuple[type, ...]) -> None:
        if not isinstance(value, accepts) or isinstance(value, str | bytes | bytearray):
            raise Mismatch.expected(self._name, value)

    def _each(self, values: list[Any], call: Callable[[Any], Any]) -> list[Any]:
        if self._item.is_free:
            return values
        i = 0
        try:
            for i, value in enumerate(values):
                values[i] = call(value)
        except Mismatch as error:
            raise error.below(f"[{i}]") from None
        return values


class FixedTuple(Shape):
    """A tuple of known length, stored as a list."""

    is_free = False
    wire = frozenset({"list"})

    def __init__(self, items: Sequence[Shape]) -> None:
        self._items = items
        self.text = f"tuple[{', '.join(item.text for item in items)}]"

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, tuple):
            raise Mismatch.expected("tuple", value)
        return self._each(value, [item.encode for item in self._items])

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(stored, list | tuple):
            raise Mismatch.expected("tuple", stored)
        return tuple(self._each(stored, [item.decode for item in self._items]))

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        return "any" if depth < 1 else ["tuple", *(item.schema(depth - 1) for item in self._items)]

    def parts(self) -> Iterable[tuple[str, Shape]]:
        """See ``Shape``."""
        return [(f"[{i}]", item) for i, item in enumerate(self._items)]

    def _each(self, values: Sequence[Any], calls: Sequence[Callable[[Any], Any]]) -> list[Any]:
        if len(values) != len(calls):
            raise Mismatch(f"expected {len(calls)} values ({self.text}), got {len(values)}")
        out: list[Any] = []
        try:
            for call, value in zip(calls, values, strict=True):
                out.append(call(value))
        except Mismatch as error:
            raise error.below(f"[{len(out)}]") from None
        return out


class MapShape(Shape):
    """A map; keys are whatever its annotation says and msgpack can carry as a key.

    Args:
        kind: the annotation's class, for errors.
        make: makes the map from a dict; None leaves the dict.
        key: the shape of keys.
        value: the shape of values.
    """

    is_free = False
    wire = frozenset({"map"})

    def __init__(
        self, kind: type, make: Callable[[dict[Any, Any]], Any] | None, key: Shape, value: Shape
    ) -> None:
        self._name = name_of(kind)
        self.text = f"{self._name}[{key.text}, {value.text}]"
        self._make = make
        self._key = key
        self._value = value

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, Mapping):
            raise Mismatch.expected(self._name, value)
        return self._each(value, self._key_of, self._value.encode)

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(stored, Mapping):
            raise Mismatch.expected(self._name, stored)
        out = self._each(stored, self._read_key, self._value.decode)
        return out if self._make is None else self._make(out)

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        if depth < 1:
            return "any"
        return ["map", self._key.schema(depth - 1), self._value.schema(depth - 1)]

    def parts(self) -> Iterable[tuple[str, Shape]]:
        """See ``Shape``."""
        return [(" as a key", self._key), ("[]", self._value)]

    def _key_of(self, key: Any) -> Any:
        stored = self._key.encode(key)
        return tuple(stored) if isinstance(stored, list) else stored

    def _read_key(self, key: Any) -> Any:
        try:
            return self._key.decode(key)
        except Mismatch:
            # JSON has keys of text alone.
            if isinstance(key, str) and "int" in self._key.wire and _NUMBER.fullmatch(key):
                return self._key.decode(int(key))
            raise

    def _each(
        self, given: Mapping[Any, Any], of_key: Callable[[Any], Any], of_value: Callable[[Any], Any]
    ) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key, value in given.items():
            try:
                named = of_key(key)
                out[named] = of_value(value)
            except Mismatch as error:
                raise error.below(key_step(key)) from None
            except TypeError:  # not hashable
                raise Mismatch.expected(f"{self._key.text} as a key", key) from None
        return out


class UnionShape(Shape):
    """One of several shapes: the first that fits, which has to be the first on reading, too.

    Args:
        members: in the order of the annotation.
        tags: names of those members that are stored as maps, if there are several: the name is
            stored with each, under ``$type``.
    """

    is_free = False

    def __init__(self, members: Sequence[Shape], tags: Mapping[int, str]) -> None:
        self._members = members
        self.text = " | ".join(member.text for member in members)
        self.wire = frozenset().union(*(member.wire for member in members))
        self._tags = tags
        self._tagged = {tag: members[i] for i, tag in tags.items()}
        # The plain ones last: text that is a date is read as a date only if it is no str.
        self._reading = sorted(members, key=lambda m: m.text in ("str", "float", "Any"))
        self._mixed = len(self.wire) < sum(len(member.wire) for member in members)

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        tries: list[Mismatch] = []
        for i, member in self._order(value):
            try:
                stored = member.encode(value)
            except Mismatch as error:
                tries.append(error)
                continue
            tag = self._tags.get(i)
            if isinstance(stored, dict) and self._tagged and "$type" in stored:
                raise Mismatch("the key '$type' is taken: it tells the members of the union apart")
            if tag is not None and isinstance(stored, dict):
                return {"$type": tag, **stored}
            if self._mixed and not member.is_free:
                self._check(member, value, stored)
            return stored
        raise self._nearest(tries, value)

    def _order(self, value: Any) -> list[tuple[int, Shape]]:
        """Return the members, the one of just this type first: ``float`` takes an int as well."""
        name = type(value).__name__
        return sorted(enumerate(self._members), key=lambda pair: pair[1].text != name)

    def _check(self, member: Shape, value: Any, stored: Any) -> None:
        """Refuse a value that another member would read as something else."""
        try:
            reader, again = self._read(stored)
        except Mismatch:
            reader, again = None, None
        if reader is not member and again != value:
            other = show(again) if type(again) is type(value) else name_of(type(again))
            raise Mismatch(
                f"{show(value)} would be read as {other}: members of {self.text} are stored alike"
            )

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        return self._read(stored)[1]

    def _read(self, stored: Any) -> tuple[Shape, Any]:
        """Return the member that reads what is stored, and the value."""
        if isinstance(stored, dict) and "$type" in stored and self._tagged:
            member = self._tagged.get(stored["$type"])
            if member is None:
                raise Mismatch(f"expected {self.text}, got $type {stored['$type']!r}")
            return member, member.decode({k: v for k, v in stored.items() if k != "$type"})
        tries: list[Mismatch] = []
        exact = type(stored)
        for member in self._reading:
            if member.text == exact.__name__ and exact in (bool, int, float):
                return member, member.decode(stored)
        for member in self._reading:
            try:
                return member, member.decode(stored)
            except Mismatch as error:
                tries.append(error)
        raise self._nearest(tries, stored)

    def schema(self, depth: int) -> Any:
        """See ``Shape``. The union itself takes no level: ``X | None`` is nearly ``X``."""
        members = [member.schema(depth) for member in self._members]
        return "any" if "any" in members else ["or", *members]

    def parts(self) -> Iterable[tuple[str, Shape]]:
        """See ``Shape``."""
        return [("", member) for member in self._members]

    def _nearest(self, tries: list[Mismatch], value: Any) -> Mismatch:
        """Return the error of the member that came furthest; of none, one that names all."""
        deepest = max(tries, key=lambda error: len(error.path), default=None)
        if deepest is not None and deepest.path:
            return deepest
        others = [m for m in self._members if m.text != "None"]
        if len(others) == 1 and value is not None and tries:
            return next((e for e in tries if "expected None" not in e.what), tries[0])
        return Mismatch.expected(self.text, value)


def check_key(shape: Shape, annotation: object) -> None:
    """Refuse a map whose keys could not be stored as keys."""
    if "map" in shape.wire:
        raise UsageError(f"{annotation}: a map cannot be the key of a map")
