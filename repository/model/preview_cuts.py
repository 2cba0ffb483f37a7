"""Cuts of previews: every name and every short value stays, long values share the room.

A preview is found by its text, so an argument that is cut away cannot be found. The members of a
list or map that is too long share its part in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ...engine.records.face import PREVIEW_BYTES_MAX

__all__ = [
    "CHAR_BYTES_MAX",
    "CUT",
    "ITEM_BYTES_MIN",
    "SEEN_MAX",
    "VALUE_BYTES_MIN",
    "fit_preview",
    "is_cut",
    "share_out",
]

# Characters of a preview that a redaction sees: more than is stored, for a cut may halve a secret.
SEEN_MAX: Final = 4096
CUT: Final = "…"
_CUT: Final = CUT.encode()
_CUT_BYTES: Final = len(_CUT)
VALUE_BYTES_MIN: Final = 4  # of a value that is cut: one character, and the mark
ITEM_BYTES_MIN: Final = 16  # of a member without a name, which tells nothing in a few characters
_INSIDE_BYTES_MIN: Final = 24  # of a list or map; where it has less it is cut as text
CHAR_BYTES_MAX: Final = 4
# Text in quotes is one value, whatever is in it; else ``, name=`` begins the next argument.
_NEXT: Final = re.compile(
    r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|(?P<next>, )(?=[^\W\d]\w*=)""", re.DOTALL
)
_NAMED: Final = re.compile(r"[^\W\d]\w*=")
# The same inside a list or map: what is in quotes is passed over, brackets are counted.
_INSIDE: Final = re.compile(
    rb"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|"""
    rb"""(?P<open>[\[({])|(?P<close>[\])}])|(?P<next>, )""",
    re.DOTALL,
)
# The key of a map's member; behind the text of a long one is the mark of its cut.
_KEY: Final = re.compile(
    rb"""(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|[^'"\[({,:]+)(?:\xe2\x80\xa6)?: """,
    re.DOTALL,
)
_ENDS: Final[Mapping[bytes, bytes]] = {b"[": b"]", b"(": b")", b"{": b"}"}


def is_cut(preview: str) -> bool:
    """Whether a stored preview may lack something of the arguments."""
    return CUT in preview or len(preview.encode()) > PREVIEW_BYTES_MAX - CHAR_BYTES_MAX


def fit_preview(text: str) -> str:
    """At most ``PREVIEW_BYTES_MAX`` bytes of a preview.

    Of arguments by name each long value is cut, and marked by ``…``; another text between two
    characters.
    """
    if len(text) * CHAR_BYTES_MAX <= PREVIEW_BYTES_MAX:
        return text
    text = text[:SEEN_MAX]  # of a redaction that made it longer
    raw = text.encode()
    if len(raw) <= PREVIEW_BYTES_MAX:
        return text
    if not _NAMED.match(text):
        return raw[:PREVIEW_BYTES_MAX].decode("utf-8", "ignore")
    parts, start = [], 0
    for found in _NEXT.finditer(text):
        if found["next"]:
            parts.append(text[start : found.start()])
            start = found.end()
    return share_out([*parts, text[start:]], PREVIEW_BYTES_MAX)


def share_out(parts: Sequence[str], bytes_max: int) -> str:
    """Arguments as ``name=value`` in so many bytes: long values are cut to the same length.

    Where even that is too much the last arguments go.
    """
    return _text(_share_out([_pair(part) for part in parts], bytes_max, VALUE_BYTES_MIN))


def _share_out(pairs: list[tuple[bytes, bytes]], bytes_max: int, value_min: int) -> bytes:
    """Names with their values in so many bytes.

    Args:
        value_min: bytes that a longer value has at least.
    """
    sizes = [len(value) for _, value in pairs]
    used = sum(len(name) + 2 for name, _ in pairs) - 2
    least = used + sum(min(size, value_min) for size in sizes)
    tail = 0
    while least + tail > bytes_max and len(pairs) > 1:
        name, value = pairs.pop()
        sizes.pop()
        used -= len(name) + 2
        least -= len(name) + 2 + min(len(value), value_min)
        tail = 2 + _CUT_BYTES
    room = bytes_max - used - tail
    if room < VALUE_BYTES_MIN:  # one name that leaves no room
        shown = [_head(b"".join(pairs[0]), bytes_max - tail)]
    else:
        level, shown, spare = _level(sizes, room), [], 0
        for name, value in pairs:
            cut = _cut(value, level + spare)
            if len(value) > level:  # what one does not use the next may
                spare += level - len(cut)
            shown.append(name + cut)
    return b", ".join([*shown, _CUT] if tail else shown)


def _cut(value: bytes, bytes_max: int) -> bytes:
    """A value in so many bytes; of a list or map each long member is cut."""
    if len(value) <= bytes_max:
        return value
    end = _ENDS.get(value[:1])
    if end is None or value[-1:] != end or bytes_max < _INSIDE_BYTES_MIN:
        return _head(value, bytes_max)
    parts, start, depth = [], 1, 0
    for found in _INSIDE.finditer(value, 1, len(value) - 1):
        if found["open"]:
            depth += 1
        elif found["close"]:
            depth -= 1
        elif found["next"] and not depth:
            parts.append(value[start : found.start()])
            start = found.end()
    parts.append(value[start:-1])
    names = [_KEY.match(part) for part in parts] if end == b"}" else [None] * len(parts)
    pairs = [
        (part[: name.end()], part[name.end() :]) if name else (b"", part)
        for part, name in zip(parts, names, strict=True)
    ]
    value_min = VALUE_BYTES_MIN if any(names) else ITEM_BYTES_MIN
    return value[:1] + _share_out(pairs, bytes_max - 2, value_min) + end


def _pair(part: str) -> tuple[bytes, bytes]:
    name, equals, value = part.partition("=")
    return _bytes(name + equals), _bytes(value)


def _level(sizes: Sequence[int], room: int) -> int:
    """The most bytes that each value may have, so that all of them have no more than the room."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            return room // left
        room -= size
        left -= 1
    return max(sizes)


def _head(raw: bytes, bytes_max: int) -> bytes:
    if len(raw) <= bytes_max:
        return raw
    return raw[: bytes_max - _CUT_BYTES].decode("utf-8", "ignore").encode() + _CUT


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "ignore")
