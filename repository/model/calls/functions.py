"""Published functions: what workers say of their task functions, for whoever enqueues by name.

A document of one is what a row of the store has and what travels over the wire; the bounds of
each member are here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

import msgpack

from ....engine.records.face import PREVIEW_BYTES_MAX
from ....engine.records.keyspace import check_name
from ....engine.values import FUNCTION_BYTES_MAX, FUNCTION_NAME_BYTES_MAX
from ....errors import RecordCorruptError, UsageError
from ..arguments import check_attempts, check_priority, check_retry, duration_s
from ..json_values import loads
from ..preview_cuts import SEEN_MAX
from ..task_options import PRIORITY_DEFAULT
from ..values import Backoff, NewTask
from .limit_keys import label_of_arguments
from .previews import preview_of
from .schemas import SCHEMA_BYTES_MAX, first_mismatch
from .unique_keys import BY_CODE, key_of_arguments

__all__ = [
    "FUNCTIONS_MAX",
    "NAME_HEADER",
    "FunctionParameter",
    "PublishedFunction",
    "argument_of_text",
    "check_arguments",
    "check_function",
    "check_functions",
    "cut",
    "function_doc",
    "function_of",
    "not_json",
    "pack_function",
    "task_of_function",
    "unknown_function",
    "unpack_function",
]

FUNCTIONS_MAX: Final = 10_000  # of a store
PARAMETERS_MAX: Final = 64
TEXT_BYTES_MAX: Final = 64  # of a parameter
NAMES_BYTES_MAX: Final = 128  # of a parameter's name, a cron expression, a time zone
DOC_BYTES_MAX: Final = 200
SHOWN_MAX: Final = 12  # names in an error
NAME_HEADER: Final = "lodeq.task"  # names the function of a task


_RETRY: Final = Backoff()
_FACE: Final = ("labels", "preview")  # with the function
_JSON_STARTS: Final = ("[", "{", '"')
_JSON_SCHEMAS: Final = ('["list"', '["tuple"', '["map"', '["object"')  # no text is one of them
_TEXT: Final = re.compile(r"^\w+: (str|'str'|\"str\"|str \| None|Optional\[str\])( =|$)")
_TEXT_SCHEMAS: Final = ('"str"', '["or","str","None"]', '["or","None","str"]')


@dataclass(frozen=True, slots=True)
class FunctionParameter:
    """One parameter of a published function. ``kind``: required, optional or rest (``**``).

    ``text`` is how it is written in the source, cut to 64 bytes. ``schema`` says which values it
    takes, as JSON of at most 512 bytes (docs/typed-arguments.md); empty: any.
    """

    name: str
    kind: str = "required"
    text: str = ""
    schema: str = ""


@dataclass(frozen=True, slots=True)
class PublishedFunction:
    """A task function as its workers published it: its policy, its parameters, its schedule.

    Durations are seconds. ``parameters`` is None where they did not fit; then names of arguments
    are not checked. ``signature`` is a hash of name and parameters: two deployed versions differ
    in it. ``has_codec``: arguments are packed by a codec of the app. ``cron`` is empty for a
    function without a schedule. ``faces``: tasks carry function and preview; ``is_redacted``: a
    hook of the app sees previews first, so who has no such hook stores none. ``unique``: the
    parameters by which a call is unique, ``*`` for all, ``?`` where code of the app says;
    ``defaults`` has hashes of their defaults. ``limit_by``: the label by which its queue counts
    leases, and the parameter that has its value, ``?`` where code of the app says.
    """

    queue: str
    name: str
    max_attempts: int = 5
    retry: Backoff = _RETRY
    retention: float = 3600.0
    dead_retention: float = 604_800.0
    priority: int = PRIORITY_DEFAULT
    ttl: float | None = None
    timeout: float | None = None
    parameters: Sequence[FunctionParameter] | None = ()
    signature: str = ""
    doc: str = ""
    cron: str = ""
    tz: str = ""
    has_codec: bool = False
    faces: bool = True
    is_redacted: bool = False
    unique: Sequence[str] = ()
    defaults: Mapping[str, str] | None = None
    limit_by: tuple[str, str] | tuple[()] = ()
    published_at: datetime | None = None

    @property
    def call(self) -> str:
        """The function with its parameters, as in its source."""
        if self.parameters is None:
            return f"{self.name}(…)"
        return f"{self.name}({', '.join(one.text or one.name for one in self.parameters)})"


_TEXTS: Final = {"signature": 64, "doc": DOC_BYTES_MAX, "cron": 128, "tz": 128}
_KINDS: Final = ("required", "optional", "rest")


def cut(text: str, bytes_max: int) -> str:
    """A text of so many bytes of UTF-8 at most, cut at a character's edge."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    return raw[: bytes_max - 3].decode("utf-8", "ignore") + "…"


