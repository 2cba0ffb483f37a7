"""Receipts of calls: they fetch the result, typed, with and without an event loop."""

import copy
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq import Receipt, UsageError
from lodeq.testing import worker
from lodeq.worker import App, JobReceipt

pytestmark = pytest.mark.anyio


@dataclass
class Report:
    day: date
    lines: int = 0


@pytest.fixture
def app():
    return App(name="test")


@pytest.fixture
def report(app):
    @app.task("reports")
    async def report(day: date, lines: int = 0) -> Report:
        return Report(day, lines)

    return report


DAY = date(2026, 1, 2)


async def test_it_fetches_its_typed_result(app, report):
    async with worker(app):
        receipt = await report.enqueue(DAY, 3)
        assert await receipt.result() is None
        await app.drain()
        result = await receipt.result(wait=5)
        assert (result.status, result.value) == ("completed", Report(DAY, 3))


async def test_it_waits_for_the_end(app, report):
    async with worker(app):
        receipt, found = await report.enqueue(DAY), []

        async def fetch():
            found.append(await receipt.result(wait=60))

        async with anyio.create_task_group() as group:
            group.start_soon(fetch)
            await app.drain()
        assert found[0].value == Report(DAY)


async def test_a_result_of_another_kind_fails_where_it_is_read(app, report):
    async with worker(app) as bench:
        receipt = await report.enqueue(DAY)
        (lease,) = await bench.engine.queue("reports").claim()
        await lease.complete({"day": "soon"})
        result = await receipt.result()
        assert result.status == "completed"
        with pytest.raises(UsageError, match=r"report\(\): result.day: expected date, got str"):
            _ = result.value


async def test_one_that_died_has_its_reason(app, report):
    async with worker(app) as bench:
        receipt = await report.enqueue(DAY)
        (lease,) = await bench.engine.queue("reports").claim()
        await lease.bury("no paper")
        result = await receipt.result()
        assert (result.status, result.value, result.error) == ("dead", None, "no paper")


async def test_it_is_a_receipt(app, report):
    async with worker(app):
        receipt = await report.enqueue(DAY)
        plain = Receipt(receipt.id)
        assert isinstance(receipt, Receipt)
        assert receipt == plain
        assert hash(receipt) == hash(plain)
        assert repr(receipt).startswith("JobReceipt(id=")
        other = copy.copy(receipt)  # by the same method as pickling
        assert (type(other), other) == (Receipt, plain)
        many = await report.enqueue_many([report.new(DAY, 1), report.new(DAY, 2)])
        await app.drain()
        assert [(await one.result()).value.lines for one in many] == [1, 2]


async def test_threads_beside_the_loop_block(app, report):
    def call():
        receipt = report.enqueue_sync(DAY, 4)
        assert isinstance(receipt, JobReceipt)
        assert receipt.result_sync() is None
        return receipt

    async with worker(app):
        receipt = await run_sync(call)
        await app.drain()
        assert (await run_sync(receipt.result_sync)).value == Report(DAY, 4)
        with pytest.raises(UsageError, match="an event loop runs in this thread"):
            report.enqueue_sync(DAY)
        with pytest.raises(UsageError, match="an event loop runs in this thread"):
            receipt.result_sync()


async def test_a_served_store_is_connected_by_the_first_blocking_call(app, report):
    def calls(address):
        there = App(address)
        make = there.task("reports", name="report")(report.function)
        receipt = make.enqueue_sync(DAY, 5)
        assert there.sync_engine() is there.sync_engine()
        found = receipt.result_sync(wait=30)
        there.sync_engine().close()
        with App(address) as other:
            again = other.task("reports", name="report")(report.function)
            assert again.enqueue_sync(DAY).id != receipt.id
        return found

    with socket_path() as path:
        async with (
            lodeq.testing.open() as engine,
            serving(engine, path=path) as address,
            app.use(engine),
            app.work(),
        ):
            result = await run_sync(calls, address)
    assert result.value == Report(DAY, 5)


@pytest.mark.slow
async def test_a_served_receipt_waits_as_well(report):
    there = App()
    make = there.task("reports", name="report")(report.function)
    with socket_path() as path:
        async with (
            lodeq.testing.open() as engine,
            serving(engine, path=path) as address,
            there.use(lodeq.connect(address)),
            there.work(),
        ):
            receipt = await make.enqueue(DAY, 6)
            assert (await receipt.result(wait=30)).value == Report(DAY, 6)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_the_loop_of_trio_is_seen_as_well(app, report):
    async with worker(app):
        with pytest.raises(UsageError, match="an event loop runs in this thread"):
            report.enqueue_sync(DAY)


def test_without_any_loop_a_folder_is_opened(tmp_path):
    app = App(tmp_path / "store", durability="fsync")

    @app.task("sums")
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(UsageError, match="use it inside 'with app:'"):
        add.enqueue_sync(1, 2)
    with app:
        receipt = add.options(dedup_key="x").enqueue_sync(1, 2)
        assert add.options(dedup_key="x").enqueue_sync(3, 4).duplicate
        with pytest.raises(UsageError, match="open already"), app:
            pass
        engine = app.sync_engine()
        (lease,) = engine.queue("sums").claim()
        lease.complete(3)
        assert receipt.result_sync(wait=5).value == 3
    with pytest.raises(UsageError, match="no open store"):
        receipt.result_sync()
    with pytest.raises(lodeq.ClosedError):
        engine.queue("sums").stats()


