"""A newsletter: one task fans out to many, each retried on its own, and a report at the end.

    python examples/newsletter.py [STORE]

Two tenants share the queue, and neither can take more than two places at once. Some addresses fail
at first and are tried again; one never works and becomes a dead letter; one has unsubscribed. The
same app runs as a service of its own with

    lodeq worker newsletter:app          # from this folder, until SIGTERM
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import lodeq
from lodeq.worker import App, Bury, Cancel, current

app = App("newsletter.store", concurrency=8, grace=10)
soon = lodeq.Backoff("exponential", base=0.05, cap=1)


@app.task("issues")
async def publish(issue: str, readers: list[str]) -> int:
    """Fan out: the mails are enqueued together with the completion, or not at all."""
    current().then(*(deliver.options(tenant=current().tenant).new(issue, to) for to in readers))
    return len(readers)


@app.task("mails", retry=soon, max_attempts=4, timeout=5, rate="500/s", max_inflight_per_tenant=2)
async def deliver(issue: str, to: str) -> str:
    """One mail."""
    ctx = current()
    await asyncio.sleep(0.001)  # what a mail server takes
    if to.startswith("flaky") and ctx.attempt < 3:
        raise ConnectionError("the mail server hung up")
    if to.startswith("nobody"):
        raise Bury("there is no such mailbox")
    if to.startswith("left"):
        raise Cancel
    return f"{issue} to {to} after {ctx.attempt}"


@app.task("reports")
def report(issue: str, sent: int) -> str:
    """A plain function: it runs in a thread."""
    return f"{issue}: {sent} sent"


async def main(store: str) -> None:
    """Publish an issue for each tenant and wait for all of it."""
    app.store = store
    async with app, app.work():
        engine = app.engine
        readers = [*(f"reader{n}@example.org" for n in range(20)), "flaky@example.org"]
        readers += ["nobody@example.org", "left@example.org"]
        for tenant in ("blue", "red"):
            receipt = await publish.options(tenant=tenant).enqueue("No. 1", readers)
            assert (await engine.result(receipt.id, wait=30)).value == len(readers)
        mails = engine.queue("mails", tenant=lodeq.ALL_TENANTS)
        done = 0
        while done < 2 * len(readers):  # results are kept for an hour: count what has ended
            done = (await mails.stats()).results
            await asyncio.sleep(0.02)
        dead = await engine.queue("mails", tenant="blue").dead_letters()
        assert [task.payload["to"] for task in dead] == ["nobody@example.org"]
        sent = (await engine.stats()).completed_total - 2
        receipt = await report.enqueue("No. 1", sent)
        result = await engine.result(receipt.id, wait=30)
        assert result is not None
        print(result.value)
        assert sent == 2 * 21


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(f"{folder}/store"))