def check_functions(given: object) -> list[PublishedFunction]:
    """Functions that may be stored."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"functions must be a list of them, not {type(given).__name__}")
    return [check_function(one) for one in given]


def check_function(given: PublishedFunction) -> PublishedFunction:
    """A function that may be stored: bounded, and of the right types."""
    if not isinstance(given, PublishedFunction):
        raise UsageError(f"expected a lodeq.PublishedFunction, not {type(given).__name__}")
    check_name(given.queue, "queue")
    if not _is_text(given.name, FUNCTION_NAME_BYTES_MAX) or not given.name:
        raise UsageError(f"name {given.name!r:.80} of a function must be a str of 1 to 256 bytes")
    check_attempts(given.max_attempts)
    check_priority(given.priority)
    check_retry(given.retry)
    for name in ("retention", "dead_retention", "ttl", "timeout"):
        value = getattr(given, name)
        if value is not None:
            seconds = duration_s(value, name)
            if isinstance(value, timedelta):
                changed: dict[str, Any] = {name: seconds}
                given = replace(given, **changed)
    for name, bytes_max in _TEXTS.items():
        if not _is_text(getattr(given, name), bytes_max):
            raise UsageError(f"{name} of a function must be a str of at most {bytes_max} bytes")
    for name in ("has_codec", "faces", "is_redacted"):
        if type(getattr(given, name)) is not bool:
            raise UsageError(f"{name} of a function must be True or False")
    at = given.published_at
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        raise UsageError(f"published_at must be a datetime with a time zone, not {at!r:.80}")
    _check_unique(given)
    parameters = given.parameters
    if parameters is not None:
        if not isinstance(parameters, list | tuple):
            raise UsageError(f"parameters must be a list, not {type(parameters).__name__}")
        if len(parameters) > PARAMETERS_MAX:
            return check_function(replace(given, parameters=None))
        for one in parameters:
            if (
                not isinstance(one, FunctionParameter)
                or one.kind not in _KINDS
                or not _is_text(one.name, NAMES_BYTES_MAX)
                or not one.name
                or not _is_text(one.text, TEXT_BYTES_MAX)
                or not _is_text(one.schema, SCHEMA_BYTES_MAX)
            ):
                raise UsageError(f"{one!r:.200} is no parameter of a published function")
    return given


def _check_unique(given: PublishedFunction) -> None:
    names, defaults = given.unique, given.defaults
    if (
        not isinstance(names, list | tuple)
        or len(names) > PARAMETERS_MAX
        or not all(_is_text(one, NAMES_BYTES_MAX) for one in names)
    ):
        raise UsageError("unique of a function must be a list of names of parameters")
    if defaults is not None and (
        not isinstance(defaults, Mapping)
        or len(defaults) > PARAMETERS_MAX
        or not all(_is_text(one, NAMES_BYTES_MAX) for pair in defaults.items() for one in pair)
    ):
        raise UsageError("defaults of a function must be hashes by name")
    by = given.limit_by
    if by and (
        not isinstance(by, list | tuple)
        or len(by) != 2
        or not all(_is_text(one, NAMES_BYTES_MAX) and one for one in by)
    ):
        raise UsageError("limit_by of a function must be a label and the name of a parameter")


def _is_text(value: object, bytes_max: int) -> bool:
    """Whether it is a str that can be stored, of so many bytes of UTF-8 at most."""
    try:
        return isinstance(value, str) and len(value.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def function_doc(one: PublishedFunction) -> dict[str, Any]:
    """Write a function. Members that have their default are left out."""
    doc: dict[str, Any] = {"queue": one.queue, "name": one.name}
    for field in fields(PublishedFunction)[2:]:
        value = getattr(one, field.name)
        if value != field.default:
            doc[field.name] = value
    if "retry" in doc:
        b = one.retry
        doc["retry"] = {"kind": b.kind, "base": b.base, "factor": b.factor, "cap": b.cap}
    if doc.get("parameters") is not None:
        doc["parameters"] = [
            [p.name, p.kind, p.text, p.schema] if p.schema else [p.name, p.kind, p.text]
            for p in one.parameters or ()
        ]
    if one.published_at is not None:
        doc["published_at"] = one.published_at.isoformat()
    return doc


def function_of(doc: Mapping[str, Any]) -> PublishedFunction:
    """Read a function; members that this release does not know are passed over."""
    if not isinstance(doc, Mapping):
        raise UsageError("the document of a published function is a mapping")
    given = {one.name: doc[one.name] for one in fields(PublishedFunction) if one.name in doc}
    try:
        if "retry" in given:
            given["retry"] = Backoff(**given["retry"])
        if given.get("parameters") is not None:
            given["parameters"] = tuple(FunctionParameter(*one) for one in given["parameters"])
        if "unique" in given:
            given["unique"] = tuple(given["unique"])
        if "limit_by" in given:
            given["limit_by"] = tuple(given["limit_by"])
        if given.get("published_at") is not None:
            given["published_at"] = datetime.fromisoformat(given["published_at"])
        return PublishedFunction(**given)
    except (TypeError, ValueError) as exc:
        raise UsageError(f"no document of a published function: {exc}") from exc


def pack_function(one: PublishedFunction) -> bytes:
    """The facts of a row. What does not fit goes: schemas, the longest first, texts, parameters."""
    doc = function_doc(replace(one, published_at=None))
    del doc["queue"], doc["name"]
    facts: bytes = msgpack.packb(doc)
    if len(facts) > FUNCTION_BYTES_MAX:
        by_length = sorted(doc["parameters"], key=lambda one: -sum(map(len, one[3:])))
        for parameter in by_length:
            del parameter[3:]
            facts = msgpack.packb(doc)
            if len(facts) <= FUNCTION_BYTES_MAX:
                return facts
        doc["parameters"] = [[name, kind, ""] for name, kind, _ in doc["parameters"]]
        facts = msgpack.packb(doc)
    if len(facts) > FUNCTION_BYTES_MAX:
        doc["parameters"] = None
        facts = msgpack.packb(doc)
    return facts


def unpack_function(
    queue: bytes, name: bytes, published_us: int, facts: bytes
) -> PublishedFunction:
    """A function from its row.

    Args:
        queue: from the key.
        name: from the key.
        published_us: wall microseconds.
        facts: from ``pack_function``.
    """
    try:
        doc = msgpack.unpackb(facts)
        found = function_of({**doc, "queue": queue.decode(), "name": name.decode()})
        moment = datetime.fromtimestamp(published_us / 1e6, UTC)
    except (TypeError, ValueError, OverflowError, OSError, msgpack.UnpackException) as exc:
        raise RecordCorruptError(f"function row: {exc}") from exc
    return replace(found, published_at=moment)


# -- to enqueue by name ----------------------------------------------------------------


def unknown_function(
    queue: str, name: str, known: Iterable[PublishedFunction], *, more: bool = False
) -> UsageError:
    """The error for a function that nobody has published, with what exists.

    Args:
        queue: that was named.
        name: that was named.
        known: what the store has.
        more: there are others that are not in ``known``.
    """
    found = list(known)
    here = sorted(one.name for one in found if one.queue == queue)
    if here:
        exists = f"queue {queue!r} has {_some(here)}"
        near = get_close_matches(name, here, 1)
        if near:
            exists += f"; did you mean {near[0]!r}?"
    elif found:
        exists = f"queues with functions: {_some(sorted({one.queue for one in found}), more)}"
    else:
        exists = "none is: workers publish theirs when they start"
    return UsageError(f"no function {name!r} is published for queue {queue!r}; {exists}")


def _some(names: Sequence[str], more: bool = False) -> str:
    shown = ", ".join(names[:SHOWN_MAX])
    return f"{shown}, …" if more or len(names) > SHOWN_MAX else shown


def check_arguments(one: PublishedFunction, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the function cannot take, with the parameters it has."""
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise UsageError(f"arguments of {one.name!r} must be a mapping of names to values")
    if one.parameters is None:
        return
    names = [p.name for p in one.parameters if p.kind != "rest"]
    is_open = len(names) < len(one.parameters)
    for name in arguments:
        if name not in names and not is_open:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{one.call} has no parameter {name!r}{hint}")
    for p in one.parameters:
        if p.kind == "required" and p.name not in arguments:
            raise UsageError(f"{one.call} needs the argument {p.name!r}")
    for p in one.parameters:
        if p.schema and p.kind == "rest":
            rest = [(name, value) for name, value in arguments.items() if name not in names]
            found = first_mismatch(p.schema, rest)
        elif p.schema and p.name in arguments:
            found = first_mismatch(p.schema, [(p.name, arguments[p.name])])
        else:
            continue
        if found is not None:
            name, error = found
            raise UsageError(f"{one.name}(): argument {name}{error.path}: {error.what}")


