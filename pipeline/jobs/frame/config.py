"""What a job can be told: fields of a frozen dataclass, which are its command's options too.

::

    @dataclass(frozen=True, kw_only=True)
    class Config(StoreConfig):
        out: str = option("folder to write to")
        days: int | None = option("no older ones", default=None)

A field without a default must be given. ``_`` in names is ``-`` on the command line.
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
    """A field that says what it is for.

    Types: ``str``, ``int``, ``float``, each also ``| None``; ``bool`` (a flag, False by default);
    ``tuple[str, ...]`` (may be given several times).
    """
    told = {"help": help, "positional": positional, "choices": choices}
    return dataclasses.field(default=default, metadata=told)


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """What every job on a store is told."""

    store: str = option("folder of the store", positional=True)


def add_options(parser: argparse.ArgumentParser, config: type[Any]) -> None:
    """The fields of ``config`` as arguments."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        told: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%")}
        kind = _plain(hints[field.name])
        needed = field.default is dataclasses.MISSING
        if kind is bool:
            told["action"] = "store_true"
        elif kind is tuple:
            told |= {"action": "append", "metavar": "X"}
        else:
            told |= {"type": kind, "choices": field.metadata["choices"]}
            if field.default not in (dataclasses.MISSING, None):
                told["help"] += f" (default: {field.default})"
        if field.metadata["positional"]:
            parser.add_argument(field.name, metavar=field.name.upper(), **told)
            continue
        if not told.get("choices") and "action" not in told:
            told["metavar"] = "N" if kind in (int, float) else "X"
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, dest=field.name, required=needed, **told)


def _plain(hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in typing.get_args(hint) if one is not type(None))
    plain = typing.get_origin(hint) or hint
    if plain not in (*_TYPES, bool, tuple):
        raise TypeError(f"no option can be of type {hint!r}")
    return typing.cast("type", plain)


def config_from(config: type[Any], given: Mapping[str, Any]) -> Any:
    """A ``config`` of what was parsed; what was not given has its default.

    Raises ``UsageError`` if the config itself finds something wrong.
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
