"""Document reader: turns what a client has sent into the documents of ``schemas``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, inspect

from ...client.documents.wire import JSON, Form, Stored
from ...engine.runtime.task_id import TaskId
from ...errors import LimitError, UsageError
from .schemas import Query, Request

__all__ = ["at_most", "id_of", "key_of", "moment_of", "read", "read_query", "stored_of"]

R = TypeVar("R", bound=Request)
Q = TypeVar("Q", bound=Query)

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")
_MOMENT: Final = re.compile(  # RFC 3339
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d(:\d\d(\.\d+)?)?)", re.ASCII
)
_FLAGS: Final = {"true": True, "false": False}
_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,4})?")
_CHARS_MAX: Final = 300  # of an error: names come from the client

# What msgspec's errors say: which member, what is wrong, and how types are called.
_PATH: Final = re.compile(r"(?:key` in `)?\$\.?([^`]*)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def read(form: Form, document: Any, kind: type[R]) -> R:
    """Check a document, and make the object that it describes.

    Raises:
        UsageError: a member is missing, unknown, or not what it must be; the text says which one,
            and what is accepted.
    """
    try:
        return msgspec.convert(
            _with_whole_numbers(_whole_numbers(kind), document),
            kind,
            builtin_types=None if form is JSON else (bytes,),
            dec_hook=_task_id,
        )
    except ValueError as exc:  # a ValidationError, or text that is not Unicode
        raise UsageError(_explained(str(exc), kind.what, form)) from exc


def read_query(given: Mapping[str, str], kind: type[Q]) -> Q:
    """Check the members of a query; numbers, true, false and objects are written as in JSON.

    Raises:
        UsageError: as ``read``.
    """
    readers = _readers(kind)
    document = {name: readers.get(name, str)(text) for name, text in given.items()}
    return read(JSON, document, kind)


@cache
def _readers(kind: type[Query]) -> Mapping[str, Callable[[str], Any]]:
    """Readers of the members that are not text; they leave text that is no such value."""
    found: dict[str, Callable[[str], Any]] = {}
    for field in msgspec.structs.fields(kind):
        reader = _reader_of(inspect.type_info(field.type))
        if reader is not None:
            found[field.name] = reader
    return found


def _reader_of(info: Any) -> Callable[[str], Any] | None:
    """Reader of text that stands for a value of a type; None: it is the value."""
    if isinstance(info, inspect.Metadata):
        return _reader_of(info.type)
    if isinstance(info, inspect.UnionType):  # null, and a member that is left out, have no text
        return next((found for one in info.types if (found := _reader_of(one))), None)
    if isinstance(info, inspect.BoolType):
        return lambda text: _FLAGS.get(text, text)
    if isinstance(info, inspect.IntType):
        return lambda text: int(text) if _WHOLE.fullmatch(text) else text
    if isinstance(info, inspect.FloatType):
        return lambda text: float(text) if _NUMBER.fullmatch(text) else text
    if isinstance(info, inspect.DictType | inspect.StructType):
        return _object
    return None


def _object(text: str) -> Any:
    try:
        found = JSON.loads(text.encode("utf-8", "replace"))
    except UsageError:
        return text
    return found if isinstance(found, dict) else text


def _task_id(kind: type, value: Any) -> TaskId:
    """Read the one type that msgspec does not know."""
    return id_of(value)


def id_of(value: Any) -> TaskId:
    """An id as text: a UUID, with or without its hyphens, and nothing around it; or its bytes."""
    if isinstance(value, str) and not _ID.fullmatch(value):
        raise UsageError(f"not a task id: {value[:80]!r} is not a UUID")
    return TaskId(value)


# -- whole numbers -------------------------------------------------------------------------


@cache
def _whole_numbers(kind: type[Request]) -> Any:
    return _whole_in(inspect.type_info(kind))


def _whole_in(info: Any) -> Any:
    """Where a value may have whole numbers: True for itself, its members, ``[items]``, or None."""
    if isinstance(info, inspect.Metadata):
        return _whole_in(info.type)
    if isinstance(info, inspect.IntType):
        return True
    if isinstance(info, inspect.ListType):
        items = _whole_in(info.item_type)
        return None if items is None else [items]
    if isinstance(info, inspect.UnionType):
        return next((found for one in info.types if (found := _whole_in(one))), None)
    if isinstance(info, inspect.StructType):
        found = {field.name: _whole_in(field.type) for field in info.fields}
        return {name: one for name, one in found.items() if one is not None} or None
    return None


def _with_whole_numbers(where: Any, value: Any) -> Any:
    """The value, in which a whole number is one however JSON wrote it: ``1.0``, ``1e3``."""
    if where is True:
        return int(value) if type(value) is float and value.is_integer() else value
    if type(where) is dict and type(value) is dict:
        for name, inner in where.items():
            if name in value:
                value[name] = _with_whole_numbers(inner, value[name])
    elif type(where) is list and type(value) is list:
        (inner,) = where
        for n, item in enumerate(value):
            value[n] = _with_whole_numbers(inner, item)
    return value


# -- members -------------------------------------------------------------------------------


def at_most(items: list[Any], name: str, most: int) -> None:
    """Check the length of a list.

    Raises:
        LimitError: it is longer than ``most``.
    """
    if len(items) > most:
        raise LimitError(f"{len(items)} {name} in one request, at most {most}: split it")


def stored_of(form: Form, document: Request, name: str) -> Stored | None:
    """A value of a document, as it is stored; None if it has none."""
    members = {}
    for one in (name, f"{name}_base64", f"{name}_kind"):
        given = getattr(document, one)
        if given is not UNSET:
            members[one] = given
    return form.take(members, name) if members else None


def key_of(document: Request, name: str) -> Any:
    """A dedup or shard key of a document; the engine checks it."""
    key, coded = getattr(document, name), getattr(document, f"{name}_base64")
    if coded is UNSET:
        return key
    if key is not None:
        raise UsageError(f"give {name} or {name}_base64, not both")
    return coded


def moment_of(value: object, name: str) -> datetime | None:
    """A time with its zone, or None.

    Raises:
        UsageError: it is neither text of RFC 3339 nor a timestamp of msgpack.
    """
    if value is None or isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise UsageError(f"{name} {value!r} is not a time with its zone: 2030-01-31T12:00:00Z")
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError as exc:
        raise UsageError(f"{name} {value!r} is not a time: {exc}") from exc


# -- errors --------------------------------------------------------------------------------


def _explained(text: str, what: str, form: Form) -> str:
    """Say in the client's words what msgspec refuses."""
    said, _, path = text.rpartition(" - at `")
    found = _PATH.fullmatch(path)
    if found is None:
        said = text
    where = (found[1] if found is not None else "") or what
    if unknown := _UNKNOWN.fullmatch(said):
        return f"{where[:_CHARS_MAX]} has no {unknown[1][:_CHARS_MAX]!r}"
    if missing := _MISSING.fullmatch(said):
        return f"{where[:_CHARS_MAX]} needs {missing[1]!r}"
    types = _TYPES | {"bytes": "base64 text" if form is JSON else "bytes"}

    def name(found: re.Match[str]) -> str:
        return " or ".join(types.get(one, one) for one in found[1].split(" | "))

    if said.startswith("Expected "):
        said = re.sub("`([^`]*)`", name, said)
    return f"{where[:_CHARS_MAX]}: {said[:1].lower()}{said[1:_CHARS_MAX]}"