def argument_of_text(p: FunctionParameter, text: str) -> Any:
    """The value that a text of a form or a command line means for a parameter.

    The text itself for a ``str``; else what it is as JSON; the text again if only that fits.

    Raises:
        UsageError: a list or a map is expected, and the text is not JSON.
    """
    if p.schema in _TEXT_SCHEMAS or (not p.schema and _TEXT.search(p.text)):
        return text
    try:
        value = loads(text)
    except (ValueError, RecursionError) as exc:
        is_meant = text.startswith(_JSON_STARTS) or p.schema.startswith(_JSON_SCHEMAS)
        if p.schema and is_meant and not _takes(p, text):
            raise UsageError(f"argument {p.name}: {not_json(text, exc)}") from None
        return text
    if p.schema and not _takes(p, value) and _takes(p, text):
        return text
    return value


def not_json(text: str, error: Exception) -> str:
    """Say why a text is not JSON, and how a string is written there.

    Args:
        text: as it was given.
        error: that its reading raised.
    """
    if isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at character {error.pos + 1}"
    else:
        why = "nested too deeply"
    return (
        f"{text!r:.80} is not JSON ({why}): there strings and names have double quotes, as in "
        '["a", "b"] or {"to": "a"}; in a shell put single quotes around it all'
    )


def _takes(p: FunctionParameter, value: Any) -> bool:
    return first_mismatch(p.schema, [(p.name, value)]) is None


