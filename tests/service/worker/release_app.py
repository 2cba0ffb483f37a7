"""An app of two releases, for workers that are processes: each run is a line in a file."""

import os
import sys
from pathlib import Path

from lodeq.worker import App, current


def make(name: str, runs: Path) -> App:
    """The app of the old release or of the new one, as the name says; both as producers too."""
    app = App(os.environ.get("LODEQ_STORE"), name=name, lease=5.0, grace=10.0)

    told: list[str] = []

    def ran(*words: object) -> None:
        if not told:  # who watches waits for the first run
            told.append(name)
            sys.stdout.write("begun\n")
            sys.stdout.flush()
        line = " ".join(map(str, (current().name, *words, current().attempt, name)))
        with runs.open("ab", buffering=0) as file:  # whole lines: it appends, unbuffered
            file.write(f"{line}\n".encode())

    @app.task("mail", concurrency=8)
    async def same(n: int) -> None:
        ran(n)

    if name.startswith("new"):

        @app.task("mail")
        async def changed(n: int, copies: int = 1) -> None:
            ran(n, copies)

        @app.task("mail")
        async def added(n: int) -> None:
            ran(n)

    else:

        @app.task("mail")
        async def changed(n: int) -> None:
            ran(n)

        @app.task("mail")
        async def removed(n: int) -> None:
            ran(n)

    return app


if "LODEQ_FIFO" in os.environ:
    app = make(os.environ["LODEQ_NAME"], Path(os.environ["LODEQ_FIFO"]).with_name("runs"))
