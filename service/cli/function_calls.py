"""``enqueue`` by function: which function is meant, its arguments, and what is refused.

A queue whose workers have published functions takes calls of them. What they cannot take (text,
bytes, arguments that they do not have) is refused, unless ``--raw`` is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ...errors import UsageError
from ...repository.api.engine import Engine
from ...repository.model.calls.functions import (
    FunctionParameter,
    PublishedFunction,
    argument_of_text,
    not_json,
    task_of_function,
    unknown_function,
)
from ...repository.model.json_values import loads
from ...repository.model.values import NewTask
from .output import shown
from .values import stdin_bytes

if TYPE_CHECKING:
    from ..worker.app import App
    from ..worker.run.functions import TaskFunction

__all__ = ["Call", "call_of", "function_task", "looks_like_json"]

_RAW: Final = "--raw stores the payload as it is"


class Call(NamedTuple):
    """A call as the command line gives it.

    ``word``: the argument behind the queue, a function's name or a payload. ``arguments``: of
    ``--args``, None without it; ``pairs``: of ``--arg``.
    """

    queue: str
    word: str | None
    arguments: dict[str, Any] | None
    pairs: Sequence[tuple[str, str]]
    is_value: bool  # --parse

    @property
    def is_by_name(self) -> bool:
        """Whether a function has to be meant."""
        return self.arguments is not None or bool(self.pairs)


def call_of(
    queue: str, word: str | None, text: str | None, pairs: Sequence[str], *, is_value: bool
) -> Call:
    """Read what the command line says.

    Args:
        queue: its name.
        word: the argument behind it, if any.
        text: of ``--args``; ``-`` reads stdin.
        pairs: of ``--arg``.
        is_value: ``--parse`` is given.
    """
    split = []
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"expected an argument like NAME=VALUE, got {pair!r}")
        split.append((name, value))
    return Call(queue, word, None if text is None else _arguments(text), split, is_value)


def _arguments(text: str) -> dict[str, Any]:
    raw = stdin_bytes().read().decode("utf-8", "replace") if text == "-" else text
    try:
        found = loads(raw)
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"--args takes a JSON object, and {not_json(raw, exc)}") from None
    if not isinstance(found, dict):
        raise UsageError("--args takes a JSON object, the arguments by name")
    return found


def _json(text: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


def looks_like_json(text: str | None) -> bool:
    """Whether a payload is the text of a JSON object or list."""
    return text is not None and text.lstrip()[:1] in ("{", "[") and _json(text) is not None


async def function_task(
    engine: Engine,
    call: Call,
    options: Mapping[str, Any],
    app: App | None = None,
) -> NewTask | None:
    """The task of a call by function; None: nothing is known of the queue, the payload is meant.

    Args:
        engine: of the store.
        call: what the command line says.
        options: fields of ``NewTask`` that were given; None where they were not.
        app: of ``--app``; None: functions are those that are published.
    """
    known = None if app is None else app.published()
    here = known
    if here is None:
        here = await engine.functions(call.queue)
    of_queue = [one for one in here if one.queue == call.queue]
    if not of_queue:  # a call whose queue is forgotten?
        everywhere = here if known is not None else await engine.functions()
        meant = [one for one in everywhere if one.name == call.queue]
        if meant and call.is_by_name and call.word is None:
            raise UsageError(_forgotten_queue(call.queue, meant))
        if meant and not call.is_by_name:
            click.echo(f"note: {shown(_forgotten_queue(call.queue, meant))}", err=True)
    if not of_queue and not call.is_by_name and known is None:
        return None
    one = next((one for one in of_queue if one.name == call.word), None)
    arguments = dict(call.arguments or {})
    if one is None:
        one, arguments = await _only(engine, call, here, of_queue, arguments)
    if one.has_codec and known is None:
        raise UsageError(
            f"arguments of {one.name!r} are packed by its app's codec: give --app module:app"
        )
    for name, text in call.pairs:
        arguments[name] = _value(one, name, text)
    task = task_of_function(one, arguments, options)
    if app is not None:
        task = _task_of_app(app.function(one.queue, one.name), arguments, options, engine)
    return task


def _forgotten_queue(name: str, meant: Sequence[PublishedFunction]) -> str:
    """Words for a function's name where the queue's is wanted."""
    queues = ", ".join(sorted({one.queue for one in meant}))
    return (
        f"{name!r} is a function of queue {queues}, and no queue with functions: to call it, name "
        f"the queue first: lodeq enqueue STORE {meant[0].queue} {name}"
    )


async def _only(
    engine: Engine,
    call: Call,
    here: Sequence[PublishedFunction],
    of_queue: Sequence[PublishedFunction],
    arguments: dict[str, Any],
) -> tuple[PublishedFunction, dict[str, Any]]:
    """The only function of the queue, if a JSON object for it is given; else an error."""
    value = _json(call.word) if call.word is not None else None
    if len(of_queue) == 1 and isinstance(value, dict) and call.is_value and not call.is_by_name:
        return of_queue[0], value
    if of_queue and (call.word is None or looks_like_json(call.word)):
        calls = ", ".join(one.call for one in of_queue[:8])
        raise UsageError(
            f"queue {call.queue!r} runs functions, which cannot take this payload: {calls}; name "
            "one, with --arg NAME=VALUE or --args JSON"
        )
    if not of_queue and not here:
        here = await engine.functions()
    if call.word is None:
        raise UsageError(_no_function(call.queue, here))
    unknown = str(unknown_function(call.queue, call.word, here))
    raise UsageError(unknown if call.is_by_name else f"{unknown}; {_RAW}")


def _no_function(queue: str, known: Sequence[PublishedFunction]) -> str:
    """Words for arguments without a function, in a queue that has none."""
    queues = sorted({one.queue for one in known})
    exists = f"queues with functions: {', '.join(queues[:8])}" if queues else "none has any"
    return (
        f"arguments are given, and no function that takes them: queue {queue!r} has none; "
        f"{exists}; "
        "write lodeq enqueue STORE QUEUE FUNCTION --arg NAME=VALUE"
    )


def _value(one: PublishedFunction, name: str, text: str) -> Any:
    """The value of an argument given as text; of one that is not known, as ``**`` takes it."""
    parameters = one.parameters or ()
    rest = next((p for p in parameters if p.kind == "rest"), FunctionParameter(name))
    return argument_of_text(next((p for p in parameters if p.name == name), rest), text)


def _task_of_app(
    function: TaskFunction[..., Any],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
    engine: Engine,
) -> NewTask:
    """The task that the function itself makes: its annotations check the arguments."""
    values = function.typed.decode(arguments)
    given = {name: value for name, value in options.items() if value is not None}
    task = function.options(**given).new(**values)
    session = getattr(engine, "session", None)  # of a client
    if session is not None and not session.takes_faces:
        task = task._replace(function=None, preview=None)
    return task
