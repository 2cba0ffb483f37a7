"""Enqueues with options over the link: the short way does what a call of ``POST /tasks`` does."""

import re
from datetime import UTC, datetime, timedelta

import anyio
import msgpack
import pytest
from support_http import serving, socket_path
from support_link import grow_older
from support_wire import pack, wired

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq import Backoff, NewTask
from lodeq.service.http.link import connection as linked
from lodeq.service.http.link import operations, requests
from lodeq.service.http.link.port import CALLS_MAX

pytestmark = pytest.mark.anyio

MOMENT = datetime(2030, 1, 31, 12, 0, 0, 123456, UTC)
OPTIONS = {
    "lowest": {"priority": 0},
    "highest": {"priority": 9},
    "delay": {"delay": 1.5},
    "timedelta": {"delay": timedelta(seconds=90), "ttl": timedelta(hours=1)},
    "no delay": {"delay": 0},
    "run_at": {"run_at": MOMENT},
    "run_at elsewhere": {"run_at": MOMENT.astimezone(datetime.now().astimezone().tzinfo)},
    "past": {"run_at": datetime(2000, 1, 1, tzinfo=UTC)},
    "ttl": {"ttl": 60},
    "key": {"dedup_key": "order-7"},
    "key of bytes": {"dedup_key": b"\xff\x00order"},
    "long key": {"dedup_key": "ü" * 2048},
    "window": {"dedup_key": "w", "dedup_window": 3600},
    "return": {"dedup_key": "r", "on_conflict": "return"},
    "raise": {"dedup_key": "x", "on_conflict": "raise"},
    "replace": {"dedup_key": "p", "on_conflict": "replace"},
    "key and more": {"dedup_key": "m", "delay": 5, "ttl": 9, "priority": 7, "headers": {"a": 1}},
    "no headers": {"headers": {}},
    "headers": {"headers": {"trace": "1", "deep": [{"x": [None, True, 1.5, b"y"]}]}},
    "time in headers": {"headers": {"at": MOMENT}},
    "max_attempts": {"max_attempts": 9},
    "retry": {"retry": Backoff("fixed", base=3.0)},
    "retention": {"retention": 60, "dead_retention": timedelta(days=1)},
    "no retention": {"retention": 0},
    "shard_key": {"shard_key": "customer-1"},
    "shard_key of bytes": {"shard_key": b"\xff"},
    "labels": {"labels": {"customer": "ann", "region": "eu"}},
    "face": {"function": "pay", "preview": "pay(7)" * 99, "labels": {"a": "b"}},
    "face and key": {"function": "pay", "dedup_key": "f", "priority": 1},
    "all": {
        "priority": 2,
        "delay": 7,
        "ttl": 100,
        "dedup_key": "all",
        "dedup_window": 50,
        "on_conflict": "replace",
        "headers": {"h": 1},
        "max_attempts": 2,
        "retry": Backoff("exponential", base=1.0, factor=3.0, cap=9.0),
        "retention": 1,
        "dead_retention": 2,
        "labels": {"l": "m"},
        "function": "f",
        "preview": "p",
    },
}
WRONG = {
    "priority": {"priority": 10},
    "negative": {"priority": -1},
    "text": {"priority": "5"},
    "float": {"priority": 7.0},
    "bool": {"priority": True},
    "delay": {"delay": -1},
    "delay of text": {"delay": "soon"},
    "endless delay": {"delay": float("inf")},
    "no number": {"ttl": float("nan")},
    "huge": {"ttl": 1e300},
    "naive": {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
    "run_at of text": {"run_at": "2030-01-01T00:00:00Z"},
    "two times": {"delay": 1, "run_at": MOMENT},
    "empty key": {"dedup_key": ""},
    "too long key": {"dedup_key": "k" * 4097},
    "key of numbers": {"dedup_key": 5},
    "surrogate": {"dedup_key": "\ud800"},
    "window alone": {"dedup_window": 5},
    "conflict": {"dedup_key": "k", "on_conflict": "ignore"},
    "conflict alone": {"on_conflict": "raise"},
    "two keys": {"dedup_key": "k", "shard_key": "s"},
    "empty shard key": {"shard_key": b""},
    "headers": {"headers": [1]},
    "keys of headers": {"headers": {1: 2}},
    "large headers": {"headers": {"x": "y" * 20_000}},
    "objects in headers": {"headers": {"x": object()}},
    "max_attempts": {"max_attempts": 0},
    "attempts of text": {"max_attempts": "many"},
    "retry": {"retry": 5},
    "retention": {"retention": -1},
    "dead_retention": {"dead_retention": "long"},
    "labels": {"labels": {"a=b": "c"}},
    "labels of numbers": {"labels": {"a": 1}},
    "long label": {"labels": {"a": "x" * 100}},
    "many labels": {"labels": {str(n): "x" for n in range(9)}},
    "surrogate label": {"labels": {"a": "\ud800"}},
    "function": {"function": 5},
    "long function": {"function": "f" * 300},
    "preview": {"preview": 5},
    "payload": {"payload": object(), "priority": 1},
    "large payload": {"payload": b"x" * (4 << 20), "priority": 1},
    "several": {"priority": 10, "delay": -1, "headers": [1]},
}
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch):
    monkeypatch.setattr(linked, "LINGER_S", 0.0)


