"""The app of the workers in ``rates``: its task does nothing, the rate is the queue's own."""

import os

from lodeq.worker import App

app = App(os.environ["LODEQ_STORE"], name=os.environ["LODEQ_NAME"], lease=5.0, grace=10.0)


@app.task("work", rate=os.environ["LODEQ_RATE"], concurrency=64)
async def work() -> None:
    pass
