"""A value that is not what a type or a schema says, and where in the argument it stands."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["Mismatch", "key_step", "name_of", "show"]

SHOWN: Final = 60  # characters of a value in an error


def name_of(kind: object) -> str:
    """Return an annotation as its author wrote it."""
    if kind is None or kind is type(None):
        return "None"
    if isinstance(kind, type) and not getattr(kind, "__args__", ()):
        return kind.__qualname__.rpartition("<locals>.")[2]
    return str(kind).replace("typing.", "")


def show(value: Any) -> str:
    """Return type and value, cut: ``str 'x'``."""
    if value is None:
        return "None"
    return f"{name_of(type(value))} {_cut_repr(value)}"


def key_step(key: Any) -> str:
    """Return the step to the value of a key, cut: ``['x']``."""
    return f"[{_cut_repr(key)}]"


def _cut_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's own repr may raise anything
        text = "…"
    return f"{text[: SHOWN - 1]}…" if len(text) > SHOWN else text


class Mismatch(Exception):  # noqa: N818 - caught here, and raised again as a UsageError
    """A value does not fit; containers add where it stands on the way up."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.cause: Exception | None = None  # of a library that has checked it
        self._steps: list[str] = []

    @classmethod
    def expected(cls, kind: str, value: Any) -> Mismatch:
        """Return the usual one: another type was expected."""
        return cls(f"expected {kind}, got {show(value)}")

    @classmethod
    def expected_object(cls, kind: str, value: Any) -> Mismatch:
        """Return that of an object with fields: of a dict it says how to make the object."""
        error = cls.expected(kind, value)
        return cls(f"{error.what}; pass {kind}(**…)") if isinstance(value, dict) else error

    def below(self, step: str) -> Mismatch:
        """Note one step of the way, from the inside out: ``.zip``, ``[2]``."""
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        """The way to the value, from the argument on."""
        return "".join(reversed(self._steps))
