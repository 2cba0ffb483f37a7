"""One store, several processes: a server that owns it, two workers, and this process, which asks.

    python examples/processes.py [FOLDER]

In service the server and the workers are units of systemd, or containers that share a volume for
the socket. Here they are children, so that the example ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from lodeq.worker import App

app = App("unix://store.sock")
NUMBERS = range(1_000_000_007, 1_000_000_307, 2)


@app.task("numbers", concurrency=4)
def smallest_factor(n: int) -> list[int]:
    """A plain function, in threads: more of them than cores only makes sense with I/O."""
    found = next((k for k in range(2, math.isqrt(n) + 1) if n % k == 0), n)
    return [found, os.getpid()]


def lodeq_command(*args: str) -> subprocess.Popen[str]:
    command = [Path(sys.executable).with_name("lodeq"), *args]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, cwd=Path(__file__).parent)


async def ask(url: str) -> None:
    app.store = url
    async with app:
        receipts = await smallest_factor.enqueue_many([smallest_factor.new(n) for n in NUMBERS])
        by = Counter[int]()
        for n, receipt in zip(NUMBERS, receipts, strict=True):
            result = await app.engine.result(receipt.id, wait=60)
            assert result is not None
            assert result.status == "completed"
            factor, process = result.value
            assert n % factor == 0
            by[process] += 1
        assert os.getpid() not in by
        assert 1 <= len(by) <= 2
        print(f"{by.total()} numbers, each done by one of two workers")
        assert (await app.engine.verify()).ok


def main(folder: str) -> None:
    url = f"unix://{folder}/store.sock"
    server = lodeq_command("serve", f"{folder}/store", "--uds", f"{folder}/store.sock")
    children = [server]
    try:
        assert server.stdout is not None
        assert "serving" in server.stdout.readline()
        children += [
            lodeq_command("worker", "processes:app", "--store", url, "--quiet") for _ in range(2)
        ]
        asyncio.run(ask(url))
    finally:
        for child in reversed(children):  # the store last
            child.send_signal(signal.SIGTERM)
            code = child.wait()
            assert child.stdout is not None
            child.stdout.close()
            assert code == 0, code


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
