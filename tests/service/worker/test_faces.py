"""What a worker's app packs as the face of its tasks, and what redaction leaves of it."""

import logging
import re
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest

import lodeq.testing
from lodeq import UsageError
from lodeq.repository.model import preview_cuts
from lodeq.repository.model.calls import previews
from lodeq.repository.model.calls.previews import preview_of
from lodeq.repository.model.preview_cuts import SEEN_MAX, fit_preview, is_cut
from lodeq.service.worker import app as app_module
from lodeq.worker import App

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def app_of(engine, **options):
    app = App(**options)

    @app.task("mail", max_attempts=1)
    async def send(to, n=1):
        if n < 0:
            raise ValueError(f"cannot send to {to}")

    async with app.use(engine):
        yield app, send


def face_of(found):
    return found.function, found.preview, dict(found.labels)


async def test_a_call_shows_function_and_arguments(anyio_backend):
    async with lodeq.testing.open() as engine, app_of(engine) as (app, send):
        receipt = await send.options(labels={"customer": "7"}).enqueue("a@example.org", n=3)
        expected = ("send", "to='a@example.org', n=3", {"customer": "7"})
        assert face_of(await engine.get(receipt.id)) == expected
        await app.drain(errors="keep")
        assert face_of(await engine.result(receipt.id)) == expected
        task = send.new("b")
        assert (task.function, task.preview, task.labels) == ("send", "to='b'", None)
        (many,) = await send.enqueue_many([task])
        assert face_of(await engine.get(many.id)) == ("send", "to='b'", {})


async def test_labels_are_checked_where_the_task_is_enqueued(anyio_backend):
    async with lodeq.testing.open() as engine:
        async with app_of(engine) as (_, send):
            with pytest.raises(UsageError, match="label 'n' must be a str"):
                await send.options(labels={"n": 7}).enqueue("a")
        async with app_of(engine, redact=str.upper) as (_, send):
            with pytest.raises(UsageError, match="label 'n' must be a str"):
                await send.options(labels={"n": 7}).enqueue("a")


async def test_an_app_or_a_queue_without_faces(anyio_backend):
    async with lodeq.testing.open() as engine, app_of(engine, faces=False) as (app, send):
        receipt = await send.options(labels={"a": "b"}).enqueue("a")
        assert face_of(await engine.get(receipt.id)) == ("", "", {})
        await app.drain(errors="keep")
        queue = engine.queue("other", faces=False)
        tasks = [
            lodeq.NewTask(b"x", function="f"),
            lodeq.NewTask(b"y", max_attempts=2, preview="p"),
        ]
        receipts = [await queue.enqueue(b"x", labels={"a": "b"}, function="f")]
        receipts += await queue.enqueue_many(tasks)
        assert [face_of(await engine.get(one.id)) for one in receipts] == [("", "", {})] * 3


def masked(text):
    return text.replace("a@example.org", "***")


async def test_what_is_redacted(anyio_backend, caplog):
    async with lodeq.testing.open() as engine, app_of(engine, redact=masked) as (app, send):
        receipt = await send.options(labels={"to": "a@example.org"}).enqueue("a@example.org", n=-1)
        with caplog.at_level(logging.WARNING, "lodeq.worker"):
            await app.drain(errors="keep")
        result = await engine.result(receipt.id)
        assert face_of(result) == ("send", "to='***', n=-1", {"to": "***"})
        assert "cannot send to ***" in result.error
        assert "a@example.org" not in caplog.records[-1].getMessage()
        assert (await engine.get(receipt.id)).payload == {"to": "a@example.org", "n": -1}
        assert app.redact_failures == 0


def raising(text):
    raise RuntimeError(text)


