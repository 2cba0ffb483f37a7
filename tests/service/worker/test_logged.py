"""The log record of a failed run says which it was."""

import pytest
from support_behaviour import StillClock, in_memory, until

from lodeq.worker import App


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
