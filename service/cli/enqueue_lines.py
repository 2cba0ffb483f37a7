"""``enqueue --lines``: read stdin line by line beside the event loop, and enqueue the lines.

A thread reads, so the store's heartbeats go on while no input comes. Lines are enqueued once no
more input is ready: a pipe may stay open for days.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import click

from ...errors import LodeqError, UsageError
from ...repository.api.queue import Queue
from ...repository.model.values import NewTask, Receipt
from .output import OutputError, flush, shown
from .values import INPUT_BYTES_MAX, TOO_LONG, parsed, stdin_bytes

__all__ = ["Chunk", "chunks_of", "enqueue_lines", "in_thread", "lines_of", "stdin_lines"]

T = TypeVar("T")
Lines = list[tuple[int, bytes | None]]

_NOT_ALL: Final = 1
_CHUNK: Final = 1000  # lines that are enqueued together
_READ_BYTES: Final = 1 << 16
_QUIET_MS: Final = 100


class Chunk(NamedTuple):
    """Payloads with the numbers of their lines; ``bad``: the error that ends the input."""

    numbers: list[int]
    payloads: list[Any]
    bad: str | None = None


def lines_of(read: Callable[[], bytes], has_more: Callable[[], bool]) -> Iterator[Lines]:
    """Numbered lines in chunks; smaller ones where ``has_more`` says that no input is ready.

    None stands for a line that is longer than any may be, and ends them.
    """
    waiting: Lines = []
    begun: list[bytes] = []  # parts of a line whose end has not come
    number = begun_bytes = 0
    while data := read():
        *whole, rest = data.split(b"\n")
        for line in whole:
            number += 1
            if begun_bytes + len(line) > INPUT_BYTES_MAX:
                yield [*waiting, (number, None)]
                return
            waiting.append((number, b"".join([*begun, line])))
            begun.clear()
            begun_bytes = 0
            if len(waiting) >= _CHUNK:
                yield waiting
                waiting = []
        if rest:
            begun.append(rest)
            begun_bytes += len(rest)
            if begun_bytes > INPUT_BYTES_MAX:
                yield [*waiting, (number + 1, None)]
                return
        if waiting and not has_more():
            yield waiting
            waiting = []
    if begun:
        waiting.append((number + 1, b"".join(begun)))
    if waiting:
        yield waiting


def chunks_of(found: Iterator[Lines], *, parse: bool) -> Iterator[Chunk]:
    """Payloads of the lines that are not empty, up to the first that is not JSON."""
    for lines in found:
        chunk = Chunk([], [])
        for number, line in lines:
            if line is None:
                yield chunk._replace(bad=f"line {number}: {TOO_LONG}")
                return
            text = line.rstrip(b"\r")
            if not text:
                continue
            try:
                payload = parsed(text) if parse else text
            except UsageError as exc:
                yield chunk._replace(bad=f"line {number}: {exc}")
                return
            chunk.numbers.append(number)
            chunk.payloads.append(payload)
        if chunk.payloads:
            yield chunk


def stdin_lines(*, parse: bool) -> Iterator[Chunk]:
    """The lines of stdin, in chunks."""
    return chunks_of(_stdin(), parse=parse)


def _stdin() -> Iterator[Lines]:
    stream = stdin_bytes()
    try:
        number = stream.fileno()
    except OSError:  # no file stands behind it
        return lines_of(lambda: stream.read(_READ_BYTES), lambda: True)
    polled = select.poll()
    polled.register(number, select.POLLIN)
    # Not by ``stream``: its lock would be this thread's when the interpreter ends.
    return lines_of(lambda: os.read(number, _READ_BYTES), lambda: bool(polled.poll(_QUIET_MS)))


async def in_thread(source: Iterator[T]) -> AsyncIterator[T]:
    """The items of ``source``, each taken in a thread that blocks neither the loop nor the end."""
    loop = asyncio.get_running_loop()
    asked: SimpleQueue[asyncio.Future[list[T]] | None] = SimpleQueue()

    def settle(future: asyncio.Future[list[T]], got: list[T], exc: BaseException | None) -> None:
        if future.cancelled():
            return
        if exc is None:
            future.set_result(got)
        else:
            future.set_exception(exc)

    def work() -> None:
        while (future := asked.get()) is not None:
            got: list[T] = []
            error: BaseException | None = None
            try:
                got.append(next(source))
            except StopIteration:
                pass
            except BaseException as exc:  # noqa: BLE001 - it is raised where it is awaited
                error = exc
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, future, got, error)

    threading.Thread(target=work, name="lodeq-lines", daemon=True).start()
    try:
        while True:
            future: asyncio.Future[list[T]] = loop.create_future()
            asked.put(future)
            if not (got := await future):
                return
            yield got[0]
    finally:
        asked.put(None)


async def enqueue_lines(
    target: Queue,
    found: Iterator[Chunk],
    options: dict[str, Any],
    *,
    durable: bool | None,
    report: Callable[[list[Receipt]], None],
) -> None:
    """Enqueue the lines, chunk by chunk, and report their receipts.

    Ends at the first line that cannot be enqueued: with exit code 1, or 2 if nothing was.

    Args:
        target: the queue.
        found: chunks of lines, from ``stdin_lines``.
        options: fields of each ``NewTask`` besides the payload.
        durable: True: every chunk waits for an fsync.
        report: called with the receipts of each chunk, before the next one is enqueued.
    """
    count = 0
    async for chunk in in_thread(found):
        tasks = [NewTask(payload, **options) for payload in chunk.payloads]
        receipts, bad = await _enqueue(target, tasks, chunk, durable)
        count += len(receipts)
        try:
            report(receipts)
            flush()
        except OutputError as exc:
            bad = f"the ids could not be written ({exc.strerror})"
        if bad is not None:
            _stop(bad, count)


async def _enqueue(
    target: Queue, tasks: list[NewTask], chunk: Chunk, durable: bool | None
) -> tuple[list[Receipt], str | None]:
    """Enqueue a chunk. Returns the receipts, in order, and what is wrong with the next line."""
    numbers = chunk.numbers
    try:
        return (await target.enqueue_many(tasks, durable=durable) if tasks else []), chunk.bad
    except UsageError as exc:
        known = list(exc.receipts)
    except LodeqError as exc:
        return _known(exc.receipts), f"lines {numbers[0]} to {numbers[-1]}: {exc}"
    for n, task in enumerate(tasks):  # one after another shows which line is at fault
        try:
            if known[n] is None:
                (known[n],) = await target.enqueue_many([task], durable=durable)
        except LodeqError as exc:
            return _known(known), f"line {numbers[n]}: {exc}"
    return _known(known), chunk.bad


def _known(receipts: Sequence[Receipt | None]) -> list[Receipt]:
    return [receipt for receipt in receipts if receipt is not None]


def _stop(bad: str, count: int) -> None:
    if not count:
        raise UsageError(bad)
    click.echo(f"error: {shown(bad)}; {count:,} tasks were enqueued", err=True)
    raise click.exceptions.Exit(_NOT_ALL)