def task_of_function(
    one: PublishedFunction,
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    redacts: bool = False,
) -> NewTask:
    """A task for the function, with its policy and face, or ``UsageError``.

    Args:
        one: as published.
        arguments: by name.
        options: fields of ``NewTask`` that were given; those that are None take the policy's.
        redacts: previews pass a hook of this process; without one, those of an app that has a hook
            are not stored.
    """
    check_arguments(one, arguments)
    given = {name: value for name, value in options.items() if value is not None}
    headers = given.pop("headers", None)
    if headers is not None and not isinstance(headers, Mapping):
        raise UsageError("headers must be a mapping with str keys")
    policy: dict[str, Any] = {
        "max_attempts": one.max_attempts,
        "retry": one.retry,
        "retention": one.retention,
        "dead_retention": one.dead_retention,
        "priority": one.priority,
        "ttl": one.ttl,
    }
    if not one.faces:
        given = {name: value for name, value in given.items() if name not in _FACE}
    else:
        policy["function"] = one.name
        if redacts or not one.is_redacted:
            policy["preview"] = preview_of(arguments, SEEN_MAX if redacts else PREVIEW_BYTES_MAX)
    if one.unique and "dedup_key" not in given:
        if BY_CODE in one.unique:
            raise UsageError(
                f"unique_by of {one.name!r} is code of its app: enqueue it with the app "
                "(lodeq enqueue … --app module:app), or give a dedup_key"
            )
        policy["dedup_key"] = key_of_arguments(one.name, one.unique, arguments, one.defaults or {})
    labels = given.get("labels", {})
    if one.limit_by and isinstance(labels, Mapping) and one.limit_by[0] not in labels:
        given["labels"] = {**labels, **label_of_arguments(one.name, one.limit_by, arguments)}
    return NewTask(
        dict(arguments),
        one.queue,
        headers={**(headers or {}), NAME_HEADER: one.name},
        **{**policy, **given},
    )
