"""Calls by function, and what is listed of functions, workers and cron."""

import asyncio
import dataclasses
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from support_cli import first, make, objects, run
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq import FunctionParameter, PublishedFunction

pytestmark = pytest.mark.slow

SEND = PublishedFunction(
    "mail",
    "send",
    max_attempts=3,
    priority=7,
    retry=lodeq.Backoff("fixed", base=5.0),
    parameters=(
        FunctionParameter("to", "required", "to: str"),
        FunctionParameter("times", "optional", "times: int = 1"),
    ),
    doc="Send it.",
)
OTHER = PublishedFunction("sums", "add", parameters=(FunctionParameter("n"),))
ONLY = PublishedFunction("sums", "more", parameters=None)
PUT = PublishedFunction(
    "rows", "put", parameters=(FunctionParameter("rows", schema='["list","str"]'),)
)
TICK = PublishedFunction("cron", "sweep", parameters=(), cron="*/5 * * * *", tz="UTC")

APP = """
from lodeq.worker import App
app = App()
@app.task("mail", max_attempts=8)
async def send(to: str, code: str = "", n: int = 0): "Send it."
"""
TYPED_APP = """
from dataclasses import dataclass
from datetime import date
from lodeq.worker import App
app = App(redact=lambda text: text.replace("Ann", "***"))
@dataclass
class Order:
    customer: str
    due: date
    def __post_init__(self):
        if self.due.year < 2000: raise ValueError("too old")
@app.task("mail", retention=5)
async def bill(order: Order): ...
"""


@pytest.fixture
def bare(tmp_path):
    return make(tmp_path / "s", shards=2)


@pytest.fixture
def store(bare):
    publish(bare, SEND, OTHER, TICK, PUT)
    return bare


def publish(store, *functions):
    async def act():
        async with lodeq.open(store) as engine:
            await engine.publish_functions(functions)

    asyncio.run(act())


def of(store, task_id):
    return first("show", store, task_id)


def test_a_call_by_name_has_the_published_policy(store):
    task_id = first("enqueue", store, "mail", "send", "--arg", "to=a@example.org")["id"]
    task = of(store, task_id)
    assert task["payload"] == {"to": "a@example.org"}
    assert task["headers"] == {"lodeq.task": "send"}
    assert (task["max_attempts"], task["priority"]) == (3, 7)


def test_arguments_are_what_the_parameter_takes(store):
    call = ["enqueue", store, "mail", "send", "--arg", "to=5", "--arg", "times=5"]
    assert of(store, first(*call)["id"])["payload"] == {"to": "5", "times": 5}
    call = ["enqueue", store, "mail", "send", "--args", '{"to": "a"}', "--priority", 2]
    task = of(store, first(*call, "--max-attempts", 9, "--tenant", "acme", "--header", "x=1")["id"])
    assert (task["payload"], task["priority"], task["max_attempts"]) == ({"to": "a"}, 2, 9)
    assert (task["tenant"], task["headers"]) == ("acme", {"x": "1", "lodeq.task": "send"})
    out = run("enqueue", store, "mail", "send", "--args", "-", stdin='{"to": "b"}').stdout
    assert of(store, out.strip())["payload"] == {"to": "b"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["mail", "sent"],
            "no function 'sent' is published for queue 'mail'; queue 'mail' has send",
        ),
        (["mail", "send"], "send(to: str, times: int = 1) needs the argument 'to'"),
        (["mail", "send", "--arg", "tims=2"], "no parameter 'tims'; did you mean 'times'?"),
        (["mial", "send", "--arg", "to=a"], "queues with functions: cron, mail, rows, sums"),
        (["mail", '{"to": "a"}'], "runs functions, which cannot take this payload: send(to: str"),
        (["mail", "send", "--args", "[1]"], "--args takes a JSON object"),
        (
            ["mail", "send", "--args", "{to: a}"],
            "--args takes a JSON object, and '{to: a}' is not JSON (Expecting property name",
        ),
        (
            ["rows", "put", "--arg", "rows=[a, b]"],
            (
                "argument rows: '[a, b]' is not JSON (Expecting value at character 2): there "
                'strings and names have double quotes, as in ["a", "b"] or {"to": "a"}'
            ),
        ),
        (["rows", "put", "--arg", "rows=a,b"], "argument rows: 'a,b' is not JSON"),
        (["rows", "put", "--arg", 'rows=["a", 5]'], "argument rows[1]: expected str, got int 5"),
        (["mail", "send", "--arg", "to"], "like NAME=VALUE"),
        (["mail", "hello"], "--raw stores the payload as it is"),
    ],
)
def test_what_a_function_cannot_take_is_refused(store, args, says):
    assert says in run("enqueue", store, *args, code=2).stderr
    assert objects("ls", store) == []


