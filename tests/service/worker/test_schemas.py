"""Schemas of published functions: they refuse nothing that a worker takes, and name the place."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import lodeq
from lodeq import FunctionParameter, PublishedFunction, UsageError
from lodeq.engine.values import FUNCTION_BYTES_MAX
from lodeq.repository.model.calls.functions import check_arguments, pack_function, unpack_function
from lodeq.repository.model.calls.schemas import SCHEMA_BYTES_MAX
from lodeq.service.worker.report import published_function
from lodeq.worker import App


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Corner(enum.Enum):
    LEFT = (0, 1)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Lenient(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value):
        return cls.ONE


@dataclass
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    customer: str
    due: date
    lines: list[Line] = field(default_factory=list)
    parent: Order | None = None


@dataclass
class Newer:
    __lodeq_version__: ClassVar[int] = 2
    cents: int

    @classmethod
    def __lodeq_upgrade__(cls, fields, version):
        return {"cents": 1}


class Point(NamedTuple):
    x: int
    y: int = 0


class Opts(TypedDict):
    deep: bool
    name: NotRequired[str]


class Struct(msgspec.Struct):
    name: str
    at: datetime
    n: int = 0


class Row(msgspec.Struct, array_like=True):
    name: str


class Model(pydantic.BaseModel):
    to: str
    n: int
    mail: str = pydantic.Field(default="", alias="eMail")


class Trimmed(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n", mode="before")
    @classmethod
    def _of(cls, value):
        return 5


class Anything(pydantic.BaseModel):
    n: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of(cls, value):
        return {"n": 1}


class Bound(pydantic.BaseModel):
    n: int = pydantic.Field(gt=0)
    to: pydantic.constr(strip_whitespace=True, max_length=99) = ""
    rate: Annotated[float, pydantic.Field(strict=True, le=5)] | None = None
    rows: list[pydantic.PositiveInt] = pydantic.Field(default=[], max_length=3)
    first: Annotated[int, pydantic.BeforeValidator(lambda value: 5)] = 1
    text: Annotated[str, pydantic.Field(coerce_numbers_to_str=True)] = ""


class Coercing(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(coerce_numbers_to_str=True)
    to: str
    n: str | None = pydantic.Field(default=None, min_length=1)


class BoundStruct(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(gt=0)]
    to: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class Numbers(pydantic.RootModel[list[int]]):
    pass


ANNOTATIONS = [
    *(None, bool, int, float, str, bytes, bytearray, datetime, date, time, timedelta, UUID),
    *(Decimal, Path, Any, object, Colour, Level, Corner, Rights, Lenient, Literal["a", 1, True]),
    *(list[int], Sequence[date], set[str], frozenset[int], deque[int], Iterable[Line]),
    *(tuple[int, str], tuple[int, ...], dict[str, int], Mapping[int, date], Counter[str]),
    *(Line, Order, Newer, Point, Opts, Struct, Row, Model, Trimmed, Anything, Numbers),
    *(
        Bound,
        Coercing,
        BoundStruct,
        pydantic.PositiveInt,
        Annotated[str, msgspec.Meta(pattern="a")],
    ),
    *(int | None, Line | None, date | int, Line | Order | None, list[Line | int], Point | None),
    *(Model | None, list[Model], dict[str, Order], float | str, Line | dict[str, int]),
]
LINE = {"article": "tea", "price": "4.50"}
VALUES = [
    *(
        None,
        True,
        0,
        1,
        5,
        -1,
        1 << 63,
        1 << 70,
        1.0,
        1.5,
        "",
        "a",
        "5",
        "red",
        "LEFT",
        "2026-01-02",
    ),
    *(
        "2026-01-02T05:00:00",
        "05:00",
        str(UUID(int=5)),
        "4.50",
        "x" * 100,
        b"",
        b"x",
        [],
        [1],
        ["a"],
    ),
    *([1, "a"], [1, 2, 3], ["2026-01-02"], [True], {}, {"a": 1}, {"1": "2026-01-02"}, {5: "x"}),
    *(
        LINE,
        {**LINE, "count": "many"},
        {**LINE, "more": 1},
        {"article": 5, "price": "1"},
        [LINE, 5],
    ),
    *({"customer": "Ann", "due": "2026-12-24"}, {"customer": "Ann", "due": "soon"}),
    {"customer": "Ann", "due": "2026-12-24", "lines": [LINE], "parent": {"customer": 1}},
    {"customer": "Ann", "due": "2026-12-24", "parent": {"customer": "B", "due": "2026-12-24"}},
    *({"$type": "Line", **LINE}, {"$type": "Order"}, {"$type": "Nothing"}, {"$v": 2, "cents": 1}),
    *({"cents": "x"}, {"$v": 3, "cents": 1}, {"x": 1}, {"x": "1"}, [1, 2], ["1"]),
    *({"deep": True}, {"deep": 1}, {"name": "n"}, {"name": "n", "at": "2026-01-02T05:00:00"}),
    *({"name": 5, "at": "2026-01-02T05:00:00"}, {"name": "n", "at": "x", "n": 2.0}),
    *({"to": "a", "n": 5}, {"to": "a", "n": "5"}, {"to": "a", "n": "x"}, {"to": 5, "n": 5}),
    *(
        {"to": "a"},
        {"to": "a", "n": 1.0, "eMail": "m"},
        {"n": "x"},
        {"n": None},
        [[1]],
        {"n": True},
    ),
    *({"n": 1, "rate": 1.5}, {"n": 1, "rate": None, "rows": [1, 2]}, {"n": 1, "rows": ["1", "x"]}),
    *({"n": 1, "rate": "x"}, {"n": 1, "first": []}, {"n": 1, "text": 5}, {"n": 1, "text": []}),
    *({"n": 5, "to": 5}, {"n": 1.0, "to": None}, {"n": "1", "to": b"x"}, {"n": [], "to": ""}),
    *([{"to": "a"}], {"k": {"customer": "A", "due": "2026-01-01"}}, {"k": {"due": 1}}),
    *(datetime(2026, 1, 2, tzinfo=UTC), timedelta(1), 1e300, float("inf"), float("nan"), "nan"),
]


def function_of(annotation):
    app = App()

    async def call(it): ...

    call.__annotations__ = {"it": annotation}
    return app.task("q", name="call")(call)


def published(annotation):
    return published_function(function_of(annotation), None, has_codec=False)


def refusal(act, *args):
    try:
        act(*args)
    except UsageError as error:
        return str(error)
    return None


# Read where it waits already, and refused of whoever enqueues it now.
NAIVE = (
    "call(): argument it: expected datetime with a time zone, got str '2026-01-02T05:00:00'; "
    "write 2026-01-31T12:00:00Z, or +02:00 for Z"
)


def test_a_time_without_a_zone_is_refused_by_name():
    one = published(datetime)
    assert refusal(check_arguments, one, {"it": "2026-01-02T05:00:00"}) == NAIVE
    assert refusal(check_arguments, one, {"it": "2026-01-02T05:00:00Z"}) is None
    assert "with a time zone" in refusal(
        check_arguments, one, {"it": datetime.fromisoformat("2026-01-02T05:00:00")}
    )


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_what_a_worker_takes_is_never_refused(annotation):
    function = function_of(annotation)
    one = published_function(function, None, has_codec=False)
    for value in VALUES:
        if refusal(function.typed.decode, {"it": value}) is None:
            assert refusal(check_arguments, one, {"it": value}) in (None, NAIVE), value


SAYS = [
    (int, "5", "argument it: expected int, got str '5'"),
    (list[int], [1, "a"], "argument it[1]: expected int, got str 'a'"),
    (date, "soon", "argument it: expected date, got str 'soon'"),
    (tuple[int, str], [1], "argument it: expected 2 values (tuple[int, str]), got 1"),
    (dict[str, date], {"a": 5}, "argument it['a']: expected date, got int 5"),
    (Line, 5, "argument it: expected Line as a map, got int 5"),
    (Line, {"article": "tea"}, "argument it.price: missing"),
    (
        Order,
        {"customer": "A", "due": "2026-12-24", "lines": [LINE, {**LINE, "price": "x"}]},
        "argument it.lines[1].price: expected Decimal, got str 'x'",
    ),
    (Colour, "green", "argument it: expected Colour (one of 'red', 'blue'), got str 'green'"),
    (Literal["a", "b"], "c", "argument it: expected one of 'a', 'b', got str 'c'"),
    (int | None, "5", "expected int"),
    (date | int, "x", "argument it: expected date | int, got str 'x'"),
    (Model, {"n": 1}, "argument it.to: missing"),
    (Struct, {"name": "n"}, "argument it"),
]


@pytest.mark.parametrize(("annotation", "value", "says"), SAYS, ids=range(len(SAYS)))
def test_what_is_wrong_is_named_as_the_worker_names_it(annotation, value, says):
    here = refusal(check_arguments, published(annotation), {"it": value})
    assert says in here
    if says != "argument it":
        assert says in refusal(function_of(annotation).typed.decode, {"it": value})


PYDANTIC = [
    ({"to": "a", "n": "x"}, "argument it.n: expected number, got str 'x'"),
    ({"to": 5, "n": 1}, "argument it.to: expected str | bytes, got int 5"),
    ([], "argument it: expected Model as a map, got list []"),
]


@pytest.mark.parametrize(("value", "says"), PYDANTIC)
def test_of_a_model_what_it_surely_refuses_is_refused(value, says):
    assert says in refusal(check_arguments, published(Model), {"it": value})
    assert refusal(function_of(Model).typed.decode, {"it": value}) is not None


BOUND = [
    (Bound, {"n": "x"}, "argument it.n: expected number, got str 'x'"),
    (Bound, {"n": None}, "argument it.n: expected number, got None"),
    (Bound, {"n": 1, "to": 5}, "argument it.to: expected str | bytes, got int 5"),
    (Bound, {"n": 1, "rate": "x"}, "argument it.rate: expected number | None, got str 'x'"),
    (Bound, {"n": 1, "rows": 5}, "argument it.rows: expected list, got int 5"),
    (Bound, {"n": 1, "rows": [1, "x"]}, "argument it.rows[1]: expected number, got str 'x'"),
    (BoundStruct, {"n": "x"}, "argument it.n: expected number, got str 'x'"),
    (BoundStruct, {"n": 1, "to": 5}, "argument it.to: expected str | bytes | None, got int 5"),
    (pydantic.PositiveInt, "x", "argument it: expected int, got str 'x'"),
    (Annotated[str, pydantic.Field(min_length=2)], 5, "argument it: expected str, got int 5"),
]


@pytest.mark.parametrize(("annotation", "value", "says"), BOUND)
def test_a_bound_leaves_the_type_of_its_field(annotation, value, says):
    assert says in refusal(check_arguments, published(annotation), {"it": value})
    assert refusal(function_of(annotation).typed.decode, {"it": value}) is not None


def test_further_arguments_are_checked_each():
    app = App()

    @app.task("q")
    async def call(first: int, **more: date): ...

    one = published_function(call, None, has_codec=False)
    check_arguments(one, {"first": 1, "a": "2026-01-02"})
    says = refusal(check_arguments, one, {"first": 1, "a": "2026-01-02", "b": 5})
    assert says == "call(): argument b: expected date, got int 5"


def test_a_schema_is_bounded_and_says_less_where_it_does_not_fit():
    kind = msgspec.defstruct("Wide", [(f"field_{n}", int) for n in range(90)])
    (parameter,) = published(list[kind]).parameters
    assert parameter.schema == '["list","any"]'
    (parameter,) = published(kind).parameters
    assert parameter.schema == ""
    (parameter,) = published(Order).parameters
    assert 100 < len(parameter.schema.encode()) <= SCHEMA_BYTES_MAX


def test_schemas_give_way_in_a_row_the_longest_first():
    short, long = '["list","int"]', f'["one","","{"x" * 480}"]'
    given = PublishedFunction(
        "q",
        "f",
        parameters=tuple(
            FunctionParameter(f"p{n}", "required", "", short if n % 2 else long) for n in range(12)
        ),
    )
    facts = pack_function(given)
    assert len(facts) <= FUNCTION_BYTES_MAX
    found = unpack_function(b"q", b"f", 0, facts)
    kept = [one.schema for one in found.parameters]
    assert kept[1::2] == [short] * 6
    assert 0 < kept.count(long) < 6
    assert [one.name for one in found.parameters] == [f"p{n}" for n in range(12)]


ODD = ["", "x", "[", '{"a":1}', "[]", '["list"]', '["map","int"]', '["newer","x"]', '"newer"', "5"]


@pytest.mark.parametrize(
    "schema", [*ODD, '["object"]', '["object","X",5]', '["or"]', '["one"]', '[["x"]]']
)
def test_a_schema_that_is_not_known_says_nothing_wrong(schema):
    one = PublishedFunction("q", "f", parameters=(FunctionParameter("p", schema=schema),))
    for value in (5, "x", [5], {"5": 5}):
        said = refusal(check_arguments, one, {"p": value})
        assert said is None or said.startswith("f(): argument p")


def test_a_huge_argument_is_looked_at_in_part():
    one = PublishedFunction("q", "f", parameters=(FunctionParameter("p", schema='["list","int"]'),))
    assert refusal(check_arguments, one, {"p": [0] * 9_000 + ["x"]}) is not None
    assert refusal(check_arguments, one, {"p": [0] * 11_000 + ["x"]}) is None
    deep = value = []
    for _ in range(5_000):
        value.append([])
        value = value[0]
    assert refusal(check_arguments, one, {"p": deep}) is not None


def test_a_schema_too_long_to_store_is_refused():
    wrong = PublishedFunction("q", "f", parameters=(FunctionParameter("p", schema="x" * 513),))
    with pytest.raises(UsageError, match="no parameter of a published function"):
        lodeq.repository.model.calls.functions.check_function(wrong)
    for other in (replace(wrong, parameters=(FunctionParameter("p", schema=5),)),):
        with pytest.raises(UsageError):
            lodeq.repository.model.calls.functions.check_function(other)
