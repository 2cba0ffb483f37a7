"""A search as a page has it: the fields of its form, its address, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from ....errors import UsageError
from ....repository.model.filters import ACTS, FILTER_STATES, FoundCount, TaskFilter
from ...shared.argument_names import misspelt_arguments
from ...shared.duration_text import seconds_of
from ..source import AnyEngine, source_of

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

__all__ = ["Search", "narrowed", "search_of", "search_page"]

PAGE: Final = 25
COUNT_LOOKS: Final = 20_000  # rows that a page looks at to count; all only where it is asked to
_TEXTS: Final = (
    "queue",
    "tenant",
    "function",
    "older_than",
    "newer_than",
    "finished_older_than",
    "finished_newer_than",
    "reason",
    "id_prefix",
    "text",
)
_AGES: Final = tuple([name for name in _TEXTS if name.endswith("_than")])
_TEXT_MAX: Final = 256
_LABELS_MAX: Final = 8


class Search(NamedTuple):
    """A search, as its form was filled in.

    Attributes:
        fields: texts by name.
        states: that were chosen; none stands for all.
        labels: ``key=value``.
        arguments: ``name=pattern``.
        ids: of tasks that were chosen; none stands for all.
        no_tenant: only tasks of the default tenant.
        meant: the filter.
        address: the query of its page, without a cursor; empty: nothing was filled in.
    """

    fields: Mapping[str, str]
    states: Sequence[str]
    labels: Sequence[str]
    arguments: Sequence[str]
    ids: Sequence[str]
    no_tenant: bool
    meant: TaskFilter
    address: str

    @property
    def words(self) -> list[str]:
        """The search, in words."""
        names = {"older_than": "enqueued before the last", "newer_than": "enqueued in the last"}
        names |= {"finished_older_than": "ended before the last"}
        names |= {"finished_newer_than": "ended in the last"}
        names |= {"reason": "reason with", "id_prefix": "id begins with"}
        said = [f"{names.get(name, name)} {text}" for name, text in self.fields.items() if text]
        said += [f"label {label}" for label in self.labels]
        said += [f"argument {argument}" for argument in self.arguments]
        if self.ids:
            said.append(f"chosen: {', '.join(self.ids)}")
        if self.no_tenant:
            said.append("no tenant")
        return said


def search_of(query: QueryParams) -> Search:
    """Read a search from the query of a request.

    Raises:
        UsageError: a field is wrong; the text says which.
    """
    fields = {name: query.get(name, "").strip()[: _TEXT_MAX + 1] for name in _TEXTS}
    states = [one for one in dict.fromkeys(query.getlist("state")) if one][: len(FILTER_STATES) + 1]
    labels, arguments = _listed(query, "label"), _listed(query, "argument")
    ids = list(dict.fromkeys(query.getlist("id")))[: PAGE + 1]
    if query.get("chosen", "") == "1" and not ids:
        raise UsageError("no task was chosen: tick those that are meant")
    if len(ids) > PAGE:
        raise UsageError(f"{PAGE} tasks can be chosen at once: the rows of a page")
    no_tenant = query.get("no_tenant", "") == "1"
    pairs = [(name, text) for name, text in fields.items() if text]
    pairs += [("state", one) for one in states] + [("label", one) for one in labels]
    pairs += [("argument", one) for one in arguments] + [("id", one) for one in ids]
    pairs += [("no_tenant", "1")] if no_tenant else []
    return Search(
        fields,
        states,
        labels,
        arguments,
        ids,
        no_tenant,
        _filter(fields, states, labels, arguments, ids, no_tenant),
        urlencode(pairs),
    )


def _listed(query: QueryParams, name: str) -> list[str]:
    """The values of a field that may be there several times; blank ones are left out.

    Of ``key=value`` the last one of a key counts, so no page names another.
    """
    by_key = {one.partition("=")[0].strip(): one.strip() for one in query.getlist(name)}
    return [one for one in by_key.values() if one][: _LABELS_MAX + 1]


def _pairs(texts: Sequence[str], name: str, form: str) -> dict[str, str]:
    if len(texts) > _LABELS_MAX:
        raise UsageError(f"a search has {_LABELS_MAX} {name}s at most")
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"expected {name} as {form}, got {text!r:.80}")
        pairs[key.strip()] = value
    return pairs


def _filter(
    fields: Mapping[str, str],
    states: Sequence[str],
    labels: Sequence[str],
    arguments: Sequence[str],
    ids: Sequence[str],
    no_tenant: bool,
) -> TaskFilter:
    if no_tenant and fields["tenant"]:
        raise UsageError("name a tenant, or ask for tasks without one, not both")
    return TaskFilter(
        queue=fields["queue"] or None,
        tenant="" if no_tenant else fields["tenant"] or None,
        state=states or None,
        function=fields["function"] or None,
        labels=_pairs(labels, "label", "key=value"),
        arguments=_pairs(arguments, "argument", "name=pattern"),
        reason=fields["reason"] or None,
        id_prefix=fields["id_prefix"] or None,
        ids=ids or None,
        text=fields["text"] or None,
        **{name: seconds_of(fields[name]) for name in _AGES if fields[name]},
    )


def narrowed(meant: TaskFilter, act: str) -> TaskFilter:
    """The filter, for those states that an act applies to.

    Raises:
        UsageError: it applies to none that the filter means.
    """
    states = [state for state in meant.states if state in ACTS[act]]
    if not states:
        raise UsageError(
            f"{act} applies to tasks that are {', '.join(ACTS[act])}, not {', '.join(meant.states)}"
        )
    return replace(meant, state=states)


async def search_page(engine: AnyEngine, query: QueryParams) -> dict[str, Any]:
    """The context of the page: the form, and what was found if it was filled in."""
    context: dict[str, Any] = {
        "is_still": True,  # a search, not to be repeated every second
        "all_states": FILTER_STATES,
        "error": "",
        "tasks": (),
        "count": None,
        "more": "",
        "is_short": False,
        "has_cut_previews": False,
        "acts": (),
        "hints": (),
        "is_asked": False,
        "after": query.get("cursor", ""),
        "now": source_of(engine).clock.wall_us() / 1e6,
    }
    try:
        search = search_of(query)
    except UsageError as error:
        given = {name: query.get(name, "")[:_TEXT_MAX] for name in _TEXTS}
        states, labels = query.getlist("state"), query.getlist("label")
        arguments = query.getlist("argument")
        empty = Search(given, states, labels, arguments, (), False, _NONE, "")
        return context | {"search": empty, "error": str(error)}
    context["search"] = search
    if not search.address and query.get("all", "") != "1":
        return context
    page = await engine.find(
        search.meant, limit=PAGE, cursor=context["after"] or None, payloads=False
    )
    if page.cursor is None and not context["after"]:
        count = FoundCount(len(page), is_exact=True)
    elif query.get("count", "") == "all":
        count = await engine.count(search.meant)
    else:
        count = await engine.count(search.meant, looks=COUNT_LOOKS)
    acts = [act for act in ACTS if set(ACTS[act]) & set(search.meant.states)]
    return context | {
        "is_asked": True,
        "tasks": page.tasks,
        "more": page.cursor or "",
        "is_short": page.is_short,
        "has_cut_previews": page.has_cut_previews or count.has_cut_previews,
        "count": count,
        "acts": acts,
        "hints": await misspelt_arguments(engine, search.meant) if not count.count else (),
    }


_NONE: Final = TaskFilter()