@pytest.mark.parametrize(
    "hook", [raising, lambda text: None, lambda text: text.encode(), lambda _: "\ud800"]
)
async def test_a_hook_that_fails_stores_nothing_and_is_counted(anyio_backend, hook):
    async with lodeq.testing.open() as engine, app_of(engine, redact=hook) as (app, send):
        receipt = await send.options(labels={"to": "x"}).enqueue("secret", n=-1)
        await app.drain(errors="keep")
        result = await engine.result(receipt.id)
        assert (face_of(result), result.error) == (("send", "", {}), "nacked")
        assert app.redact_failures == 3
    async with lodeq.testing.open(redact=hook) as engine:
        queue = engine.queue("mail")
        receipts = [await queue.enqueue(b"x", preview="secret", labels={"a": "b"}, function="f")]
        receipts += await queue.enqueue_many([lodeq.NewTask(b"y", preview="secret")])
        receipts.append(await queue.enqueue(b"z", preview="secret", max_attempts=2))
        found = [face_of(await engine.get(one.id)) for one in receipts]
        assert found == [("f", "", {}), ("", "", {}), ("", "", {})]
        assert (await engine.stats()).redact_failures == 4


async def test_an_engine_redacts_before_it_cuts(anyio_backend):
    async with lodeq.testing.open(redact=lambda text: text.replace("secret" * 10, "***")) as engine:
        preview = "x" * 240 + "secret" * 10
        receipt = await engine.queue("mail").enqueue(b"x", preview=preview, labels={"k": "v"})
        assert face_of(await engine.get(receipt.id)) == ("", "x" * 240 + "***", {"k": "v"})


async def test_a_hook_that_makes_a_label_too_long_drops_it(anyio_backend):
    async with lodeq.testing.open(redact=lambda text: text * 80) as engine:
        receipt = await engine.queue("mail").enqueue(b"x", labels={"k": "v"})
        assert face_of(await engine.get(receipt.id)) == ("", "", {})


def test_a_hook_has_to_be_a_function():
    for make in (App, lodeq.testing.open):
        with pytest.raises(UsageError, match="redact must be a function"):
            make(redact="mask")


class Colour(Enum):
    RED = "r"


class Loud:
    def __repr__(self):
        raise AssertionError("nobody asks for it")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (True, "True"),
        (1.5, "1.5"),
        (b"ab", "b'ab'"),
        ("x" * 101, "'" + "x" * 100 + "'…"),
        (1 << 300, "<int of 301 bits>"),
        ([1, 2, 3, 4, 5], "[1, 2, 3, 4, 5]"),
        (list(range(1000)), f"[{', '.join(map(str, range(67)))}, …]"),
        ((1,), "(1)"),
        ({"a": {"b": {"c": 1}}}, "{'a': {'b': {…}}}"),
        ([], "[]"),
        ({1}, "{1}"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+1000000"), "1E+1000000"),
        (Decimal("1" * 101), "<Decimal of 101 digits>"),
        (Colour.RED, "Colour.RED"),
        (Loud(), "<Loud>"),
        (datetime(2026, 11, 23, tzinfo=UTC), "2026-11-23T00:00:00+00:00"),
        (date(2026, 11, 23), "2026-11-23"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    ],
)
def test_a_value_is_shown_in_a_few_words(value, shown):
    assert preview_of({"v": value}) == f"v={shown}"


def test_a_preview_is_bounded_whatever_the_arguments():
    nested = []
    for _ in range(100_000):
        nested = [nested] * 2
    huge = {f"argument_{n}": ["x" * 1000] * 1000 for n in range(1000)}
    for arguments in (huge, {"n": nested}, {"n": dict.fromkeys(range(1000), "y" * 10**6)}):
        assert len(preview_of(arguments)) <= SEEN_MAX
    assert preview_of({}) == ""


