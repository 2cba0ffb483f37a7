"""``key_concurrency=`` and ``limit_by=``: the label of a call by which its queue counts leases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....repository.model.calls.limit_keys import value_of_label
from ....repository.model.calls.unique_keys import BY_CODE
from ....repository.model.queue_settings import label_of

if TYPE_CHECKING:
    from ..typed.signature import TypedSignature

__all__ = ["LimitBy", "LimitKey", "limit_key_of"]

LimitBy = str | Callable[[Any], Any]


class LimitKey:
    """The label that calls of one function get.

    Args:
        name: of the function.
        signature: the parameters that a task carries.
        typed: encodes a default as it is stored.
        label: its name.
        by: the name of a parameter, or a callable of all arguments.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        typed: TypedSignature,
        label: str,
        by: LimitBy,
    ) -> None:
        self._name = name
        self._signature = signature
        self._typed = typed
        self._label = label
        self._by = by

    @property
    def published(self) -> tuple[str, str]:
        """The label, and the parameter that has its value."""
        return self._label, self._by if isinstance(self._by, str) else BY_CODE

    def labels(
        self,
        given: Mapping[str, str] | None,
        stored: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Mapping[str, str] | None:
        """Return the labels of a call. One that is given stays as it is.

        Args:
            given: labels.
            stored: the arguments as they are stored.
            args: as given.
            kwargs: as given.

        Raises:
            UsageError: ``limit_by`` raised, or it gives neither text nor a whole number nor None.
        """
        if given is not None and (not isinstance(given, Mapping) or self._label in given):
            return given
        value = value_of_label(self._name, self._label, self._value(stored, args, kwargs))
        return given if value is None else {**(given or {}), self._label: value}

    def _value(self, stored: Mapping[str, Any], args: Any, kwargs: Any) -> Any:
        by = self._by
        if isinstance(by, str):
            if by in stored:
                return stored[by]
            default = self._signature.parameters[by].default
            return None if default is None else self._typed.encode({by: default})[by]
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            return by(SimpleNamespace(**bound.arguments))
        except Exception as error:
            raise UsageError(f"{self._name}(): limit_by raised {error!r:.200}") from error


def limit_key_of(
    name: str,
    signature: inspect.Signature,
    typed: TypedSignature,
    *,
    key_concurrency: str | None,
    limit_by: LimitBy | None,
) -> LimitKey | None:
    """Return what the options say; None: the function has no limit of keys.

    Raises:
        UsageError: the parameter is not there, or one option lacks the other.
    """
    if key_concurrency is None:
        if limit_by is not None:
            raise UsageError(f'{name}: limit_by needs key_concurrency, such as "2/customer"')
        return None
    label = label_of(key_concurrency)
    by = label if limit_by is None else limit_by
    if callable(by):
        return LimitKey(name, signature, typed, label, by)
    if not isinstance(by, str):
        raise UsageError(f"{name}: limit_by takes the name of a parameter, or a callable: {by!r}")
    known = [
        one.name
        for one in signature.parameters.values()
        if one.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    if by not in known:
        raise UsageError(
            f"{name}{signature}: key_concurrency={key_concurrency!r} counts by {by!r}, which is "
            f"none of {known}: say with limit_by= where its value comes from"
        )
    return LimitKey(name, signature, typed, label, by)