def test_a_loop_cannot_be_blocked_by_with(tmp_path):
    async def main():
        with App(tmp_path / "store"):
            pass

    with pytest.raises(UsageError, match="an event loop runs in this thread"):
        anyio.run(main)


def test_what_is_no_address_and_no_folder_cannot_be_opened_so():
    with pytest.raises(UsageError, match="takes a folder or an address"), App(lambda: None):
        pass


NO_VARIANT = (
    'error: No overload variant of "enqueue" of "{}" matches argument type "str"  [call-overload]'
)
WRONG = [
    NO_VARIANT.format("TaskFunction"),
    NO_VARIANT.format("BoundTask"),
    (
        'error: Argument 1 to "new" of "TaskFunction" has incompatible type "str"; expected "int"  '
        "[arg-type]"
    ),
    'error: Missing positional argument "b" in call to "enqueue" of "TaskFunction"  [call-arg]',
    (
        'error: Argument "b" to "enqueue_sync" of "TaskFunction" has incompatible type "str"; '
        'expected "int"  [arg-type]'
    ),
    'error: "Report" has no attribute "line"; maybe "lines"?  [attr-defined]',
    (
        'error: Argument "unique_by" to "task" of "App" has incompatible type "int"; expected '
        '"str | Sequence[str] | Callable[[Any], Any] | None"  [arg-type]'
    ),
]
TYPED = """
from dataclasses import dataclass
from lodeq import Result
from lodeq.worker import App, JobReceipt

app = App()

@dataclass
class Report:
    lines: int

@app.task("reports")
async def report(lines: int) -> Report:
    return Report(lines)

@app.task("sums")
def add(a: int, b: int) -> int:
    return a + b

async def main() -> None:
    receipt = await report.enqueue(3)
    reveal_type(await receipt.result(wait=1))
    reveal_type(await (await add.enqueue(1, 2)).result())
    reveal_type(add.enqueue_sync(1, 2).result_sync())
    reveal_type((await report.enqueue_many([report.new(1)]))[0].result_sync())
    await report.enqueue("x")
    await report.options(priority=7).enqueue("x")
    report.new("x")
    await add.enqueue(1)
    add.enqueue_sync(1, b="x")
    found = await receipt.result()
    if found is not None:
        found.value.line

@app.task("odd", unique_by=lambda a: a.n, middleware=[])
async def odd(n: int) -> None: ...

@app.task("wrong", unique_by=3)
async def wrong(n: int) -> None: ...

def old(result: Result) -> None:
    reveal_type(result.value)
"""


@pytest.mark.slow
def test_type_checkers_see_the_type_of_the_result(tmp_path):
    page = tmp_path / "page.py"
    page.write_text(TYPED)
    root = Path(lodeq.__file__).resolve().parent
    command = [sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", page]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    said = [line.split(": ", 1)[1] for line in out.splitlines() if "page.py" in line]
    said = [line for line in said if "Revealed" in line or line.startswith("error")]
    result = 'note: Revealed type is "lodeq.repository.model.values.Result[{}] | None"'
    expected = [
        result.format("page.Report"),
        result.format("int"),
        result.format("int"),
        result.format("page.Report"),
        *WRONG,
        'note: Revealed type is "Any"',
    ]
    assert said == expected


@pytest.mark.slow
def test_editors_see_it_too(tmp_path):
    """Pyright, which many of them use, calls the result of a coroutine function by another name."""
    pyright = [sys.executable, "-m", "pyright"]
    tried = subprocess.run([*pyright, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"pyright cannot be fetched: {tried.stderr[-200:]}")
    (tmp_path / "page.py").write_text(TYPED)
    source = tmp_path / "source"  # a checkout may have another name
    source.mkdir()
    (source / "lodeq").symlink_to(Path(lodeq.__file__).resolve().parent)
    settings = {"include": ["page.py"], "extraPaths": [str(source)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    told = subprocess.run(
        [*pyright, "--outputjson", "--pythonpath", sys.executable, "--project", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(told.stdout)["generalDiagnostics"]
    found.sort(key=lambda one: one["range"]["start"]["line"])
    lines = TYPED.splitlines()
    errors = [one["range"]["start"]["line"] for one in found if one["severity"] == "error"]
    assert [lines[at].strip() for at in dict.fromkeys(errors)] == [  # some have two
        'await report.enqueue("x")',
        'await report.options(priority=7).enqueue("x")',
        'report.new("x")',
        "await add.enqueue(1)",
        'add.enqueue_sync(1, b="x")',
        "found.value.line",
        '@app.task("wrong", unique_by=3)',
    ]
    shown = [one["message"] for one in found if one["severity"] == "information"]
    assert [text.rpartition(" is ")[2] for text in shown] == [
        '"Result[Report] | None"',
        '"Result[int] | None"',
        '"Result[int] | None"',
        '"Result[Report] | None"',
        '"Any"',
    ]