@pytest.fixture
def seen(monkeypatch):
    """The requests that servers have begun."""
    found = []
    handlers = {}
    for kind, handler in operations.HANDLERS.items():

        def handle(link, entry, handler=handler):
            found.append(entry)
            handler(link, entry)

        handlers[kind] = handle
    monkeypatch.setattr(operations, "HANDLERS", handlers)
    return found


@pytest.fixture
async def inner():
    async with lodeq.testing.open(clock=lodeq.testing.ManualClock()) as engine:
        yield engine


@pytest.fixture
async def both(inner, monkeypatch, seen):
    """Two clients of one engine: of a server of today, and of an older one."""
    with socket_path() as path, socket_path() as old:
        async with serving(inner, path=path) as url, lodeq.connect(url) as short:
            await short.queue("first").enqueue(b"opens the link")
            grow_older(monkeypatch)
            async with serving(inner, path=old) as old_url, lodeq.connect(old_url) as general:
                await general.queue("first").enqueue(b"opens the link")
                seen.clear()
                yield short, general


def kinds(seen):
    return [one.__class__.__name__ for one in seen if not isinstance(one, requests.Queue)]


async def tried(call):
    """A receipt without its ids, or all that an error says."""
    try:
        receipt = await call
    except lodeq.LodeqError as error:
        said = ID.sub("ID", str(error))
        return type(error), said, getattr(error, "index", None), [*error.receipts]
    return receipt.duplicate, receipt.replaced is not None


async def state(engine, queue):
    """All tasks of a queue, without their ids, and how those that are ready are leased."""
    found = []
    for name in ("ready", "delayed"):
        for task in await queue.list(name):
            fields = {one: getattr(task, one) for one in task.__slots__ if one[0] != "_"}
            found.append(
                {
                    one: value
                    for one, value in fields.items()
                    if one not in ("id", "position", "queue")
                }
            )
    leases = await queue.claim(limit=100)
    found += [(one.policy, one.headers, one.payload, one.priority) for one in leases]
    return found


# --- the same as the general way ----------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"plain", {"to": "ann"}], ids=["bytes", "packed"])
async def test_every_option(inner, both, seen, subtests, payload):
    for n, (what, options) in enumerate(OPTIONS.items()):
        with subtests.test(what):
            await check_same(inner, both, seen, payload, options, n)


