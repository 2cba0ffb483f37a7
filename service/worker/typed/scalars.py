"""Shapes of single values: numbers, text, bytes, times, ids, enums, literals."""

from __future__ import annotations

import enum
from abc import ABCMeta
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePath
from typing import Any, Final

from ....engine.runtime.task_id import UUID
from ....repository.model.calls.mismatch import Mismatch, name_of
from .shape import Shape

__all__ = [
    "BytesShape",
    "DateShape",
    "EnumShape",
    "FloatShape",
    "IntShape",
    "LengthShape",
    "LiteralShape",
    "MomentShape",
    "OpaqueShape",
    "PlainShape",
    "TextShape",
    "scalar",
]

INT_LEAST: Final = -(1 << 63)  # msgpack's
INT_MOST: Final = (1 << 64) - 1
_LENGTH_S_MAX: Final = timedelta.max // timedelta(seconds=1)
CARRIED: Final = (int, float, str, bytes, list, tuple, dict, datetime)  # by msgpack, subclasses too
PLAIN: Final = (bool, int, float, str, bytes, type(None))


class PlainShape(Shape):
    """A value that is stored as it is, once its type is right.

    Args:
        kind: the annotation.
        accepts: types of values that fit.
        wire: the kind it is stored as.
    """

    is_free = False

    def __init__(self, kind: type, accepts: tuple[type, ...], wire: str) -> None:
        self.text = name_of(kind)
        self._accepts = accepts
        self.wire = frozenset({wire})

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, self._accepts):
            raise Mismatch.expected(self.text, value)
        return value

    decode = encode

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        del depth
        return self.text


class IntShape(PlainShape):
    """A whole number that msgpack carries."""

    def __init__(self) -> None:
        super().__init__(int, (int,), "int")

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, int):
            raise Mismatch.expected("int", value)
        if not INT_LEAST <= value <= INT_MOST:
            raise Mismatch(f"expected int of 64 bits, got {value.bit_length()} bits")
        return value

    decode = encode


class FloatShape(PlainShape):
    """A number; a whole one is read as a float."""

    def __init__(self) -> None:
        super().__init__(float, (float, int), "float")
        self.wire = frozenset({"float", "int"})

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if isinstance(value, int):
            return self.decode(value)
        return super().encode(value)

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(stored, float | int) or isinstance(stored, bool):
            raise Mismatch.expected("float", stored)
        try:
            return float(stored)
        except OverflowError:
            raise Mismatch("expected float, got an int that is too large for one") from None


class BytesShape(PlainShape):
    """Bytes of any of the three types, read as the annotated one."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind, (bytes, bytearray, memoryview), "bytes")
        self._kind = kind

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        return bytes(super().encode(value))

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        return self._kind(super().encode(stored))

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        del depth
        return "bytes"


class TextShape(Shape):
    """A value that is stored as text.

    Args:
        kind: the annotation.
        to_text: text of a value.
        of_text: the value of a text; raises ``ValueError`` or ``ArithmeticError``.
    """

    is_free = False
    wire = frozenset({"str"})

    def __init__(
        self, kind: type, to_text: Callable[[Any], str], of_text: Callable[[str], Any]
    ) -> None:
        self.text = name_of(kind)
        self._kind = kind
        self._to_text = to_text
        self._of_text = of_text

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, self._kind):
            raise Mismatch.expected(self.text, value)
        return self._to_text(value)

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if isinstance(stored, self._kind):  # a codec of the user's carries it itself
            return stored
        if not isinstance(stored, str):
            raise Mismatch.expected(self.text, stored)
        try:
            return self._of_text(stored)
        except (ValueError, ArithmeticError):
            raise Mismatch.expected(self.text, stored) from None

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        del depth
        return "Path" if issubclass(self._kind, PurePath) else self.text


class DateShape(TextShape):
    """A date; a datetime, which Python takes for one, is none."""

    def __init__(self) -> None:
        super().__init__(date, date.isoformat, date.fromisoformat)

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if isinstance(value, datetime):
            raise Mismatch.expected("date", value)
        return super().encode(value)


class MomentShape(TextShape):
    """An aware datetime, stored as msgpack's timestamp; text as older releases wrote it is read."""

    wire = frozenset({"str", "time"})

    def __init__(self, *, takes_naive: bool = False) -> None:
        super().__init__(datetime, datetime.isoformat, _moment)
        self._takes_naive = takes_naive  # of a result: its work is done

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, datetime):
            raise Mismatch.expected(self.text, value)
        if value.utcoffset() is None:
            if self._takes_naive:
                return value.isoformat()
            wrong = Mismatch.expected("datetime with a time zone", value)
            raise Mismatch(f"{wrong.what}; pass datetime.now(UTC), or value.replace(tzinfo=…)")
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise Mismatch.expected("a datetime of the years 1 to 9999", value) from None


def _moment(text: str) -> datetime:
    if len(text) <= len("2026-01-01"):
        raise ValueError("a date, and no time")
    return datetime.fromisoformat(text)


class LengthShape(Shape):
    """A timedelta, stored as its seconds."""

    text = "timedelta"
    is_free = False
    wire = frozenset({"int", "float"})

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, timedelta):
            raise Mismatch.expected("timedelta", value)
        whole, rest = divmod(value, timedelta(seconds=1))
        seconds = float(whole) + rest.microseconds / 1e6 if rest else whole
        if abs(seconds) > _LENGTH_S_MAX or timedelta(seconds=seconds) != value:
            raise Mismatch("expected timedelta that seconds as a float carry to the microsecond")
        return seconds

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if isinstance(stored, timedelta):
            return stored
        if isinstance(stored, bool) or not isinstance(stored, int | float):
            raise Mismatch.expected("timedelta as seconds", stored)
        try:
            return timedelta(seconds=stored)
        except (ValueError, OverflowError):
            raise Mismatch.expected("timedelta as seconds", stored) from None

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        del depth
        return "timedelta"


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None


