"""A web service with its worker inside: uploads are answered at once and worked on afterwards.

    cd examples && uvicorn webservice:web
    curl -X POST --data-binary @webservice.py 'http://127.0.0.1:8000/texts?name=webservice'
    curl 'http://127.0.0.1:8000/texts/TASK?wait=5'

One process, one folder. A text that was answered with 202 is on disk, and is counted however often
the process is killed meanwhile.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

import lodeq
from lodeq.worker import App, Bury

jobs = App(os.environ.get("TEXTS_STORE", "texts.store"), durability="fsync")


@jobs.task("texts", timeout=30, retention=86_400)
def count_words(name: str, text: bytes) -> dict[str, Any]:
    """A plain function: it computes in a thread, and the web service goes on."""
    try:
        words = text.decode().split()
    except UnicodeDecodeError as error:
        raise Bury(f"{name} is no UTF-8") from error  # another attempt would not help
    return {"name": name, "words": len(words), "most": Counter(words).most_common(3)}


@jobs.middleware
async def tell(context: Any, call_next: Any) -> Any:
    result = await call_next()
    print(f"{context.name} ended after attempt {context.attempt}", flush=True)
    return result


web = FastAPI(lifespan=jobs.lifespan)


@web.exception_handler(lodeq.BusyError)  # UnreachableError, where the store is served, is one
@web.exception_handler(lodeq.CommitUnknownError)
async def later(request: Request, error: lodeq.LodeqError) -> JSONResponse:
    """Ask the caller to come again: an upload has its dedup key, so it is taken once."""
    pause_s = math.ceil(getattr(error, "retry_after_ms", 1000) / 1000)
    return JSONResponse({"detail": str(error)}, 503, {"Retry-After": str(pause_s)})


@web.post("/texts", status_code=202)
async def upload(name: str, request: Request) -> dict[str, Any]:
    """The same text under the same name is counted once a day."""
    text = await request.body()
    sending = count_words.options(dedup_key=name, dedup_window=86_400)
    try:
        receipt = await sending.enqueue(name, text)
    except lodeq.PayloadTooLargeError as error:
        raise HTTPException(413, str(error)) from error
    return {"task": str(receipt.id), "duplicate": receipt.duplicate}


@web.get("/texts/{task}")
async def look(task: str, wait: float = 0) -> dict[str, Any]:
    try:
        result = await jobs.engine.result(task, wait=min(max(wait, 0), 30))
        waiting = None if result is not None else await jobs.engine.get(task)
    except lodeq.TaskNotFoundError as error:
        if error.state:  # it has ended, and its result is no longer kept
            return {"status": error.state, "value": None, "error": error.reason}
        raise HTTPException(404, "no such text") from error
    except lodeq.UsageError as error:
        raise HTTPException(422, str(error)) from error
    if result is not None:
        return {"status": result.status, "value": result.value, "error": result.error}
    return {"status": "unknown" if waiting is None else waiting.state}


@web.get("/health")
async def health() -> dict[str, Any]:
    found = await jobs.engine.health()
    if not found.ok:
        raise HTTPException(503, list(found.reasons))
    return {"ok": True}
