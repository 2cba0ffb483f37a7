"""Typed arguments: what annotations say is stored plainly, comes out typed, and is checked."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    SupportsInt,
)
from uuid import UUID

import anyio
import msgpack
import pydantic
import pytest
from support_cli import objects
from support_dashboard import browsing
from support_http import serving, socket_path
from support_typed import (
    CASES,
    ID,
    MORE,
    NAIVE,
    NOON,
    Address,
    Cat,
    Colour,
    DatePage,
    Dog,
    Name,
    Options,
    Order,
    Page,
    Part,
    Rights,
    Touchy,
    User,
    Wire,
)

import lodeq
from lodeq import UsageError
from lodeq.testing import worker
from lodeq.worker import App, Snooze

if TYPE_CHECKING:
    from somewhere import Behind, Nothing

pytestmark = pytest.mark.anyio


async def round_trip(annotation: Any, value: Any) -> tuple[Any, Any]:
    """(what a worker gets, what is stored)."""
    app, got = App(name="test"), []

    async def take(value):
        got.append(value)
        return value

    take.__annotations__ = {"value": annotation, "return": annotation}
    function = app.task("typed")(take)
    async with worker(app) as bench:
        receipt = await function.enqueue(value)
        (task,) = await bench.engine.queue("typed").peek()
        stored = task.payload["value"]
        assert (await app.drain()).completed == 1
        result = await bench.engine.result(receipt.id)
        assert function.typed.decode_result(result.value) == value
        assert result.value == stored
    return got[0], stored


@pytest.mark.parametrize(("annotation", "value", "stored"), CASES)
async def test_a_value_is_stored_plainly_and_comes_out_typed(annotation, value, stored):
    got, plain = await round_trip(annotation, value)
    assert got == value
    assert type(got) is type(value) or (annotation is float and type(got) is float)
    assert plain == stored
    assert type(plain) is type(stored)
    msgpack.packb(plain, datetime=True)  # nothing of ours in it


def function_of(annotation, default=dataclasses.MISSING):
    async def send(user): ...

    send.__annotations__ = {"user": annotation}
    return App().task("typed")(send)


REFUSED = [
    (int, "x", "send(): argument user: expected int, got str 'x'"),
    (int, 1 << 64, "send(): argument user: expected int of 64 bits, got 65 bits"),
    (str, None, "send(): argument user: expected str, got None"),
    (bool, 1, "expected bool, got int 1"),
    (float, True, "expected float, got bool True"),
    (float, 1 << 2000, "too large"),
    (date, NAIVE, "expected date, got datetime"),
    (datetime, NAIVE, "expected datetime with a time zone, got datetime datetime.datetime(2026"),
    (
        list[list[datetime]],
        [[NOON], [NOON, NAIVE]],
        "user[1][1]: expected datetime with a time zone",
    ),
    (datetime | None, NAIVE, "; pass datetime.now(UTC), or value.replace(tzinfo=…)"),
    (Part, Part("x"), "argument user._number: expected int, got str 'x'"),
    (Part, User("A"), "expected Part, got User"),
    (list[Cat] | list[Dog], [Dog("Rex")], "would be read as list [Cat(name='Rex')]"),
    (dict[str, Any] | Cat, {"$type": "Cat", "name": "x"}, "the key '$type' is taken"),
    (Touchy, Touchy.model_construct(number=0), "a validator of Touchy raised ZeroDivisionError"),
    (timedelta, 3600, "expected timedelta, got int 3600"),
    (timedelta, timedelta.max, "expected timedelta that seconds as a float carry"),
    (dict[str, int], {1 << 20_000: 1}, "argument user[…]: expected str"),
    (dict[str, int], {"x" * 100: "y"}, f"argument user['{'x' * 58}…]: expected int"),
    (UUID, str(ID), "expected UUID, got str"),
    (Colour, "red", "expected Colour, got str 'red'"),
    (Literal["a", 1], True, "expected one of 'a', 1, got bool True"),
    (Literal["a"], [], "expected one of 'a', got list []"),
    (int | str, 1.5, "expected int | str, got float 1.5"),
    (int | None, "x", "expected int, got str 'x'"),
    (date | str, "2026-01-02", "str '2026-01-02' would be read as date"),
    (list[int] | set[int], {1}, "set {1} would be read as list"),
    (list[int], (1,), "expected list, got tuple (1,)"),
    (list[int], [1, "x"], "argument user[1]: expected int, got str 'x'"),
    (set[date], {1}, "argument user[0]: expected date, got int 1"),
    (tuple[int, str], (1,), "expected 2 values (tuple[int, str]), got 1"),
    (tuple[int, str], (1, 2), "argument user[1]: expected str, got int 2"),
    (dict[str, int], {"a": "x"}, "argument user['a']: expected int, got str 'x'"),
    (dict[str, int], {1: 1}, "argument user[1]: expected str, got int 1"),
    (
        User,
        User("A", [Address("a", 1), Address("b", 2), Address("c", "x")]),
        "send(): argument user.address[2].zip: expected int, got str 'x'",
    ),
    (User, {"name": "A"}, "expected User, got dict {'name': 'A'}; pass User(**…)"),
    (Cat | Dog, Cat(1), "argument user.name: expected str, got int 1"),
    (Page, DatePage([]), "expected Page, got its subclass DatePage"),
    (Options, {}, "argument user.since: missing"),
    (Options, {"since": date(2026, 1, 2), "x": 1}, "Options has no key 'x'"),
    (Wire, Wire(ID, [1, "x"]), "argument user.sizes[1]: expected int, got str 'x'"),
    (Wire, User("A"), "expected Wire, got User"),
    (
        Order,
        Order.model_construct(number=1, total="1", when=NOON, lines=[{}]),
        "argument user.lines[0].amount: missing",
    ),
]


@pytest.mark.parametrize(("annotation", "value", "error"), REFUSED)
async def test_what_does_not_fit_is_refused_with_its_place(annotation, value, error):
    function = function_of(annotation)
    with pytest.raises(UsageError) as caught:
        function.new(value)
    assert error in str(caught.value)
    assert len(str(caught.value)) < 250


async def test_pydantic_says_what_is_wrong_where():
    order = Order.model_construct(number="x", total=Decimal(1), when=NOON)
    with pytest.raises(
        UsageError, match=r"send\(\): argument user.number: input should be a valid"
    ):
        function_of(Order).new(order)


@pytest.mark.parametrize(
    ("annotation", "wrapped"),
    [
        (Order, lambda order: order),
        (list[Order], lambda order: [order]),
        (dict[str, Order], lambda order: {"a": order}),
    ],
)
async def test_further_errors_are_named_and_the_cause_is_kept(annotation, wrapped):
    order = Order.model_construct(number="x", total="y", when=NOON, lines=[{"amount": "z"}])
    with pytest.raises(UsageError, match=r"and 2 more: total, lines\[0\]\.amount\)") as caught:
        function_of(annotation).new(wrapped(order))
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)
    many = Order.model_construct(number=1, total=1, when=NOON, lines=[{}] * 6)
    with pytest.raises(UsageError, match=r"and 5 more: (lines\[\d\]\.amount, ){3}…\)"):
        function_of(Order).new(many)


READ = [
    (int, "x", "expected int, got str 'x'"),
    (date, "tomorrow", "expected date, got str 'tomorrow'"),
    (datetime, "2026-01-02", "expected datetime, got str '2026-01-02'"),
    (Decimal, "x", "expected Decimal, got str 'x'"),
    (timedelta, 1e300, "expected timedelta as seconds"),
    (dict[int, str], {"--5": "x"}, "argument user['--5']: expected int, got str '--5'"),
    (dict[int, str], {"1" * 5000: "x"}, f"argument user['{'1' * 58}…]: expected int"),
    (Colour, "green", "expected Colour (one of 'red', 'blue'), got str 'green'"),
    (Rights, True, "expected Rights"),
    (set[Any], [[1]], "values that cannot be in a set"),
    (Address, {"street": "A"}, "argument user.zip: missing"),
    (Address, [1], "expected Address as a map, got list [1]"),
    (Cat | Dog, {"$type": "Bird"}, "expected Cat | Dog, got $type 'Bird'"),
    (Wire, {}, "object missing required field id"),
    (Order, {"number": 1}, "argument user.total: missing"),
]


@pytest.mark.parametrize(("annotation", "stored", "error"), READ)
async def test_what_was_stored_otherwise_fails_its_run_with_the_place(annotation, stored, error):
    app = App()

    async def send(user): ...

    send.__annotations__ = {"user": annotation}
    app.task("typed")(send)
    async with worker(app) as bench:
        receipt = await bench.engine.queue("typed", max_attempts=1).enqueue({"user": stored})
        assert (await app.drain(errors="keep")).dead == 1
        assert error in (await bench.engine.get(receipt.id)).reason


async def test_fields_come_and_go():
    decode = function_of(User).typed.decode
    # of a newer version with one more field, and of an older one with fewer
    assert decode({"user": {"name": "A", "shoe": 42}}) == {"user": User("A")}
    assert function_of(Wire).typed.decode({"user": {"id": str(ID), "x": 1}})["user"] == Wire(ID)


@dataclass
class Price:
    __lodeq_version__: ClassVar[int] = 3
    cents: int
    currency: str

    @classmethod
    def __lodeq_upgrade__(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        if version < 2:
            fields["cents"] = round(fields.pop("euros") * 100)
        return {"currency": "EUR", **fields}


async def test_a_versioned_type_reads_older_forms():
    function = function_of(list[Price])
    stored = function.new([Price(5, "EUR")]).payload
    assert stored == {"user": [{"$v": 3, "cents": 5, "currency": "EUR"}]}
    decode = function.typed.decode
    assert decode(stored) == {"user": [Price(5, "EUR")]}
    assert decode({"user": [{"euros": 1.5}]}) == {"user": [Price(150, "EUR")]}
    assert decode({"user": [{"$v": 2, "cents": 7}]}) == {"user": [Price(7, "EUR")]}
    with pytest.raises(UsageError, match=r"user\[0\]: stored by version 4 of Price, .* has 3"):
        decode({"user": [{"$v": 4}]})
    with pytest.raises(UsageError, match=r"__lodeq_upgrade__ of version 1 raised KeyError"):
        decode({"user": [{}]})


async def test_a_version_is_a_number_and_an_upgrade_a_dict():
    @dataclass
    class Bad:
        __lodeq_version__: ClassVar[str] = "two"

    with pytest.raises(UsageError, match=r"argument user: Bad.__lodeq_version__ must be a whole"):
        function_of(Bad)

    @dataclass
    class Worse:
        __lodeq_version__: ClassVar[int] = 2
        x: int = 0

        @classmethod
        def __lodeq_upgrade__(cls, fields, version):
            return None

    with pytest.raises(UsageError, match="must return a dict, not None"):
        function_of(Worse).typed.decode({"user": {"x": 1}})


async def test_annotations_in_strings_of_local_classes():
    @dataclass
    class Local:
        when: date

    app = App()

    @app.task("typed")
    async def send(it: Local, more: list[Local] = []) -> Local | Snooze:  # noqa: B006
        return it

    assert send.new(Local(date(2026, 1, 2))).payload == {"it": {"when": "2026-01-02"}}
    assert send.typed.decode({"it": {"when": "2026-01-02"}}) == {"it": Local(date(2026, 1, 2))}
    assert send.typed.encode_result(Local(date(2026, 1, 2))) == {"when": "2026-01-02"}


app_of_module = App()


@app_of_module.task("typed")
async def early(it: Later) -> None: ...


@dataclass
class Later:
    when: date


async def test_what_is_defined_further_down_is_found_when_used():
    assert early.new(Later(date(2026, 1, 2))).payload == {"it": {"when": "2026-01-02"}}


async def test_what_is_never_defined_passes_as_it_is(caplog):
    app = App()

    @app.task("typed")
    async def send(it: Nothing, when: date) -> None: ...

    assert send.new(1, date(2026, 1, 2)).payload == {"it": 1, "when": "2026-01-02"}
    assert send.new(1, date(2026, 1, 2)).payload
    (record,) = caplog.records
    assert "send(): argument it: the annotation 'Nothing' cannot be resolved" in record.getMessage()


async def test_methods_partials_objects_and_wrappers():
    class Mailer:
        async def send(self, when: date) -> None: ...

        async def __call__(self, when: date) -> None: ...

    async def send(prefix: str, when: date) -> None: ...

    app = App()
    made = [
        app.task("a", name="method")(Mailer().send),
        app.task("a", name="object")(Mailer()),
    ]
    for function in made:
        assert function.new(date(2026, 1, 2)).payload == {"when": "2026-01-02"}
    bound = app.task("a", name="partial")(partial(send, "x"))
    assert bound.new(date(2026, 1, 2)).payload == {"when": "2026-01-02"}


async def test_named_rest_arguments_are_each_of_its_type():
    app = App()

    @app.task("typed")
    async def send(**days: date) -> dict[str, date]:
        return days

    assert send.new(a=date(2026, 1, 2)).payload == {"a": "2026-01-02"}
    assert send.typed.decode({"a": "2026-01-02"}) == {"a": date(2026, 1, 2)}
    with pytest.raises(UsageError, match=r"send\(\): argument a: expected date, got int 1"):
        send.new(a=1)


async def test_unannotated_arguments_pass_as_ever():
    app = App()

    @app.task("typed")
    async def send(a, b: Any, c: dict) -> None: ...

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert send.new(moment, {"x": moment}, {1: moment}).payload == {
        "a": moment,
        "b": {"x": moment},
        "c": {1: moment},
    }


async def test_a_result_that_its_annotation_does_not_say_is_stored_as_it_is(caplog):
    app = App()

    @app.task("typed")
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    async with worker(app) as bench:
        receipts = [await count.enqueue() for _ in range(2)]
        assert (await app.drain()).completed == 2
        assert (await bench.engine.result(receipts[0].id)).value == "many"
    said = [r.getMessage() for r in caplog.records if "annotation" in r.getMessage()]
    (only,) = said
    assert only.startswith("count() returned what its annotation does not say: result: expected")


async def test_what_can_never_be_stored_is_refused_where_it_is_written():
    with pytest.raises(UsageError, match="a map cannot be the key of a map"):
        function_of(dict[Cat, int])

    @dataclass
    class Odd:
        seed: dataclasses.InitVar[int]

    with pytest.raises(UsageError, match=r"Odd.seed is an InitVar"):
        function_of(Odd)


async def test_naive_text_of_an_older_release_is_read():
    assert function_of(datetime).typed.decode({"user": NAIVE.isoformat()}) == {"user": NAIVE}


async def test_a_naive_time_in_a_result_loses_no_work():
    app = App()

    @app.task("typed")
    async def ends() -> dict[str, datetime]:
        return {"at": NAIVE}

    async with worker(app):
        receipt = await ends.enqueue()
        assert (await app.drain()).completed == 1
        result = await receipt.result()
        assert result.value == {"at": NAIVE}


class Opaque:
    pass


@dataclass
class Holder:
    one: Opaque


@pytest.mark.parametrize(
    ("annotation", "where"),
    [
        (Opaque, "the result is Opaque"),
        (Opaque | Snooze | None, "the result is Opaque"),
        (dict[str, list[Opaque]], "the result[][] is Opaque"),
        (Holder, "the result.one is Opaque"),
        (tuple[int, Holder], "the result[1].one is Opaque"),
    ],
)
async def test_a_result_that_cannot_be_stored_is_refused_where_it_is_written(annotation, where):
    async def send(): ...

    send.__annotations__ = {"return": annotation}
    with pytest.raises(UsageError, match="give the app a codec") as caught:
        App().task("typed")(send)
    assert where in str(caught.value)

    class Codec:
        def encode(self, value: Any) -> bytes:
            raise NotImplementedError

        def decode(self, data: bytes) -> Any:
            raise NotImplementedError

    App(codec=Codec()).task("typed")(send)


@dataclass
class Early:
    late: Behind


async def test_a_result_defined_further_down_is_refused_before_anything_is_claimed(monkeypatch):
    app = App()

    @app.task("typed")
    async def send() -> Early:
        raise AssertionError

    monkeypatch.setitem(globals(), "Behind", Opaque)  # the module is loaded by now
    with pytest.raises(UsageError, match=r"the result\.late is Opaque"):
        async with worker(app):
            pass


@pytest.mark.parametrize("annotation", [Snooze, int | Snooze, SupportsInt, Name, None])
async def test_what_ends_a_run_and_what_may_be_plain_is_no_refused_result(annotation):
    async def send(): ...

    send.__annotations__ = {"return": annotation}
    App().task("typed")(send)


async def test_a_value_too_deep_is_refused():
    deep = User("A")
    for _ in range(2000):
        deep = User("B", manager=deep)
    with pytest.raises(UsageError, match="argument user is nested too deeply"):
        function_of(User).new(deep)


async def test_keys_of_json_are_read_as_numbers():
    assert function_of(dict[int, str]).typed.decode({"user": {"-1": "a"}}) == {"user": {-1: "a"}}


async def test_a_codec_gets_plain_values_and_unknown_classes():
    class Odd:
        pass

    odd = Odd()
    function = function_of(dict[str, Odd])
    assert function.new({"a": odd}).payload == {"user": {"a": odd}}
    assert function.typed.decode({"user": {"a": odd}}) == {"user": {"a": odd}}


async def test_every_type_holds_on_every_way_to_see_it():
    """Enqueued, run, dead, redriven, run again; over HTTP, the command line and a dashboard."""
    cases = [*CASES, *MORE]
    assert len(cases) >= 60
    app, got, fails = App(name="test"), {}, set()

    def function_for(number, annotation):
        async def take(value):
            got.setdefault(number, []).append(value)
            if number not in fails:
                fails.add(number)
                raise RuntimeError("the first time")
            return value

        take.__annotations__ = {"value": annotation, "return": annotation}
        return app.task(f"q{number}", name=f"take{number}", max_attempts=1)(take)

    functions = [function_for(number, case[0]) for number, case in enumerate(cases)]
    with socket_path() as path:
        async with worker(app) as bench, serving(bench.engine, path=path) as url:
            engine = bench.engine
            receipts = [
                await function.enqueue(case[1])
                for function, case in zip(functions, cases, strict=True)
            ]
            assert (await app.drain(errors="keep")).dead == len(cases)
            async with lodeq.connect(url) as client, browsing(engine) as pages:
                for number, (receipt, (annotation, _, stored)) in enumerate(
                    zip(receipts, cases, strict=True)
                ):
                    task = await client.get(receipt.id)
                    assert task.state == "dead", annotation
                    if stored is not None:
                        assert task.payload == {"value": stored}, annotation
                    assert (await pages.get(f"/tasks/{receipt.id}")).status_code == 200
                    assert await client.queue(f"q{number}").redrive() == 1
                assert (await app.drain(errors="keep")).completed == len(cases)
                shown = {}
                for receipt in receipts:
                    (one,) = await anyio.to_thread.run_sync(objects, "show", url, receipt.id)
                    shown[receipt.id] = one
                for number, (receipt, (annotation, value, stored)) in enumerate(
                    zip(receipts, cases, strict=True)
                ):
                    for run in got[number]:
                        assert same(run, value), annotation
                    assert len(got[number]) == 2
                    result = await receipt.result()
                    assert same(result.value, value), annotation
                    remote = await client.result(receipt.id)
                    if stored is not None:
                        assert remote.value == stored, annotation
                    page = await pages.get(f"/tasks/{receipt.id}")
                    assert page.status_code == 200
                    assert f"take{number}" in page.text
                    assert shown[receipt.id]["state"] == "completed"
                    text = plainly(stored)
                    assert text is None or text in json.dumps(shown[receipt.id]), annotation


def same(one, other):
    """Equal and of one type; NaN is NaN."""
    if isinstance(other, Decimal) and other.is_nan():
        return isinstance(one, Decimal) and one.is_nan()
    return one == other and (type(one) is type(other) or isinstance(other, int))


def plainly(stored):
    """Text that people have to see of what is stored, if it is text."""
    return json.dumps(stored) if isinstance(stored, str) else None