_SCALARS: Final[dict[type, Callable[[], Shape]]] = {
    type(None): lambda: PlainShape(type(None), (type(None),), "none"),
    bool: lambda: PlainShape(bool, (bool,), "bool"),
    int: IntShape,
    float: FloatShape,
    str: lambda: PlainShape(str, (str,), "str"),
    bytes: lambda: BytesShape(bytes),
    bytearray: lambda: BytesShape(bytearray),
    memoryview: lambda: BytesShape(memoryview),
    datetime: MomentShape,
    date: DateShape,
    time: lambda: TextShape(time, time.isoformat, time.fromisoformat),
    timedelta: LengthShape,
    UUID: lambda: TextShape(UUID, str, UUID),
    Decimal: lambda: TextShape(Decimal, str, _decimal),
    Path: lambda: TextShape(Path, str, Path),
    PurePath: lambda: TextShape(PurePath, str, PurePath),
}


def scalar(kind: Any) -> Shape | None:
    """Return the shape of a type in the table, or None."""
    make = _SCALARS.get(kind) if isinstance(kind, type) else None
    return None if make is None else make()


def _wire_of(value: Any) -> str:
    return "none" if value is None else type(value).__name__


_MISSING: Final = enum.Enum._missing_.__func__  # type: ignore[attr-defined]


class EnumShape(Shape):
    """A member of an enum, stored as its value; as its name if a value is not plain."""

    is_free = False

    def __init__(self, kind: type[enum.Enum]) -> None:
        self.text = name_of(kind)
        self._kind = kind
        self._is_flag = issubclass(kind, enum.Flag)
        members = kind.__members__
        self._is_named = not all(isinstance(m.value, PLAIN) for m in members.values())
        stored = ["" if self._is_named else m.value for m in members.values()]
        self.wire = frozenset(
            {"int"} if self._is_flag else {_wire_of(v) for v in stored} or {"int"}
        )

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        if not isinstance(value, self._kind):
            raise Mismatch.expected(self.text, value)
        return value.name if self._is_named else value.value

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        if isinstance(stored, self._kind):
            return stored
        try:
            found = self._kind[stored] if self._is_named else self._kind(stored)
        except (KeyError, TypeError, ValueError):
            raise self._unknown(stored) from None
        if isinstance(stored, bool) and not isinstance(found.value, bool):
            raise self._unknown(stored)  # True is no 1 here
        return found

    def schema(self, depth: int) -> Any:
        """See ``Shape``. A class that finds members for other values says no more than ``any``."""
        if depth < 1 or self._kind._missing_.__func__ is not _MISSING:  # type: ignore[attr-defined]
            return "number" if self._is_flag else "any"
        members = self._kind.__members__
        stored = list(members) if self._is_named else [m.value for m in members.values()]
        return ["one", self.text, *stored]

    def _unknown(self, stored: Any) -> Mismatch:
        shown = [m.name if self._is_named else repr(m.value) for m in self._kind][:8]
        return Mismatch.expected(f"{self.text} (one of {', '.join(map(str, shown))})", stored)


class LiteralShape(Shape):
    """One of a few values."""

    is_free = False

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.text = f"one of {', '.join(map(repr, values))}"
        # With its type, because True == 1.
        self._plain = {(type(v), v): v.value if isinstance(v, enum.Enum) else v for v in values}
        self._typed = {(type(p), p): key[1] for key, p in self._plain.items()}
        self.wire = frozenset(_wire_of(p) for p in self._plain.values())

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        return self._find(self._plain, value)

    def decode(self, stored: Any) -> Any:
        """See ``Shape``."""
        return self._find(self._typed, stored)

    def schema(self, depth: int) -> Any:
        """See ``Shape``."""
        return "any" if depth < 1 else ["one", "", *self._plain.values()]

    def _find(self, table: dict[tuple[type, Any], Any], value: Any) -> Any:
        try:
            return table[type(value), value]
        except (KeyError, TypeError):
            raise Mismatch.expected(self.text, value) from None


class OpaqueShape(Shape):
    """A class that nothing here knows: its objects pass as they are, for a codec to carry."""

    is_free = False

    def __init__(self, kind: type) -> None:
        self.text = name_of(kind)
        self._kind = kind

    def unstorable(self, seen: set[int]) -> tuple[str, str] | None:
        """See ``Shape``. Objects of an abstract class or a protocol may be plain."""
        del seen
        is_plain = isinstance(self._kind, ABCMeta) or issubclass(self._kind, CARRIED)
        return None if is_plain else ("", self.text)

    def encode(self, value: Any) -> Any:
        """See ``Shape``."""
        try:
            is_one = isinstance(value, self._kind)
        except TypeError:  # a protocol that cannot be asked at run time
            is_one = True
        if not is_one:
            raise Mismatch.expected(self.text, value)
        return value

    def decode(self, stored: Any) -> Any:
        """See ``Shape``. Text, bytes and numbers become what they were: ``class Name(str)``."""
        base = type(stored)
        if base in (int, float, str, bytes) and issubclass(self._kind, base):
            try:
                return self._kind(stored)
            except (TypeError, ValueError):
                return stored
        return stored