async def test_what_follows_a_long_argument_is_found(anyio_backend):
    async with lodeq.testing.open() as engine:
        app = App()

        @app.task("mail")
        async def send(body, rows, to, n=1): ...

        async with app.use(engine):
            body, rows = "'quoted', to=nobody, " * 100, [{"name": "x" * 90}] * 4
            receipt = await send.enqueue(body, rows, "ann@example.org", n=77)
            meant = lodeq.TaskFilter(text="to='ann@example.org', n=77")
            assert [task.id for task in (await engine.find(meant)).tasks] == [receipt.id]
            preview = (await engine.get(receipt.id)).preview
        assert len(preview.encode()) <= 256
        assert re.fullmatch(
            r"body=\".{70,110}…, rows=\[(\{'name': 'x{5,}…\}, ){3}\{'name': 'x{5,}…\}\]"
            r", to='ann@example.org', n=77",
            preview,
        )


ORDER = {"id": 12, "street": "Long Lane 1", "city": "Bath", "zip": "12345", "vat": True}


@pytest.mark.parametrize(
    "order",
    [
        {**ORDER, "email": "ann@example.org"},
        {
            **ORDER,
            "note": "x" * 500,
            "lines": [{"sku": "A-1", "n": 2}] * 50,
            "email": "ann@example.org",
        },
        {"notes": ["x, {" * 40] * 30, "more": {"a": "]" * 90, "b": {}}, "email": "ann@example.org"},
        [{"id": n, "price": 1.5} for n in range(3)] + ["ann@example.org"],
        [["y" * 200] * 9, ("z" * 200,), "ann@example.org"],
        {"it's": 1, 7: '"', "x" * 150: b"'", None: (1, 2), "email": "ann@example.org"},
    ],
)
def test_members_are_shown_until_the_room_is_used(order):
    for arguments in ({"order": order}, {"order": order, "n": 77}):
        preview = fit_preview(preview_of(arguments))
        assert "'ann@example.org'" in preview
        assert len(preview.encode()) <= 256


def test_names_of_members_stay_before_their_values():
    order = {f"field_{n}": "v" * 80 for n in range(12)}
    preview = fit_preview(preview_of({"order": order}))
    assert [name for name in order if f"'{name}': 'v" in preview] == list(order)
    assert 240 <= len(preview.encode()) <= 256


async def test_what_lies_in_a_nested_argument_is_found(anyio_backend):
    async with lodeq.testing.open() as engine, app_of(engine) as (_, send):
        order = {**ORDER, "email": "customer@example.org"}
        receipt = await send.enqueue(order, "b" * 500)
        meant = lodeq.TaskFilter(text="customer@")
        assert [task.id for task in (await engine.find(meant)).tasks] == [receipt.id]


def test_long_values_share_the_room_and_short_ones_stay():
    short = {f"arg{n}": n for n in range(10)}
    for long in ("x" * 500, "ä" * 500, ["word"] * 50, {"key": "y" * 90, "more": "z" * 90}):
        arguments = {"first": long, **short, "second": long, "third": b"z" * 500, "last": True}
        preview = fit_preview(preview_of(arguments))
        assert 240 <= len(preview.encode()) <= 256
        for name in (*arguments, "last=True", *(f"arg{n}={n}" for n in range(10))):
            assert name in preview
        lengths = [len(part.encode()) for part in preview.split("…, ") if "=" in part]
        assert is_cut(preview), lengths
    assert not is_cut(fit_preview(preview_of(short)))


@pytest.mark.parametrize("n", [1, 40, 60, 3000])
def test_too_many_arguments_leave_the_first(n):
    for name in ("a", "an_argument", "x" * 300, "ä" * 300):
        preview = fit_preview(preview_of({f"{name}{i}": "v" * 20 for i in range(n)}))
        assert len(preview.encode()) <= 256
        assert preview.startswith(name[:100])
        assert (n == 1 and len(name) < 20) or is_cut(preview)


def test_a_redaction_sees_long_arguments_before_they_are_cut():
    arguments = {f"arg{n}": "x" * 60 + "secret" * 5 for n in range(20)}
    seen = preview_of(arguments)
    assert seen.count("secret" * 5) == 20
    assert fit_preview(seen.replace("secret" * 5, "")).count("arg") == 20