@pytest.mark.parametrize(
    "args",
    [
        ["mail", "send"],
        ["mail", "send", "--arg", "tims=2"],
        ["mail", "sent", "--arg", "to=a"],  # with --arg, --raw is refused
        ["mail", '{"tims": 2}', "--parse"],
        ["mail", "--arg", "tims=2"],
    ],
)
def test_raw_is_no_advice_for_a_call(store, args):
    assert "--raw" not in run("enqueue", store, *args, code=2).stderr


def test_a_call_whose_queue_is_forgotten_names_the_queue(store):
    said = run("enqueue", store, "send", "--arg", "to=a", code=2).stderr
    assert "'send' is a function of queue mail" in said
    assert "lodeq enqueue STORE mail send" in said
    assert objects("ls", store) == []


@pytest.mark.parametrize("args", [["send"], ["send", "-"], ["send", "text"]])
def test_a_payload_for_a_queue_called_as_a_function_is_noted(store, args):
    """It may be meant: it is stored."""
    out = run("enqueue", store, *args, stdin="x")
    assert "note: 'send' is a function of queue mail" in out.stderr
    assert run("enqueue", store, "other", stdin="x").stderr == ""
    assert run("enqueue", store, "send", "--raw", stdin="x").stderr == ""


def test_arguments_without_a_function_say_so(store):
    said = run("enqueue", store, "mial", "--arg", "to=a", code=2).stderr
    assert "no function that takes them: queue 'mial' has none" in said
    assert "queues with functions: cron, mail, rows, sums" in said


def test_raw_stores_it_all_the_same(store):
    task_id = first("enqueue", store, "mail", '{"to": "a"}', "--raw", "--parse")["id"]
    task = of(store, task_id)
    assert (task["payload"], task["headers"], task["max_attempts"]) == ({"to": "a"}, {}, 5)
    assert "leave --raw" in run("enqueue", store, "mail", "--raw", "--arg", "a=1", code=2).stderr


def test_json_for_the_only_function_of_a_queue_is_a_call_of_it(store):
    call = ["enqueue", store, "mail", '{"to": "a"}', "--parse"]
    assert of(store, first(*call)["id"])["headers"] == {"lodeq.task": "send"}


def test_a_queue_without_functions_takes_payloads_and_says_how(bare):
    result = run("enqueue", bare, "mail", '{"to": "a"}')
    assert "stored as text: --parse keeps the value" in result.stderr
    assert "stored" not in run("enqueue", bare, "mail", "hello").stderr
    says = run("enqueue", bare, "mail", "send", "--arg", "to=a", code=2).stderr
    assert "none is: workers publish theirs when they start" in says


