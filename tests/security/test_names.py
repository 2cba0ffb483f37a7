"""Names are on an allow-list at every entry, and nothing a caller gives can forge a line of a log.

The table is compared with the public signatures: an entry that takes a name and is not in it fails.
"""

import ast
import inspect
import logging
import re

import pytest
from support_behaviour import StillClock, in_memory, unchanged
from support_sources import modules_in, name_of, nodes_of

import lodeq
from lodeq import InvalidNameError, NewTask, TaskFilter, UsageError

pytestmark = pytest.mark.anyio

BAD = [
    "",
    ".",
    "..",
    "../etc/passwd",
    "a/b",
    "a\\b",
    "/a",
    "a\0b",
    "a\nb",
    "a\r\nERROR forged",
    "a b",
    "A",
    "ä",
    "a\u202eb",
    "\ud800",
    "-a",
    "_a",
    ".hidden",
    "a" * 65,
    "a" * 100_000,
    "%s",
    "${x}",
    "*",
    b"a",
    5,
    True,
    ("a",),
]
UUID = "00000000-0000-0000-0000-000000000001"
ids = [ascii(name)[:24] for name in BAD]

SEARCHES = {
    "act": lambda e, tasks: e.act("delete", tasks),
    "count": lambda e, tasks: e.count(tasks),
    "find": lambda e, tasks: e.find(tasks),
    "find_all": lambda e, tasks: anext(e.find_all(tasks)),
}
# By entry: the call with a bad name in the place of each parameter that is one.
ENTRIES = {
    ("Engine.queue", "name"): lambda e, q, x, bad: e.queue(bad),
    ("Engine.queue", "tenant"): lambda e, q, x, bad: e.queue("a", tenant=bad),
    ("Engine.claim", "queues"): lambda e, q, x, bad: e.claim(["mail", bad]),
    ("Engine.enqueue_many", "queue"): lambda e, q, x, bad: e.enqueue_many(
        [NewTask(b"", queue="a"), NewTask(b"", queue=bad)]
    ),
    ("Engine.enqueue_many", "tenant"): lambda e, q, x, bad: e.enqueue_many(
        [NewTask(b"", queue="a"), NewTask(b"", queue="a", tenant=bad)]
    ),
    ("Queue.enqueue_many", "queue"): lambda e, q, x, bad: q.enqueue_many(
        [NewTask(b""), NewTask(b"", queue=bad)]
    ),
    ("Queue.enqueue_many", "tenant"): lambda e, q, x, bad: q.enqueue_many(
        [NewTask(b""), NewTask(b"", tenant=bad)]
    ),
    ("Engine.add_members", "queue"): lambda e, q, x, bad: e.add_members(
        UUID, [NewTask(b"", queue=bad)]
    ),
    ("Engine.add_members", "tenant"): lambda e, q, x, bad: e.add_members(
        UUID, [NewTask(b"", queue="a", tenant=bad)]
    ),
    ("Engine.configure", "queue"): lambda e, q, x, bad: e.configure(bad, concurrency=1),
    ("Engine.settings", "queue"): lambda e, q, x, bad: e.settings(bad),
    ("Engine.enqueue_function", "queue"): lambda e, q, x, bad: e.enqueue_function(bad, "send"),
    ("Engine.enqueue_function", "tenant"): lambda e, q, x, bad: e.enqueue_function(
        "a", "send", tenant=bad
    ),
    ("Engine.functions", "queue"): lambda e, q, x, bad: e.functions(bad),
    ("Engine.forget_function", "queue"): lambda e, q, x, bad: e.forget_function(bad, "send"),
    **{
        (f"Engine.{what}", field): lambda e, q, x, bad, what=what, field=field: SEARCHES[what](
            e, TaskFilter(**{field: bad})
        )
        for what in ("act", "count", "find", "find_all")
        for field in ("queue", "tenant")
    },
    ("Engine.history", "queue"): lambda e, q, x, bad: e.history(bad),
    ("Engine.history", "tenant"): lambda e, q, x, bad: e.history("a", tenant=bad),
    ("Lease.complete", "queue"): lambda e, q, x, bad: x.complete(then=[NewTask(b"", queue=bad)]),
    ("Lease.complete", "tenant"): lambda e, q, x, bad: x.complete(
        then=[NewTask(b"", queue="a", tenant=bad)]
    ),
}
# A word of a short list, and what people call a function or a workflow: any text, never a path.
OTHER_NAMES = {
    ("Engine.act", "name"),
    ("Engine.enqueue_function", "name"),
    ("Engine.forget_function", "name"),
    ("Engine.workflow", "name"),
}
NAMES = {"name", "queue", "queues", "tenant"}
HOLDS_NEW_TASKS = {"tasks", "then"}


def test_the_table_has_every_entry():
    found = set()
    for kind in (lodeq.Engine, lodeq.Queue, lodeq.Lease, lodeq.LeaseStream):
        for name, function in inspect.getmembers(kind, callable):
            if name.startswith("_"):
                continue
            parameters = set(inspect.signature(function).parameters)
            found |= {(f"{kind.__name__}.{name}", p) for p in parameters & NAMES}
            if parameters & HOLDS_NEW_TASKS:
                found |= {(f"{kind.__name__}.{name}", field) for field in ("queue", "tenant")}
    assert found == set(ENTRIES) | OTHER_NAMES


@pytest.mark.parametrize("bad", BAD, ids=ids)
async def test_a_bad_name_is_refused_in_one_short_line_and_leaves_nothing(caplog, bad):
    caplog.set_level(logging.DEBUG)
    async with in_memory(StillClock(), shards=2) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        lease = await queue.claim_one()
        async with unchanged(engine):
            for entry, call in ENTRIES.items():
                if entry[1] == "tenant" and bad == "":
                    continue  # the default tenant
                with pytest.raises(UsageError) as caught:
                    await call(engine, queue, lease, bad)
                text = str(caught.value)
                assert len(text) < 300, entry
                assert text.isprintable(), entry
                if isinstance(bad, str):
                    assert isinstance(caught.value, InvalidNameError), entry
    assert "\n" not in "".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("bad", [name for name in BAD if isinstance(name, str)][:20])
async def test_no_name_becomes_a_path(tmp_path, monkeypatch, bad):
    monkeypatch.chdir(tmp_path)
    async with lodeq.open(tmp_path / "store") as engine:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UsageError):
            engine.queue(bad or "..")
        queue = engine.queue("a.b", tenant="c")
        await queue.enqueue(b"x", dedup_key=bad.encode("utf-8", "replace")[:99] or b"/")
        (lease,) = await queue.claim(worker=bad[:60])
        await lease.nack(reason=bad[:1000])
        assert sorted(tmp_path.rglob("*")) == before


def test_what_is_logged_is_logged_by_repr():
    """``%s`` would let a newline in a path or an error begin a line of its own."""
    calls = [
        (name_of(path), node)
        for path in modules_in("engine", "coalescer", "repository", "testing")
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
    ]
    assert len(calls) >= 3
    for name, node in calls:
        text = ast.literal_eval(node.args[0])  # one text, with nothing built into it
        # Numbers have no newlines.
        plain = re.findall(r"%(?:[rdg]|\.\df)", text)
        assert text.count("%") == len(plain), (name, node.lineno)
        assert len(node.args) - 1 == text.count("%"), (name, node.lineno)
