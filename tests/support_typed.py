"""Types of arguments, with a value of each and what is stored of it.

``CASES`` and ``MORE``: (annotation, value, what is stored; None: not said here).
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import attrs
import msgspec
import pydantic

T = TypeVar("T")
UserId = NewType("UserId", int)
ID = UUID("018bcfe5-6800-7ad6-b2f0-3afd8b76be98")
BERLIN = timezone(timedelta(hours=2))
NAIVE = datetime.fromisoformat("2026-01-02T05:00:00")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Corner(enum.Enum):
    LEFT = (0, 1)
    RIGHT = (1, 1)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Address:
    street: str
    zip: int


@dataclass
class User:
    name: str
    address: list[Address] = field(default_factory=list)
    born: date | None = None
    manager: User | None = None


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: T | None = None


@dataclass
class DatePage(Page[date]):
    pass


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str


class Name(str):
    __slots__ = ()


@attrs.define
class Part:
    _number: int
    weight: Decimal = Decimal(0)
    inner: list[Part] = attrs.field(factory=list)


class Point(NamedTuple):
    x: int
    y: Decimal = Decimal(0)


class Options(TypedDict):
    since: date
    colour: NotRequired[Colour]


class Wire(msgspec.Struct):
    id: UUID
    sizes: list[int] = []
    at: datetime | None = None


class Order(pydantic.BaseModel):
    number: int
    total: Decimal
    when: datetime
    tags: set[str] = set()
    lines: list[Line] = []


class Line(pydantic.BaseModel):
    amount: int


class Touchy(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def halves(cls, value: int) -> int:
        if not value:
            raise ZeroDivisionError
        return value


CASES = [
    (int, 7, 7),
    (bool, True, True),
    (float, 2, 2.0),
    (str, "x", "x"),
    (bytes, b"\x00", b"\x00"),
    (bytearray, bytearray(b"x"), b"x"),
    (None, None, None),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, 5, tzinfo=BERLIN), datetime(2026, 1, 2, 3, tzinfo=UTC)),
    (date, date(2026, 1, 2), "2026-01-02"),
    (time, time(1, 2), "01:02:00"),
    (timedelta, timedelta(hours=1), 3600),
    (timedelta, timedelta(days=-1, microseconds=1), -86399.999999),
    (UUID, ID, str(ID)),
    (Decimal, Decimal("1.10"), "1.10"),
    (Colour, Colour.RED, "red"),
    (Corner, Corner.LEFT, "LEFT"),
    (Rights, Rights.READ | Rights.WRITE, 3),
    (Literal["a", 1], 1, 1),
    (Optional[UUID], None, None),  # noqa: UP045 - the older spelling
    (UUID | None, ID, str(ID)),
    (int | str, "1", "1"),
    (float | int, 3, 3),
    (datetime | date, date(2026, 1, 2), "2026-01-02"),
    (date | str, "soon", "soon"),
    (list[date], [date(2026, 1, 2)], ["2026-01-02"]),
    (Sequence[int], [1], [1]),
    (deque[int], deque([1]), [1]),
    (set[date], {date(2026, 1, 3), date(2026, 1, 2)}, ["2026-01-02", "2026-01-03"]),
    (frozenset[int], frozenset({2, 1}), [1, 2]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (tuple[date, ...], (date(2026, 1, 2),), ["2026-01-02"]),
    (tuple[()], (), []),
    (dict[UUID, list[Colour]], {ID: [Colour.BLUE]}, {str(ID): ["blue"]}),
    (dict[tuple[int, int], str], {(1, 2): "x"}, {(1, 2): "x"}),
    (Mapping[int, str], {1: "a"}, {1: "a"}),
    (Counter[str], Counter("aab"), {"a": 2, "b": 1}),
    (User, User("Ann"), {"name": "Ann", "address": [], "born": None, "manager": None}),
    (
        User,
        User("Ann", [Address("A", 1)], date(2000, 1, 1), User("Bea")),
        {
            "name": "Ann",
            "address": [{"street": "A", "zip": 1}],
            "born": "2000-01-01",
            "manager": {"name": "Bea", "address": [], "born": None, "manager": None},
        },
    ),
    (Page[Colour], Page([Colour.RED], Colour.BLUE), {"items": ["red"], "next": "blue"}),
    (DatePage, DatePage([date(2026, 1, 2)]), {"items": ["2026-01-02"], "next": None}),
    (Cat | Dog, Dog("Rex"), {"$type": "Dog", "name": "Rex"}),
    (list[Cat | Dog | None], [Cat("Tom"), None], [{"$type": "Cat", "name": "Tom"}, None]),
    (Point, Point(1, Decimal("0.5")), {"x": 1, "y": "0.5"}),
    (Options, {"since": date(2026, 1, 2)}, {"since": "2026-01-02"}),
    (Annotated[UserId, "note"], 7, 7),
    (Name, Name("Ann"), "Ann"),
    (Part, Part(1, weight=Decimal("0.5")), {"_number": 1, "weight": "0.5", "inner": []}),
    (
        list[Part] | None,
        [Part(1, inner=[Part(2)])],
        [
            {
                "_number": 1,
                "weight": "0",
                "inner": [{"_number": 2, "weight": "0", "inner": []}],
            }
        ],
    ),
    (list[Cat] | list[Dog], [Cat("Tom")], [{"name": "Tom"}]),
    (Wire, Wire(ID, [1]), {"id": str(ID), "sizes": [1], "at": None}),
    (
        Order,
        Order(number=1, total=Decimal("1.5"), when=datetime(2026, 1, 2, tzinfo=UTC), tags={"a"}),
        {
            "number": 1,
            "total": "1.5",
            "when": datetime(2026, 1, 2, tzinfo=UTC),
            "tags": ["a"],
            "lines": [],
        },
    ),
    (Any, {"x": [1]}, {"x": [1]}),
]

MORE = [
    (memoryview, memoryview(b"x"), b"x"),
    (Decimal, Decimal("NaN"), "NaN"),
    (dict[date, Decimal], {date(2026, 1, 2): Decimal("1.0")}, {"2026-01-02": "1.0"}),
    (bytes | None, b"x", b"x"),
    (list[list[datetime]], [[NOON], []], [[NOON], []]),
    (dict[str, Cat | Dog], {"a": Dog("Rex")}, {"a": {"$type": "Dog", "name": "Rex"}}),
    (tuple[Decimal, bytes] | None, (Decimal("0.1"), b"x"), ["0.1", b"x"]),
    (list[Optional[User]], [None, User("A")], None),  # noqa: UP045
]
