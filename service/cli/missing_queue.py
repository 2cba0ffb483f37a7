"""What a command says of that which it did not find: queues, functions, text that was cut away."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import click

from ...errors import AccessDeniedError, TaskNotFoundError
from ...repository.api.engine import Engine
from ...repository.model.filters import TaskFilter
from ...repository.model.values import QueueStats
from ..shared.argument_names import misspelt_arguments
from .output import shown

__all__ = [
    "LEAVE_OUT",
    "note_cut_previews",
    "note_missing_queue",
    "note_misspelt_arguments",
    "note_misspelt_filter",
    "note_nothing_found",
    "note_stars",
    "refuse_misspelt_queue",
    "seen_queues",
]

LEAVE_OUT: Final = "leave --tenant out"  # of a filter, which then means all of them
_NAME_THEM: Final = "give --tenant or --all-tenants"
_NAMES_MAX = 10


async def seen_queues(engine: Engine) -> Mapping[tuple[str, str], QueueStats] | None:
    """The queues that hold anything; None where the token may not see them all.

    For notes beside what a command does: it must not fail for want of them.
    """
    try:
        return await engine.queues()
    except AccessDeniedError:
        return None


async def refuse_misspelt_queue(
    engine: Engine, queue: str, tenant: str, *, is_all: bool, cure: str = _NAME_THEM
) -> bool:
    """Note on stderr that a queue holds nothing; refuse a name that is nearly one of the others.

    Call it where nothing was found: a queue is only known by what it holds.

    Args:
        engine: the store.
        queue: the name that was given.
        tenant: whose queue.
        is_all: it was meant for all tenants.
        cure: what to do where only other tenants have anything.

    Returns: whether there was something to say.

    Raises:
        TaskNotFoundError: the name looks misspelt.
    """
    note, similar = await _missing(engine, queue, tenant, is_all=is_all, cure=cure)
    if similar:
        raise TaskNotFoundError(note)
    _say(note)
    return bool(note)


async def note_missing_queue(engine: Engine, queue: str, tenant: str, *, is_all: bool) -> None:
    """As ``refuse_misspelt_queue``, for what may be done before the first task: only a note.

    Args:
        engine: the store.
        queue: the name that was given.
        tenant: whose queue.
        is_all: it was meant for all tenants.
    """
    _say((await _missing(engine, queue, tenant, is_all=is_all))[0])


async def note_nothing_found(
    engine: Engine, queue: str | None, tenant: str | None, function: str | None
) -> None:
    """Say on stderr that nothing was found, and what of the filter may be misspelt."""
    click.echo("nothing found", err=True)
    await note_misspelt_filter(engine, queue, tenant, function)


async def note_misspelt_arguments(engine: Engine, meant: TaskFilter) -> None:
    """Say on stderr which arguments of a filter that means nothing no call has."""
    for note in await misspelt_arguments(engine, meant):
        _say(note)


async def note_misspelt_filter(
    engine: Engine,
    queue: str | None,
    tenant: str | None,
    function: str | None,
) -> None:
    """Say on stderr what of a filter that matches nothing may be misspelt.

    Args:
        engine: the store.
        queue: the name that was given, if one was.
        tenant: whose queue; None for all.
        function: the name that was given, if one was.
    """
    if queue is not None:
        is_all = tenant is None
        found = await _missing(engine, queue, tenant or "", is_all=is_all, cure=LEAVE_OUT)
        _say(found[0])
    if function is not None:
        await _note_function(engine, function)


async def _note_function(engine: Engine, function: str) -> None:
    names = sorted({one.name for one in await engine.functions()})
    if function in names:
        return
    similar = [one for one in names if function.lower() in one.lower()]
    similar = similar or get_close_matches(function, names, n=3, cutoff=0.6)
    if similar:
        _say(f"no worker has published {function!r}: did you mean {', '.join(similar[:3])}?")
    elif names:
        _say(f"no worker has published {function!r}; functions here: {_listed(names)}")


def note_cut_previews(has_cut_previews: bool) -> None:
    """Note on stderr that a search for text or an argument may have missed tasks."""
    if has_cut_previews:
        _say(
            "long arguments are cut in previews, so a search for them may miss some: labels are "
            "for what must be found (--label KEY=VALUE)"
        )


def note_stars(*texts: str | None, instead: str = "--arg NAME=PATTERN") -> None:
    """Note on stderr that a ``*`` was taken as it stands, where nothing was found.

    Args:
        texts: that were looked for.
        instead: where it stands for any characters.
    """
    if any("*" in text for text in texts if text):
        _say(f"* is a character of its own here; it stands for any in {instead}")


def _say(note: str) -> None:
    if note:
        click.echo(f"note: {shown(note)}", err=True)


async def _missing(
    engine: Engine,
    queue: str,
    tenant: str,
    *,
    is_all: bool,
    cure: str = _NAME_THEM,
) -> tuple[str, Collection[str]]:
    """(what to say of a queue that holds nothing; names like it). Nothing if it holds something."""
    found = await seen_queues(engine)
    if found is None:
        return "", ()
    tenants = [whose for name, whose in found if name == queue]
    if tenants and (is_all or tenant in tenants):
        return "", ()
    if tenants:
        return f"queue {queue!r} has tasks of other tenants: {cure}", ()
    names = sorted({name for name, _ in found})
    similar = get_close_matches(queue, names, n=1, cutoff=0.7)
    if similar:
        return f"there is no queue {queue!r}: did you mean {similar[0]!r}?", similar
    others = f"; queues of this store: {_listed(names)}" if names else ", nor in any other"
    return f"there is nothing in queue {queue!r}{others}", ()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")
