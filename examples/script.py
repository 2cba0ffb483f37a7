"""A script without an event loop that goes on where it was: checksums of all files of a folder.

    python examples/script.py FOLDER [STORE]

Interrupt it or kill it, and start it again: what is done is not done again, what was at work is.
The checksums are the results; a file that cannot be read becomes a dead letter.
"""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lodeq
import lodeq.sync

DAY = 86_400.0


def work(queue: Any) -> int:
    """Until nothing is ready. Leases are kept alive by a thread of the engine."""
    done = 0
    while (lease := queue.claim_one()) is not None:
        path = Path(lease.payload)
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            lease.bury(str(error))
            continue
        lease.complete(digest)
        done += 1
    return done


def main(folder: Path, store: str) -> None:
    with lodeq.sync.open(store) as engine:
        queue = engine.queue("files", retention=DAY, lease=60)
        names = sorted(str(path) for path in folder.rglob("*") if path.is_file())
        receipts = []
        for at in range(0, len(names), 500):
            receipts += queue.enqueue_many(
                [
                    lodeq.NewTask(name, dedup_key=name, dedup_window=DAY)
                    for name in names[at : at + 500]
                ]
            )
        fresh = sum(not receipt.duplicate for receipt in receipts)
        with ThreadPoolExecutor(4) as pool:
            done = sum(future.result() for future in [pool.submit(work, queue) for _ in range(4)])
        failed = len(queue.dead_letters())
        print(f"{len(names)} files, {fresh} of them new: {done} read, {failed} unreadable")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "script.store")