async def check_same(inner, both, seen, payload, options, n):
    found = []
    for engine, way in zip(both, ("short", "general"), strict=True):
        name = f"{way}-{n}"
        queue = engine.queue(name, max_attempts=3, retention=77, tenant="t")
        outcomes = [await tried(queue.enqueue(payload, **options)) for _ in range(2)]
        sent = kinds(seen)
        seen.clear()
        assert sent == ["EnqueueWith" if way == "short" else "Call"] * 2
        found.append((outcomes, await state(inner, inner.queue(name, tenant="t"))))
        seen.clear()
    assert str(found[0]).replace("short", "general") == str(found[1])


async def test_every_error(inner, both, subtests):
    for what, wrong in WRONG.items():
        with subtests.test(what):
            options = {"payload": b"x"} | wrong
            short, general = [await tried(one.queue("mail").enqueue(**options)) for one in both]
            assert short == general
            assert issubclass(short[0], lodeq.UsageError)
    assert (await inner.queue("mail").stats()).ready == 0


async def tried_many(call):
    """The same of many tasks."""

    def flags(one):
        return one and (one.duplicate, one.replaced is not None)

    try:
        receipts = await call
    except lodeq.LodeqError as error:
        said = ID.sub("ID", str(error))
        return type(error), said, getattr(error, "index", None), [*map(flags, error.receipts)]
    return [*map(flags, receipts)]


@pytest.mark.parametrize("payload", [b"plain", {"to": "ann"}], ids=["bytes", "packed"])
async def test_every_option_of_many(inner, both, seen, subtests, payload):
    for n, (what, options) in enumerate(OPTIONS.items()):
        with subtests.test(what):
            await check_many(inner, both, seen, n, [NewTask(payload, **options)] * 2)


async def check_many(inner, both, seen, n, same):
    tasks = [NewTask(b"first"), *same, NewTask({"a": 1}), NewTask(b"last", dedup_key="last")]
    found = []
    for engine, way in zip(both, ("short", "general"), strict=True):
        name = f"{way}-{n}"
        queue = engine.queue(name, max_attempts=3, retention=77, tenant="t")
        outcomes = [await tried_many(queue.enqueue_many(tasks)) for _ in range(2)]
        sent = kinds(seen)
        assert sent == ["EnqueueManyWith" if way == "short" else "Call"] * 2
        found.append((outcomes, await state(inner, inner.queue(name, tenant="t"))))
        seen.clear()
    assert str(found[0]).replace("short", "general") == str(found[1])


async def test_every_error_of_many(inner, both, subtests):
    for what, wrong in WRONG.items():
        with subtests.test(what):
            options = {"payload": b"x"} | wrong
            tasks = [NewTask(b"x", dedup_key="k"), NewTask(**options), NewTask(b"x", priority=7)]
            short, general = [
                await tried_many(one.queue("mail").enqueue_many(tasks)) for one in both
            ]
            assert short == general
            assert issubclass(short[0], lodeq.UsageError)
            assert short[2:] == (1, [None] * 3)
    assert (await inner.queue("mail").stats()).ready == 0


async def test_many_receipts_come_in_the_order_of_the_tasks(inner, both, seen):
    short, _ = both
    queue = short.queue("mail")
    tasks = [NewTask(n, dedup_key=f"k-{n % 200}") for n in range(400)]
    receipts = await queue.enqueue_many(tasks)  # more than a turn of the server takes
    assert [one.duplicate for one in receipts] == [False] * 200 + [True] * 200
    assert [one.id for one in receipts[200:]] == [one.id for one in receipts[:200]]
    assert [(await short.get(one.id)).payload for one in receipts[:200:20]] == [*range(0, 200, 20)]
    fresh = [NewTask(n, dedup_key=f"n-{n}") for n in range(300)]
    assert await queue.enqueue_many(fresh[:0]) == []
    other = await queue.enqueue_many(fresh)
    assert [(await short.get(one.id)).payload for one in other[::30]] == [*range(0, 300, 30)]
    replaced = await queue.enqueue_many([NewTask(b"x", dedup_key="n-7", on_conflict="replace")])
    assert replaced[0].replaced == other[7].id
    assert set(kinds(seen)) - {"Call"} == {"EnqueueManyWith"}
    assert (await inner.queue("mail").stats()).ready == 500


