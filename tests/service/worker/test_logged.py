"""Every log record of a worker carries an event, and docs/metrics.md has it."""

import ast
from pathlib import Path

import pytest
from support_behaviour import StillClock, in_memory, until

from lodeq.worker import App

ROOT = Path(__file__).resolve().parents[3]
MODULES = [*sorted((ROOT / "service" / "worker").glob("*.py")), ROOT / "service" / "worker_cli.py"]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def calls():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                on = ast.unparse(node.func.value)
                if node.func.attr in LEVELS and (on == "log" or "getLogger" in on):
                    yield path.name, node


def events(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "fields":
            yield ast.literal_eval(node.args[0])
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                names_it = isinstance(key, ast.Constant) and key.value == "event"
                if names_it and isinstance(value, ast.Constant):
                    yield value.value


def test_no_record_is_without_an_event():
    found = list(calls())
    assert len(found) > 10
    assert not [
        (name, node.lineno)
        for name, node in found
        if "extra" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_event_is_documented():
    page = (ROOT / "docs" / "metrics.md").read_text()
    told = {event for path in MODULES for event in events(path)}
    assert len(told) > 8
    assert not {event for event in told if f"`{event}`" not in page}


@pytest.mark.anyio
async def test_a_failed_run_tells_which_it_was(caplog):
    app = App()

    @app.task("mail")
    async def send() -> None:
        raise ValueError

    async with in_memory(StillClock()) as engine, app.use(engine), app.work() as worker:
        receipt = await send.enqueue()
        await until(lambda: worker.outcomes["failed"])
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "run_failed"]
    assert (record.task_id, record.queue, record.attempt) == (str(receipt.id), "mail", 1)
