"""The names of arguments that calls have, for who searches by one that no call has."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ...repository.model.filters import TaskFilter
from ...repository.model.preview_arguments import argument_names

if TYPE_CHECKING:
    from ...client.engine import RemoteEngine
    from ...repository.api.engine import Engine

__all__ = ["misspelt_arguments"]

_PREVIEWS_MAX: Final = 100
_NAMES_MAX: Final = 10


async def misspelt_arguments(engine: Engine | RemoteEngine, meant: TaskFilter) -> list[str]:
    """Notes on the arguments of a filter that no call of its queue and function has.

    Names are those of published functions and of the first previews that queue, tenant and
    function find: one page. Nothing is said where none are known.

    Args:
        engine: the store.
        meant: a filter that found nothing.
    """
    if not meant.arguments:
        return []
    published = [
        one
        for one in await engine.functions(meant.queue)
        if meant.function is None or one.name == meant.function
    ]
    names = [p.name for one in published for p in one.parameters or () if p.kind != "rest"]
    seen = TaskFilter(queue=meant.queue, tenant=meant.tenant, function=meant.function)
    for task in await engine.find(seen, limit=_PREVIEWS_MAX, payloads=False):
        names += argument_names(task.preview)
    names = list(dict.fromkeys(names))
    wrong = [name for name in meant.arguments if names and name not in names]
    return [
        f"no call{_where(meant)} has an argument {name!r}: {_cure(name, names)}" for name in wrong
    ]


def _where(meant: TaskFilter) -> str:
    if meant.function:
        return f" of {meant.function!r}"
    return f" in queue {meant.queue!r}" if meant.queue else ""


def _cure(name: str, names: list[str]) -> str:
    similar: Iterable[str] = get_close_matches(name, names, n=1, cutoff=0.6)
    for one in similar:
        return f"did you mean {one!r}?"
    more = ", …" if len(names) > _NAMES_MAX else ""
    return f"arguments here: {', '.join(names[:_NAMES_MAX])}{more}"