async def test_a_duplicate_is_told_by_its_holder(inner, both):
    short, _ = both
    queue = short.queue("mail")
    first = await queue.enqueue(b"x", dedup_key="k")
    assert (first.duplicate, first.replaced) == (False, None)
    assert await queue.enqueue(b"y", dedup_key="k") == lodeq.Receipt(first.id, True, None)
    assert await queue.enqueue(b"y", dedup_key="k", delay=5) == lodeq.Receipt(first.id, True, None)
    with pytest.raises(lodeq.DuplicateTaskError) as raised:
        await queue.enqueue(b"y", dedup_key="k", on_conflict="raise")
    assert raised.value.task_id == first.id
    other = await queue.enqueue(b"z", dedup_key="k", on_conflict="replace")
    assert (other.duplicate, other.replaced) == (False, first.id)
    (lease,) = await queue.claim()
    assert (lease.task_id, lease.payload) == (other.id, b"z")
    with pytest.raises(lodeq.DuplicateTaskError):
        await queue.enqueue(b"y", dedup_key="k", on_conflict="replace")
    assert type(first.id) is type(other.replaced) is lodeq.TaskId


async def test_what_goes_as_a_call(both, seen):
    short, _ = both
    queue = short.queue("mail")
    task = await queue.enqueue(b"x", priority=1)
    await queue.enqueue(b"x", priority=1, durable=True)
    await queue.enqueue(b"x", after=[task.id])
    await queue.enqueue(b"x" * (2 << 20), priority=1)
    assert kinds(seen) == ["EnqueueWith", "Call", "Call", "Call"]
    seen.clear()
    keyed = NewTask(b"x", dedup_key="k")
    await queue.enqueue_many([keyed, NewTask(b"x"), NewTask({"x": 1})])
    await queue.enqueue_many([NewTask(b"x"), NewTask({"x": 1})])
    assert kinds(seen) == ["EnqueueManyWith"] * 2
    seen.clear()
    for other in (
        NewTask(b"x", after=[task.id]),
        NewTask(b"x", queue="other"),
        NewTask(b"x", tenant="other"),
        NewTask(b"x" * (2 << 20)),
    ):
        await queue.enqueue_many([keyed, other])
    await queue.enqueue_many([keyed], durable=True)
    await queue.enqueue_many([keyed], atomic=True)
    assert kinds(seen) == ["Call"] * 7  # one is too large for the others
    seen.clear()
    await queue.enqueue_many([NewTask(b"x", headers={"x": "y" * 10_000})] * 30)
    assert kinds(seen) == ["Call"]


async def test_queues_without_faces_and_with_codecs(inner, both):
    class Upper:
        def encode(self, value):
            return value.upper().encode()

        def decode(self, data):
            return data.decode().lower()

    found = []
    for engine in both:
        queue = engine.queue("mail", faces=False, codec=Upper())
        receipt = await queue.enqueue("text", function="f", labels={"a": "b"}, priority=3)
        task = await engine.get(receipt.id)
        found.append((task.function, dict(task.labels), task.payload, task.priority))
    assert found == [("", {}, "text", 3)] * 2


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_clients_of_other_kinds(anyio_backend, seen):
    """One on trio, and one that blocks; their server is in another thread."""
    from anyio.from_thread import start_blocking_portal

    async def script(url):
        async with lodeq.connect(url) as engine:
            queue = engine.queue("mail")
            await queue.enqueue(b"opens the link")
            one = await queue.enqueue(b"x", dedup_key="k", priority=9)
            assert await queue.enqueue(b"x", dedup_key="k") == lodeq.Receipt(one.id, True)
            assert (await queue.claim_one()).task_id == one.id

    def blocking(url):
        with lodeq.sync.connect(url) as engine:
            queue = engine.queue("mail")
            queue.enqueue(b"opens the link")
            one = queue.enqueue(b"x", dedup_key="b", priority=9)
            assert queue.enqueue(b"x", dedup_key="b") == lodeq.Receipt(one.id, True)
            assert queue.claim_one().task_id == one.id

    def serve(path):
        opening = lodeq.testing.open()
        with start_blocking_portal() as portal:
            inner = portal.call(opening.__aenter__)
            with portal.wrap_async_context_manager(serving(inner, path=path)) as url:
                blocking(url)
                anyio.from_thread.run(script, url)
            portal.call(opening.__aexit__, None, None, None)

    with socket_path() as path:
        await anyio.to_thread.run_sync(serve, path)
    assert kinds(seen).count("EnqueueWith") == 4


