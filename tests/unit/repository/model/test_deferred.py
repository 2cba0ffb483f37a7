"""Values of tasks and results that are decoded by whoever reads them."""

import copy
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
from support_behaviour import in_memory

from lodeq import RecordCorruptError
from lodeq.client.documents.records import task_doc, task_of
from lodeq.client.documents.wire import MsgpackForm
from lodeq.repository.model.codec import PackedBytes
from lodeq.repository.model.values import Deferred, Task
from lodeq.service.cli.display import print_tasks, task_json

pytestmark = pytest.mark.anyio
DAMAGED = PackedBytes(b"\xc1")  # msgpack never uses it


@pytest.fixture
async def engine():
    async with in_memory() as engine:
        yield engine


def in_slot(task, name):
    return Task.__dict__[name].peek(task)


async def test_a_value_is_decoded_once_and_its_bytes_are_let_go(engine):
    mail = engine.queue("mail")
    receipt = await mail.enqueue({"n": [1]}, headers={"h": 2})
    task = await engine.get(receipt.id)
    assert type(in_slot(task, "payload")) is type(in_slot(task, "headers")) is Deferred
    assert task.payload is task.payload is in_slot(task, "payload")
    assert task.headers is task.headers is in_slot(task, "headers")
    assert (task.payload, task.headers) == ({"n": [1]}, {"h": 2})


async def test_a_task_is_a_frozen_dataclass_as_before(engine):
    mail = engine.queue("mail")
    receipt = await mail.enqueue({"n": [1]}, headers={"h": 2})
    task, other, third, fourth = [await engine.get(receipt.id) for _ in range(4)]
    assert "payload={'n': [1]}, headers={'h': 2}" in repr(third)
    assert task == other == copy.copy(fourth)
    assert asdict(await engine.get(receipt.id))["payload"] == {"n": [1]}
    assert replace(await engine.get(receipt.id), worker="w").headers == {"h": 2}
    with pytest.raises(FrozenInstanceError):
        task.payload = None


async def test_what_cannot_be_decoded_is_an_error_where_it_is_read(engine, capsys):
    mail = engine.queue("mail")
    await mail.enqueue(DAMAGED)
    sound = await mail.enqueue(b"sound")
    damaged, found = await mail.list("ready")
    assert found.payload == b"sound"
    served = task_of(
        MsgpackForm(), task_doc(MsgpackForm(), replace(damaged, payload=DAMAGED), None), {}
    )
    for task in (damaged, served):
        for _ in range(2):
            with pytest.raises(RecordCorruptError):
                _ = task.payload
    assert task_json(damaged)["reason"] == "record missing or damaged"
    print_tasks([damaged, found], as_json=False)
    assert str(sound.id) in capsys.readouterr().out
    lease = await mail.claim_one()
    await lease.complete(DAMAGED)
    result = await engine.result(lease.task_id)
    with pytest.raises(RecordCorruptError):
        _ = result.value
