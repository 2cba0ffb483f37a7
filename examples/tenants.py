"""A worker that is fair: one customer's thousand pages do not keep another's single one waiting.

    python examples/tenants.py [STORE]

The customers share one queue. Claims take them in turn, none has more than two renderers at once,
and whoever has too much waiting is told so at the door.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter

import lodeq
from lodeq.worker import App, current

app = App("pages.store", concurrency=4, limits=lodeq.Limits(pending_max=1000))
order: list[str] = []  # whose page was finished, one after another
at_work: Counter[str] = Counter()
most: Counter[str] = Counter()


@app.task("pages", max_inflight_per_tenant=2, retention=600)
async def render(page: int) -> str:
    tenant = current().tenant
    at_work[tenant] += 1
    most[tenant] = max(most[tenant], at_work[tenant])
    await asyncio.sleep(0.001)  # what a page takes
    at_work[tenant] -= 1
    order.append(tenant)
    return f"{tenant}-{page}.pdf"


async def order_pages(tenant: str, pages: int) -> list[lodeq.Receipt]:
    sending = render.options(tenant=tenant)
    return await render.enqueue_many([sending.new(page) for page in range(pages)])


async def main(store: str) -> None:
    app.store = store
    async with app:
        large = await order_pages("globex", 300) + await order_pages("initech", 30)
        small = await order_pages("hooli", 1)
        try:
            await order_pages("globex", 900)
        except lodeq.QueueFullError as error:
            print("globex is told:", error)
        async with app.work():
            result = await app.engine.result(small[0].id, wait=30)
            assert result is not None
            print(f"{result.value} was ready after {len(order)} pages")
            assert len(order) < 40
            for receipt in large:
                await app.engine.result(receipt.id, wait=30)
        assert max(most.values()) <= 2
        print(dict(sorted(Counter(order).items())))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(f"{folder}/store"))