# --- what clients in other languages may send ---------------------------------------------------

ENTRIES = {
    "nothing": {},
    "null": {"delay": None, "headers": None, "dedup_key": None},
    "unknown": {"colour": "red"},
    "durable": {"durable": True},
    "a whole float": {"priority": 3.0},
    "a float": {"priority": 3.5},
    "text": {"delay": "1"},
    "below": {"delay": -1},
    "nan": {"delay": float("nan")},
    "a number": {"dedup_key": 5},
    "empty": {"dedup_key": b""},
    "a list": {"headers": []},
    "a packed list": {"headers": msgpack.ExtType(1, pack([]))},
    "packed headers": {"headers": msgpack.ExtType(1, pack({"a": 1}))},
    "large headers": {"headers": {"x": "y" * 17_000}},
    "many headers": {"headers": {"x": [[]] * 16_000}},
    "damaged headers": {"headers": msgpack.ExtType(1, b"\xc1")},
    "foreign headers": {"headers": msgpack.ExtType(5, b"")},
    "keys of headers": {"headers": {1: 2}},
    "text of a time": {"run_at": "2030-01-01T00:00:00+01:00"},
    "a time": {"run_at": msgpack.Timestamp(1_900_000_000, 999_999_999)},
    "no time": {"run_at": "tomorrow"},
    "a number as time": {"run_at": 5},
    "labels": {"labels": {"a": 1}},
    "retry": {"retry": {"kind": "fixed", "base": 1}},
    "no retry": {"retry": {"kind": "never"}},
    "retry of text": {"retry": "fixed"},
    "conflict": {"on_conflict": 5},
    "base64": {"dedup_key_base64": b"raw"},
    "both": {"dedup_key": "k", "dedup_key_base64": b"raw"},
    "attempts": {"max_attempts": 70_000},
}


async def test_entries_are_read_as_documents_are(inner, subtests):
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "short"})])
            for n, (what, options) in enumerate(ENTRIES.items()):
                with subtests.test(what):
                    await check_entry(wire, 2 * n + 1, options)
    short, general = [await state(inner, inner.queue(one)) for one in ("short", "general")]
    assert short == general