def test_an_app_says_what_there_is_without_a_registry(bare, tmp_path, monkeypatch):
    (tmp_path / "calls_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    call = ["enqueue", bare, "mail", "send", "--app", "calls_app:app", "--arg", "to=a"]
    task = of(bare, first(*call, "--arg", "code=007", "--arg", "n=7")["id"])
    assert task["payload"] == {"to": "a", "code": "007", "n": 7}
    assert task["max_attempts"] == 8
    assert "no parameter 'x'" in run(*call, "--arg", "x=1", code=2).stderr
    sys.modules.pop("calls_app", None)


@pytest.mark.parametrize("command", ["find", "history"])
def test_a_search_for_a_name_nobody_has_published_says_which_there_are(store, command):
    near = run(command, store, "--function", "SEN")
    assert near.stdout == ""
    assert "no worker has published 'SEN': did you mean" in near.stderr
    assert "'xyz'; functions here: " in run(command, store, "--function", "xyz").stderr


def test_with_its_app_a_call_is_what_the_function_makes(bare, tmp_path, monkeypatch):
    (tmp_path / "typed_app.py").write_text(TYPED_APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    call = ["enqueue", bare, "mail", "bill", "--app", "typed_app:app", "--arg"]
    task = of(bare, first(*call, 'order={"customer": "Ann", "due": "2026-12-24"}')["id"])
    assert task["payload"] == {"order": {"customer": "Ann", "due": "2026-12-24"}}
    assert (task["function"], task["preview"]) == (
        "bill",
        "order={'customer': '***', 'due': '2026-12-24'}",
    )
    for given, says in [
        ('{"customer": "Ann", "due": "1999-12-24"}', "argument order: Order refuses these fields"),
        ('{"customer": "Ann", "due": 5}', "argument order.due: expected date, got int 5"),
    ]:
        assert says in run(*call, f"order={given}", code=2).stderr
    sys.modules.pop("typed_app", None)


def test_functions_are_listed_and_forgotten(store):
    assert [one["name"] for one in objects("functions", store)] == ["sweep", "send", "put", "add"]
    (one,) = objects("functions", store, "mail")
    assert (one["name"], one["max_attempts"], one["doc"]) == ("send", 3, "Send it.")
    out = run("functions", store).stdout
    assert "send(to: str, times: int = 1)" in out
    assert "fixed 5" in out
    run("functions", store, "mail", "--forget", "send")
    assert objects("functions", store, "mail") == []
    assert "no function" in run("functions", store, "mail", "--forget", "send", code=2).stderr


def test_cron_functions_and_one_run_now(store):
    (one,) = objects("cron", store)
    assert (one["function"], one["cron"], one["next_at"]) == ("sweep", "*/5 * * * *", None)
    assert "no worker is live" in run("cron", store).stdout
    task_id = run("cron", "run", store, "sweep").stdout.strip()
    assert of(store, task_id)["headers"] == {"lodeq.task": "sweep"}
    assert "has sweep" in run("cron", "run", store, "sweap", "-q", "cron", code=2).stderr
    assert "expected" in run("cron", "go", store, "sweep", code=2).stderr


def test_workers_are_known_to_the_service(store):
    assert "workers are known to the service" in run("workers", store, code=2).stderr
    with socket_path() as path:
        asyncio.run(with_a_worker(store, path))


async def with_a_worker(store, path):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    tick = lodeq.CronTick("cron", "sweep", at, at, "some-id")
    runs = (lodeq.RunningTask("id", "send", "mail", seconds=3.0),)
    report = lodeq.WorkerReport("w1", ("mail",), "v1", 7, at, 2, 1, runs, (tick,))
    async with lodeq.open(store) as engine, serving(engine, path=path) as url:
        assert "w1" not in (await asyncio.to_thread(run, "workers", url, code=1)).stdout
        await engine.beat(report)
        (one,) = await asyncio.to_thread(objects, "workers", url)
        assert (one["name"], one["queues"], one["running_count"]) == ("w1", ["mail"], 1)
        out = (await asyncio.to_thread(run, "workers", url)).stdout
        assert "w1" in out
        assert "send 3" in out
        await engine.queue("mail").enqueue(b"x")
        assert (await asyncio.to_thread(run, "workers", url)).stderr == ""
        await engine.queue("reports").enqueue(b"x")
        said = (await asyncio.to_thread(run, "workers", url)).stderr
        assert said == "note: tasks wait, and no worker listed serves the queue: reports\n"
        await asyncio.to_thread(run, "workers", url, "--json")
        unknown = lodeq.UnknownFunction("mail", "gone", 3, 2, at)
        await engine.beat(dataclasses.replace(report, unknown=(unknown,)))
        said = (await asyncio.to_thread(run, "workers", url)).stderr
        assert "note: 2 stranded of 3 tasks of queue 'mail' for 'gone', which w1 cannot run" in said
        (one,) = await asyncio.to_thread(objects, "workers", url)
        assert (one["unknown"][0]["function"], one["unknown"][0]["stranded"]) == ("gone", 2)
        (one,) = await asyncio.to_thread(objects, "cron", url)
        assert (one["task_id"], one["next_at"][:10]) == ("some-id", "2026-01-01")
        assert one["upcoming"] == [one["next_at"]]
        later = tuple(datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(5))
        await engine.publish_functions([replace(TICK, tz="Europe/Berlin")])
        await engine.beat(replace(report, ticks=(replace(tick, upcoming=later),)))
        (one,) = await asyncio.to_thread(objects, "cron", url)
        assert [at[11:13] for at in one["upcoming"]] == ["00", "01", "02", "03", "04"]
        lines = (await asyncio.to_thread(run, "cron", url)).stdout.splitlines()
        assert len(lines) == 6
        assert "2026-01-01 04:00:00" in lines[5]
        assert "2026-01-01 05:00:00+0100" in lines[5]


def test_a_function_is_named_as_the_lists_name_it(store):
    """``find`` and ``history`` have ``--function``; whoever types it here means the same."""
    for words in (
        ["--function", "send", '{"to": "ann"}'],
        ["--function", "send", "--args", '{"to": "ann"}'],
        ["--function", "send", "--arg", "to=ann"],
    ):
        assert of(store, first("enqueue", store, "mail", *words)["id"])["payload"] == {"to": "ann"}
    run("enqueue", store, "cron", "--function", "sweep")
    for words, code, text in [
        (["--function", "sent", "{}"], 2, "no function 'sent'"),
        (["--function", "send", "{}", "--raw"], 2, "leave --raw, --lines out"),
        (["--function", "send", "{}", "--args", "{}"], 2, "leave --args out"),
        (["--function", "send", "ann"], 2, "takes a JSON object"),
    ]:
        assert text in run("enqueue", store, "mail", *words, code=code).stderr
