"""A task function, and the cluster that its worker claims from."""

import os
from pathlib import Path

from lodeq.worker import App

app = App(
    os.environ.get("STORE", "lodeq://127.0.0.1:8765"),
    token=Path(os.environ.get("TOKEN_FILE", "token")).read_text("ascii").strip(),
)


@app.task("mail")
async def send(to: str) -> str:
    return f"sent to {to}"
