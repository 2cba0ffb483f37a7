"""Texts of tasks, workers and operators reach a terminal escaped: they may come from anybody."""

import asyncio
import re

import pytest
from support_cli import run

import lodeq
from lodeq import NewTask

pytestmark = pytest.mark.slow
HOSTILE = "\x1b]0;x\x07\x1b[31m\u202eX\x9b1m\r\n\x85\u2028<script>&\"'"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


async def fill(path):
    async with lodeq.open(path) as engine:
        mail = engine.queue("mail")
        await mail.enqueue(
            b"x", function=HOSTILE, preview=HOSTILE, labels={HOSTILE[:9]: HOSTILE[9:]}
        )
        await mail.enqueue(HOSTILE, headers={"h": HOSTILE})
        await mail.enqueue(b"x", function="f", preview=HOSTILE)
        await mail.enqueue(b"x", function="g", preview=HOSTILE)
        first, second, third = await mail.claim(limit=3, worker=HOSTILE)
        await first.bury(HOSTILE)
        await second.complete(HOSTILE)
        await third.nack(reason=HOSTILE, delay=60)
        async with await engine.workflow(NewTask(b"x", "mail"), name=HOSTILE, key=HOSTILE) as flow:
            await flow.add([NewTask(HOSTILE, "mail", function=HOSTILE, preview=HOSTILE)])
        await engine.configure("mail", rate="10/s", by=HOSTILE)
        return [str(one) for one in (first.task_id, second.task_id, third.task_id)], str(flow.id)


def test_no_command_prints_a_control_character(tmp_path):
    store = tmp_path / "s"
    ids, flow = asyncio.run(fill(store))
    commands = [
        ("ls", store),
        ("stats", store),
        ("peek", store, "mail"),
        ("dead", store, "mail"),
        ("history", store),
        ("find", store),
        ("act", store, "delete"),
        ("queue", "show", store, "mail"),
        ("workflow", "show", store, flow),
        *(("show", store, one) for one in ids),
        *(("ls", store, "mail", "--state", state) for state in ("ready", "delayed", "completed")),
    ]
    for command in commands:
        for form in ((), ("--json",)) if command[0] != "act" else ((),):
            found = CONTROLS.search(run(*command, *form).output)
            assert found is None, (command, form, found)
