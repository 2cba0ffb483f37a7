"""Queues by their handles, and errors of single requests."""

from __future__ import annotations

from typing import Final

from ....client.documents.wire import MSGPACK_FORM
from ....errors import LodeqError, UsageError
from ....repository.api.queue import Queue as EngineQueue
from ..document_reader import read
from ..schemas import QueueReference
from . import requests
from .port import LinkPort

__all__ = ["fail", "name_queue", "queue_of"]

_DOCUMENT_BYTES_MAX: Final = 4 << 10


def name_queue(link: LinkPort, entry: requests.Queue) -> None:
    """Give a queue a handle; an error is kept for who uses it."""
    try:
        if len(entry.document) > _DOCUMENT_BYTES_MAX:
            raise UsageError(f"a queue's document has at most {_DOCUMENT_BYTES_MAX} bytes")
        document = read(MSGPACK_FORM, MSGPACK_FORM.loads(entry.document), QueueReference)
        link.queues[entry.handle] = link.serving.hub.queue_of(document)
    except LodeqError as error:
        link.queues[entry.handle] = error


def queue_of(link: LinkPort, handle: int) -> EngineQueue:
    """The queue of a handle, or the error that made none."""
    found = link.queues.get(handle)
    if found.__class__ is EngineQueue:
        queue: EngineQueue = found
        return queue
    if found is None:
        raise UsageError(f"no queue has the handle {handle}")
    raise found


def fail(link: LinkPort, id: int, error: BaseException) -> None:
    """Answer with what the engine raised."""
    link.fail(id, error if isinstance(error, LodeqError) else LodeqError(str(error)))
