"""The app of the workers in ``deploys``: it does nothing, as fast as it can.

With LODEQ_VERSION it knows two functions: one that every version has, and one of its own.
"""

import os

from lodeq.worker import App

app = App(os.environ["LODEQ_STORE"], name=os.environ["LODEQ_NAME"], lease=5.0, grace=10.0)


@app.task("work", concurrency=64)
async def work(n: int) -> int:
    return n


if "LODEQ_VERSION" in os.environ:

    @app.task("work", name=os.environ["LODEQ_VERSION"], concurrency=64)
    async def own(n: int) -> int:
        return n