async def check_entry(wire, id, options):
    task = {"payload": b"x"} | options
    document = pack({"queue": "general", "tasks": [task]})
    wire.send([10, id, 0, 0, b"x", pack(options)])
    wire.send([8, id + 1, "POST", "/tasks", {}, document, None])
    (status, answer), (other_status, other) = await wire.answer(id), await wire.answer(id + 1)
    if status == 2:
        assert other_status == 2
        said = other["detail"].removeprefix("tasks[0].").replace("tasks[0] has", "the options has")
        assert answer["detail"] in (said, other["detail"])
        drop = "detail", "receipts"
        assert [one for one in answer.items() if one[0] not in drop] == [
            one for one in other.items() if one[0] not in drop
        ]
    else:
        assert (status, other_status, len(answer)) == (0, 0, 16)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x80\x80",
        b"\x81",
        pack(None),
        pack([]),
        pack(b"x"),
        pack({1: 2}),
        pack({"queue": "other"}),
        pack({"tenant": "other"}),
        pack({"payload": b"y"}),
        pack({"after": []}),
        pack({"on_failure": "run"}),
        pack({"function": "x"})[:-1] + b"\xff",
        b"\x81\xa7headers" + b"\x91" * 9000,
        b"\x81\xa7headers" + b"\x91" * 30_000,
        b"\xdf\xff\xff\xff\xff",
        pack({"headers": {"x": [[]] * 60_000}}),
        pack({"headers": {"x": b"x" * (2 << 20)}}),
    ],
    ids=lambda data: data[:9].hex() + str(len(data)),
)
async def test_options_that_are_none_are_an_error_of_their_request(inner, packed):
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "mail"})], [10, 1, 0, 0, b"x", packed])
            wire.send([10, 2, 0, 0, b"x", b"\x80"])
            status, problem = await wire.answer(1)
            assert (status, problem["status"] in (413, 422)) == (2, True), problem
            assert (await wire.answer(2))[0] == 0
    stats = await inner.stats()
    assert (stats.ready, (await inner.queue("mail").stats()).ready) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "payload", "ok"),
    [
        (0, b"\xc1", True),
        (1, b"\xc1", False),
        (1, b"\xc0", True),
        (2, b"\xc1", True),
        (1, pack([0] * 30_000), True),
        (1, pack([0] * 30_000)[:-1], False),
    ],
)
async def test_payloads_are_checked_as_without_options(inner, kind, payload, ok):
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "mail"})], [10, 1, 0, kind, payload, b"\x80"])
            status, answer = await wire.answer(1)
            assert status == (0 if ok else 2), answer
    assert (await inner.queue("mail").stats()).ready == int(ok)


async def test_entries_of_many_are_read_as_documents_are(inner, subtests):
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "short"})])
            for n, (what, options) in enumerate(ENTRIES.items()):
                with subtests.test(what):
                    await check_entry_of_many(wire, 2 * n + 1, options)
    short, general = [await state(inner, inner.queue(one)) for one in ("short", "general")]
    assert short == general


async def check_entry_of_many(wire, id, options):
    document = pack({"queue": "general", "tasks": [{"payload": b"y"}, {"payload": b"x"} | options]})
    wire.send([11, id, 0, [[0, b"y", None], [0, b"x", pack(options)]]])
    wire.send([8, id + 1, "POST", "/tasks", {}, document, None])
    (status, answer), (other_status, other) = await wire.answer(id), await wire.answer(id + 1)
    assert status == other_status
    if status == 2:
        said = other["detail"].removeprefix("tasks[1]: ").removeprefix("tasks[1].")
        assert answer["detail"] == "tasks[1]: " + said.replace("tasks[1] has", "the options has")
        assert (answer["type"], answer["status"]) == (other["type"], other["status"])
    else:
        assert len(answer) == 32


@pytest.mark.parametrize(
    ("tasks", "status", "said"),
    [
        ([[0, b"x", b"\x80"], [0, b"x", b"\xc1"]], 422, "tasks[1]: "),
        ([[0, b"x", b"\x80"], [0, b"x", pack({"queue": "q"})]], 422, "tasks[1]: "),
        ([[0, b"x", None], [1, b"\xc1", None]], 422, "tasks[1]: payload is not msgpack"),
        ([[1, pack([0] * 30_000), None], [1, pack([0] * 30_000)[:-1], None]], 422, "tasks[1]: "),
        (
            [[0, b"x", b"\x80"], [0, b"x", pack({"headers": {"x": [[]] * 99_999}})]],
            413,
            "tasks[1]: ",
        ),
        ([[0, b"x", pack({"headers": {"x": b"y" * 9000}})]] * 30, 413, "the limit is 262144"),
        ([[0, b"x", b"\x80"]] * 300 + [[0, b"x", pack({"delay": -1})]], 422, "tasks[300]: "),
    ],
    ids=["damaged", "queue", "payload", "large payload", "parts", "bytes", "many"],
)
async def test_one_that_is_wrong_refuses_all(inner, tasks, status, said):
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "mail"})], [11, 1, 0, tasks])
            wire.send([11, 2, 0, [[0, b"x", pack({"dedup_key": "k"})]] * 2])
            found, problem = await wire.answer(1)
            assert (found, problem["status"], said in problem["detail"]) == (2, status, True), (
                problem
            )
            found, (first, second) = await wire.answer(2)
            assert (found, second) == (0, [first, True, None])
    assert (await inner.queue("mail").stats()).ready == 1