class Formatted:
    """How many characters a preview formats and cuts, whoever asks."""

    def __init__(self, monkeypatch):
        work = self
        self.chars = self.values = 0
        shown, cut, finds = previews._shown, preview_cuts._cut, preview_cuts._NEXT

        def counted_shown(value, *rest):
            text = shown(value, *rest)
            self.values += 1
            self.chars += len(text)
            return text

        def counted_cut(value, bytes_max):
            self.chars += len(value)
            return cut(value, bytes_max)

        class Finds:
            def finditer(self, text):
                work.chars += len(text)
                return finds.finditer(text)

        monkeypatch.setattr(previews, "_shown", counted_shown)
        monkeypatch.setattr(preview_cuts, "_cut", counted_cut)
        monkeypatch.setattr(preview_cuts, "_NEXT", Finds())

    def of(self, arguments, bytes_max):
        self.chars = self.values = 0
        preview = fit_preview(preview_of(arguments, bytes_max))
        assert len(preview.encode()) <= 256
        return self.chars, self.values


def large_arguments(n):
    """Worst cases, ``n`` times as large as they look."""
    text = "x" * 100 * n
    rows = [text] * 14 * n
    tree = [[rows, rows] * n, {text: rows}] * n
    return {
        "text": {"v": text},
        "texts": {f"a{i}": text for i in range(51 * n)},
        "rows": {"v": rows},
        "many rows": {f"a{i}": rows for i in range(51 * n)},
        "maps": {f"a{i}": dict.fromkeys(range(30 * n), text) for i in range(51)},
        "trees": {f"a{i}": tree for i in range(51)},
        "names": {f"{'n' * 200 * n}{i}": text for i in range(51)},
        "numbers": {f"a{i}": list(range(100 * n)) for i in range(51)},
        "decimals": {f"a{i}": Decimal("1" * 100 * n) for i in range(20)},
        "integers": {f"a{i}": 10 ** (100 * n) for i in range(51)},
    }


@pytest.mark.parametrize(("bytes_max", "most"), [(256, 20_000), (SEEN_MAX, 45_000)])
def test_the_work_follows_the_preview_and_not_the_arguments(monkeypatch, bytes_max, most):
    """Counted in characters that are formatted or cut, and in values that are looked at."""
    work = Formatted(monkeypatch)
    small, large = large_arguments(1), large_arguments(20)
    for name in small:
        chars, values = work.of(small[name], bytes_max)
        more_chars, more_values = work.of(large[name], bytes_max)
        assert max(chars, more_chars) <= most, name
        assert max(values, more_values) <= most / 15, name


def test_digits_of_a_long_number_are_not_counted():
    huge = Decimal("7" * 100_000)
    assert preview_of({"v": huge}) == "v=<Decimal of many digits>"
    assert preview_of({"v": Decimal("7" * 150)}) == "v=<Decimal of 150 digits>"


async def test_only_what_no_hook_sees_is_cut_at_once(anyio_backend, monkeypatch):
    asked = []
    monkeypatch.setattr(app_module, "preview_of", lambda given, most: asked.append(most) or "p")
    hook = {"redact": str.upper}
    for app_options, engine_options, expected in (
        ({}, {}, 256),
        (hook, {}, SEEN_MAX),
        ({}, hook, SEEN_MAX),
    ):
        opened = lodeq.testing.open(**engine_options)
        async with opened as engine, app_of(engine, **app_options) as (_, send):
            await send.enqueue("a")
            send.new("a")  # may go into another store
        assert asked == [expected, SEEN_MAX]
        asked.clear()


def test_both_ways_store_what_fits_and_cut_alike_what_does_not():
    for arguments in large_arguments(1).values():
        stored, seen = (fit_preview(preview_of(arguments, most)) for most in (256, SEEN_MAX))
        assert abs(len(stored.encode()) - len(seen.encode())) <= 40
    short = {"to": "a@example.org", "n": 3, "rows": [1, 2]}
    assert preview_of(short, 256) == preview_of(short)
