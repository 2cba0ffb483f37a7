"""Configuration of a job: fields of a frozen dataclass, which are its command's options too.

::

    @dataclass(frozen=True, kw_only=True)
    class Config(StoreConfig):
        out: str = option("folder to write to")
        days: int | None = option("no older ones", default=None)

A field without a default is required. ``_`` in a name is ``-`` on the command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ....errors import UsageError

__all__ = ["StoreConfig", "add_options", "config_from", "option"]

_TYPES: Final = (str, int, float)


def option(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    positional: bool = False,
    choices: Sequence[str] | None = None,
) -> Any:
    """Define a field with a help text.

    Types: ``str``, ``int``, ``float``, each also ``| None``; ``bool`` (a flag, False by default);
    ``tuple[str, ...]`` (may be given several times).

    Args:
        help: shown by ``--help``.
        default: without one the option is required.
        positional: an argument instead of an option.
        choices: the texts it accepts; None for any.
    """
    metadata = {"help": help, "positional": positional, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Options of every job on a store."""

    store: str = option("folder of the store", positional=True)


def add_options(parser: argparse.ArgumentParser, config: type[Any]) -> None:
    """Add the fields of ``config`` to the parser as arguments."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        arguments: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%")}
        kind = _plain(hints[field.name])
        needed = field.default is dataclasses.MISSING
        if kind is bool:
            arguments["action"] = "store_true"
        elif kind is tuple:
            arguments |= {"action": "append", "metavar": "X"}
        else:
            arguments |= {"type": kind, "choices": field.metadata["choices"]}
            if field.default not in (dataclasses.MISSING, None):
                arguments["help"] += f" (default: {field.default})"
        if field.metadata["positional"]:
            parser.add_argument(field.name, metavar=field.name.upper(), **arguments)
            continue
        if not arguments.get("choices") and "action" not in arguments:
            arguments["metavar"] = "N" if kind in (int, float) else "X"
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, dest=field.name, required=needed, **arguments)


def _plain(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in typing.get_args(hint) if one is not type(None))
    plain = typing.get_origin(hint) or hint
    if plain not in (*_TYPES, bool, tuple):
        raise TypeError(f"an option cannot have type {hint!r}")
    return typing.cast("type", plain)


def config_from(config: type[Any], given: Mapping[str, Any]) -> Any:
    """Make a ``config`` of parsed arguments, with defaults for the others.

    Raises ``UsageError`` if the config finds an error in them.
    """
    values = {}
    for field in dataclasses.fields(config):
        value = given.get(field.name)
        if value is not None:
            values[field.name] = tuple(value) if isinstance(value, list) else value
    try:
        return config(**values)
    except (TypeError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
