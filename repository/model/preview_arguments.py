"""Arguments as a preview shows them, and patterns that are held against them.

``to='a@example.org', n=3`` has two. A text is compared without its quotes, anything else as it is
shown. What was cut decides nothing: a search says that it has passed such previews.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from .preview_cuts import CUT

__all__ = ["argument_names", "arguments_fit", "plain_piece"]

_NAME: Final = r"[^\W\d]\w*="
_END: Final = rf"(?=, {_NAME}|, {CUT}\Z|\Z)"  # of a value
_BEGIN: Final = re.compile(rf"({_NAME})")
_QUOTED: Final = r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
_VALUE: Final = re.compile(rf"(?:{_QUOTED}|.)*?{_END}", re.DOTALL)  # an end in quotes is none
_AS_CUT: Final = re.compile(rf".*?{_END}", re.DOTALL)
_LITERAL: Final = re.compile(_QUOTED, re.DOTALL)
# The escapes of a literal as Python writes it, and half of one at the end of a text that was cut.
_ESCAPE: Final = re.compile(
    r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|(?:x.?|u.{0,3}|U.{0,7})?\Z)"""
)
_ENDS: Final[Mapping[str, str]] = {"[": "]", "(": ")", "{": "}", "'": "'", '"': '"'}
ANY: Final = "*"


class _Shown(NamedTuple):
    """The value of an argument: all of it, or how it begins."""

    text: str
    is_cut: bool


def arguments_fit(patterns: Mapping[str, str], preview: str) -> bool | None:
    """Whether every argument that is named is there and has its pattern; None: it may have.

    Args:
        patterns: by name of the argument; ``*`` stands for any characters, case does not count.
        preview: of a task.
    """
    values, is_whole = _arguments(preview)
    may = False
    for name, pattern in patterns.items():
        value = values.get(name)
        fits = _fits(pattern.casefold(), value) if value else None if not is_whole else False
        if fits is False:
            return False
        may |= fits is None
    return None if may else True


def argument_names(preview: str) -> list[str]:
    """The names of the arguments that a preview shows, in its order."""
    return list(_arguments(preview)[0])


def plain_piece(patterns: Mapping[str, str]) -> str | None:
    """The longest piece that a fitting preview has in it as it stands, in any case; None: none."""
    pieces = [piece for pattern in patterns.values() for piece in pattern.split(ANY)]
    plain = [piece for piece in pieces if piece.isprintable() and not set(piece) & set("'\"\\…")]
    return max(plain, key=len, default="") or None


def _arguments(preview: str) -> tuple[dict[str, _Shown], bool]:
    """Arguments by name, and whether these are all of them, as far as can be told."""
    values: dict[str, _Shown] = {}
    at = 0
    while found := _BEGIN.match(preview, at):
        value = _value_at(preview, found.end())
        if value is None:
            return values, False
        values.setdefault(found[1][:-1], _shown(value))
        at = found.end() + len(value) + 2
    return values, CUT not in preview


def _value_at(preview: str, at: int) -> str | None:
    """The value that begins there; None where it could end in two places.

    The cut of a text takes its closing quote away, and the next quote is then that of a later
    argument: ``a='long…, b='x'``.
    """
    value, as_cut = "", ""
    if found := _VALUE.match(preview, at):
        value = found[0]
    if found := _AS_CUT.match(preview, at):
        as_cut = found[0]
    if value != as_cut:
        rest = _LITERAL.sub("", value)
        if "'" in rest or '"' in rest:
            value = as_cut if CUT in as_cut or CUT not in value else ""
        elif CUT in as_cut:
            value = ""
    end = _ENDS.get(value[:1], "")
    return value if value and value.endswith((end, CUT)) and value != end else None


def _shown(value: str) -> _Shown:
    literal = _LITERAL.match(value)
    if literal is not None and value[literal.end() :] in ("", CUT):
        return _Shown(_unescaped(literal[0][1:-1]), literal.end() < len(value))
    text, cut, _ = value.partition(CUT)
    if cut and text[:1] in ("'", '"'):
        text = _unescaped(text[1:])
    return _Shown(text, bool(cut))


def _unescaped(text: str) -> str:
    """The text of a literal; half an escape at its end is left out, what is none stays."""
    return _ESCAPE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("latin-1", "replace").decode("unicode_escape", "ignore")


def _fits(pattern: str, value: _Shown) -> bool | None:
    text = value.text.casefold()
    if _globs(pattern, text):
        return True if not value.is_cut or pattern.endswith(ANY) else None
    if not value.is_cut:
        return False
    start, star, _ = pattern.partition(ANY)
    may = start.startswith(text) or (bool(star) and text.startswith(start))
    return None if may else False


def _globs(pattern: str, text: str) -> bool:
    """Whether the text has the pattern. Piece by piece from the left: no backtracking."""
    first, *rest = pattern.split(ANY)
    if not rest:
        return text == pattern
    *middle, last = rest
    end = len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or end < len(first):
        return False
    at = len(first)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
