"""``unique=`` and ``unique_by=``: the dedup key of a call, made of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....repository.model.calls.unique_keys import (
    ALL_ARGUMENTS,
    BY_CODE,
    digest_of,
    key_of_arguments,
    key_of_value,
)

if TYPE_CHECKING:
    from ..typed.signature import TypedSignature

__all__ = ["UniqueBy", "Uniqueness", "uniqueness_of"]

UniqueBy = str | Sequence[str] | Callable[[Any], Any]


class Uniqueness:
    """How calls of one function are told apart.

    Args:
        name: of the function.
        signature: the parameters that a task carries.
        typed: encodes defaults as they are stored.
        by: names of parameters, or a callable of all arguments.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        typed: TypedSignature,
        by: tuple[str, ...] | Callable[[Any], Any],
    ) -> None:
        self._name = name
        self._signature = signature
        self._typed = typed
        self._by = by
        self._defaults: dict[str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that count, as they are published."""
        return (BY_CODE,) if callable(self._by) else self._by

    @property
    def defaults(self) -> dict[str, str]:
        """Hashes of the defaults: an argument that equals its default counts as left out."""
        if self._defaults is None:
            self._defaults = {}
            for one in self._signature.parameters.values():
                if one.default is not one.empty:
                    try:
                        stored = self._typed.encode({one.name: one.default})[one.name]
                        self._defaults[one.name] = digest_of(stored)
                    except UsageError:
                        continue  # no call can give what its annotation refuses
        return self._defaults

    def key(self, stored: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the dedup key of a call.

        Args:
            stored: its arguments as they are stored.
            args: as given.
            kwargs: as given.

        Raises:
            UsageError: ``unique_by`` raised, or returned something that is not plain.
        """
        if not callable(self._by):
            try:
                return key_of_arguments(self._name, self._by, stored, self.defaults)
            except UsageError as error:
                raise UsageError(f"{self._name}(): {error}: name others, unique_by=…") from error
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            value = self._by(SimpleNamespace(**bound.arguments))
        except Exception as error:
            raise UsageError(f"{self._name}(): unique_by raised {error!r:.200}") from error
        try:
            return key_of_value(self._name, value)
        except UsageError as error:
            raise UsageError(
                f"{self._name}(): unique_by returned {value!r:.80}: {error}"
            ) from error


def uniqueness_of(
    name: str,
    signature: inspect.Signature,
    typed: TypedSignature,
    *,
    unique: bool,
    unique_by: UniqueBy | None,
) -> Uniqueness | None:
    """Return what the options say; None: calls are not unique.

    Raises:
        UsageError: a name is no parameter, or an option is of another type.
    """
    if not isinstance(unique, bool):
        raise UsageError(f"unique must be True or False, not {unique!r:.80}")
    if unique_by is None:
        by: Any = (ALL_ARGUMENTS,)
        return Uniqueness(name, signature, typed, by) if unique else None
    if callable(unique_by):
        return Uniqueness(name, signature, typed, unique_by)
    names = (unique_by,) if isinstance(unique_by, str) else tuple(unique_by)
    known = [
        one.name
        for one in signature.parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    wrong = [one for one in names if one not in known]
    if wrong or not names:
        raise UsageError(
            f"{name}{signature}: unique_by takes names of parameters, or a callable; "
            f"{wrong[0]!r} is none of {known}"
            if wrong
            else f"{name}: unique_by names no parameter"
        )
    return Uniqueness(name, signature, typed, names)
