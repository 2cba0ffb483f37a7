"""The label of a call by which its queue counts leases (``key_concurrency``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import UsageError
from .unique_keys import BY_CODE

__all__ = ["label_of_arguments", "value_of_label"]


def value_of_label(function: str, label: str, value: Any) -> str | None:
    """The value of a label as text; None: the call has no such label, and no limit of its key.

    Raises:
        UsageError: it is neither text nor a whole number.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UsageError(
        f"{function}(): the label {label!r} of its limit must be a str, an int or None, not "
        f"{type(value).__name__}: say with limit_by= which value it is"
    )


def label_of_arguments(
    function: str, limit_by: tuple[str, str], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """The label of a call by name, from what its worker has published.

    Args:
        function: its name.
        limit_by: the label, and the parameter that has its value.
        arguments: by name.

    Raises:
        UsageError: its value is not known here.
    """
    label, by = limit_by
    if by == BY_CODE:
        raise UsageError(
            f"limit_by of {function!r} is code of its app: enqueue it with the app "
            f"(lodeq enqueue … --app module:app), or give the label {label!r}"
        )
    if by not in arguments:
        raise UsageError(
            f"{function!r} has a limit by its argument {by!r}, whose default is not known here: "
            f"give it, or the label {label!r}"
        )
    value = value_of_label(function, label, arguments[by])
    return {} if value is None else {label: value}
