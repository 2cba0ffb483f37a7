"""A time that no date shows, planted behind every check: lists and pages show it nevertheless."""

import pytest
from support_dashboard import browsing

from lodeq.repository.bulk.imported_tasks import ImportedTask, enqueue_imported
from lodeq.repository.model.encoded_tasks import TaskTemplate, encoded_task, to_datetime
from lodeq.repository.model.values import NewTask

pytestmark = pytest.mark.anyio
FAR_MS = 10**15  # in the year 33658


@pytest.mark.parametrize("us", [10**18, -(10**18), (1 << 63) - 1, -(1 << 63), 1, 0])
def test_every_stored_number_is_shown_as_some_date(us):
    assert 1 <= to_datetime(us).year <= 9999
    assert to_datetime(us).astimezone()


async def test_lists_and_pages_show_it(engine):
    engine_state, now_us = engine._state, engine._state.clock.wall_us()
    for n, (due_ms, expires_ms) in enumerate(((FAR_MS, 0), (0, FAR_MS), (FAR_MS, FAR_MS * 9))):
        task = ImportedTask(b"far", str(n), now_us // 1000 + 60_000)
        new = NewTask(b"far", dedup_key=str(n), dedup_window=60)
        item = encoded_task(engine_state, TaskTemplate(b"mail", b""), new, now_us)
        item.due_ms, item.expires_ms = due_ms, expires_ms
        assert await enqueue_imported(engine_state, [(task, item)]) == [True]
    assert (await engine.verify()).ok
    assert len(await engine.queue("mail").list("delayed")) == 2
    assert len(await engine.queue("mail").list("ready")) == 1
    async with browsing(engine) as client:
        for path in ("/", "/queues/mail"):
            assert (await client.get(path)).status_code == 200, path
        for state in ("ready", "delayed"):
            answer = await client.get(
                f"/v1/queues/mail/tasks?state={state}", headers={"accept": "application/json"}
            )
            assert answer.status_code == 200, answer.text
            for task in answer.json()["tasks"]:
                page = await client.get(f"/tasks/{task['id']}")
                assert page.status_code == 200, page.text