async def test_large_options_of_many(inner):
    large = pack({"headers": {"x": "y" * 15_000}, "preview": "p" * 2000})
    tasks = [[0, b"a", large], [0, b"b", None], [1, pack([0] * 30_000), b"\x80"]]
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "mail"})], *([11, n, 0, tasks] for n in (1, 2, 3)))
            for n in (1, 2, 3):
                status, answer = await wire.answer(n)
                assert (status, len(answer)) == (0, 48)
    leases = await inner.queue("mail").claim(limit=9)
    assert [len(one.payload) for one in leases] == [1, 1, 30_000] * 3
    assert leases[0].headers == {"x": "y" * 15_000}


async def test_what_was_enqueued_of_many_before_an_error_is_named(inner, monkeypatch):
    real = operations.EngineQueue.enqueue_many

    async def partly(self, tasks):
        receipts = await real(self, tasks[:1])
        error = lodeq.BusyError("later")
        error.receipts = [*receipts, None]
        raise error

    monkeypatch.setattr(operations.EngineQueue, "enqueue_many", partly)
    with socket_path() as path:
        async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
            queue = engine.queue("mail")
            await queue.stats()  # opens the link
            with pytest.raises(lodeq.BusyError) as caught:
                await queue.enqueue_many([NewTask(n, max_attempts=9) for n in range(2)])
            first, second = caught.value.receipts
            assert ((await engine.get(first.id)).payload, second) == (0, None)


async def test_those_whose_commit_is_awaited_hold_few_objects(inner, monkeypatch):
    real, begun, over = operations.EngineQueue.enqueue_many, [], anyio.Event()

    async def stalled(self, tasks):
        begun.append(tasks)
        await over.wait()
        return await real(self, tasks)

    monkeypatch.setattr(operations.EngineQueue, "enqueue_many", stalled)
    large = pack({"shard_key": "s", "headers": {"x": [{}] * 9000}})
    small = pack({"shard_key": "s"})
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send([0, 0, pack({"queue": "mail"})])
            for n in range(1, 41):
                wire.send([10, n, 0, 0, b"x", large])
            wire.send(*([10, n, 0, 0, b"x", small] for n in range(41, 81)), [1, 81, 9, 0, b""])
            assert (await wire.answer(81))[0] == 2
            await anyio.wait_all_tasks_blocked()
            sizes = [len((task.headers or {}).get("x", ())) for (task,) in begun]
            over.set()
            for n in range(1, 81):
                assert (await wire.answer(n))[0] == 0
    assert sorted(sizes) == [0] * 40 + [9000] * CALLS_MAX
    assert (await inner.queue("mail").stats()).ready == 80


async def test_a_queue_that_is_none(inner):
    with socket_path() as path:
        async with serving(inner, path=path) as url, wired(url) as wire:
            wire.send(
                [0, 0, pack({"queue": "BAD"})], [0, 1, pack({"queue": "q", "all_tenants": True})]
            )
            wire.send(*([10, n, n - 1, 0, b"x", b"\x80"] for n in (1, 2, 3)))
            for n, said in ((1, "BAD"), (2, "ALL_TENANTS"), (3, "no queue has the handle 2")):
                status, problem = await wire.answer(n)
                assert (status, problem["status"]) == (2, 422)
                assert said in problem["detail"]
