"""A recorded history of workflows is judged by rules 20 to 22."""

import json

import pytest

import lodeq.testing
from lodeq import NewTask
from lodeq.testing import HistoryFile, Recorder, check
from lodeq.testing.history.file_check import read_history

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def recorded(records, *, fails=False, on_failure="run", act=""):
    """One workflow of two members, from its opening to the end."""
    async with lodeq.testing.open() as engine:
        recorder = Recorder(engine, records)
        flows = recorder.flows
        await recorder.enqueue(engine.queue("mail"), {"to": "ann"})
        flow = await flows.open(NewTask(b"sum", "joins"), key="k", on_failure=on_failure)
        await flows.seal(flow, await flow.add([NewTask(b"p", "parts") for _ in range(2)]))
        if act == "cancel":
            await flows.cancel(flow.id)
        for lease in await engine.queue("parts").claim(limit=2):
            await (lease.bury("no") if fails else lease.complete())
        for lease in await engine.queue("joins").claim():
            await flows.delivered(lease)
            await lease.complete()
        if act == "redrive":
            await flows.redrive(flow.id)
            for queue in ("parts", "joins"):
                for lease in await engine.queue(queue).claim(limit=2):
                    if queue == "joins":
                        await flows.delivered(lease)
                    await lease.complete()
        await flows.drained([flow.id])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fails": True},
        {"fails": True, "act": "redrive"},
        {"fails": True, "on_failure": "wait"},
        {"fails": True, "on_failure": "cancel"},
        {"act": "cancel"},
    ],
)
async def test_what_the_engine_does_breaks_no_rule(tmp_path, options):
    with HistoryFile(tmp_path / "history") as file:
        await recorded(file, **options)
    report = check(read_history(tmp_path / "history"))
    assert report.ok, report
    assert report.tasks == 1


def flow_records(records, what):
    return [record for record in records if record[:2] == ["flow", what]]


@pytest.mark.parametrize(
    ("rule", "what"), [(20, "twice"), (21, "unsealed"), (21, "early"), (21, "less"), (22, "never")]
)
async def test_a_broken_rule_is_found(rule, what):
    records = []
    await recorded(records.append)
    (delivered,) = flow_records(records, "delivered")
    if what == "twice":
        records.insert(records.index(delivered), delivered)
    elif what == "unsealed":
        records.remove(*flow_records(records, "sealing"))
    elif what == "early":
        delivered[5] = 1
    elif what == "less":
        delivered[4].pop()
    else:
        records.remove(delivered)
        (drained,) = flow_records(records, "drained")
        drained[2][0][4] = "waiting"
    report = check(json.loads(json.dumps(records)))
    assert (report.ok, report.rule) == (False, rule)


@pytest.mark.parametrize(
    "record", [["flow"], ["flow", "what", 1, 2], ["flow", "opened", "zz", 1, 2]]
)
def test_what_is_no_record_is_refused(record):
    report = check([record])
    assert "no record of a workflow" in report.broken
