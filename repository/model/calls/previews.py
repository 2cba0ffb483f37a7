"""Previews of calls: arguments in a few words, whatever they are and however large.

Only values of known types are shown as they are. No ``repr`` of a user's is called: it may take as
long, and say as much, as it likes. And values are cut before they are formatted: the work follows
from the size of the preview, whatever the size of the arguments. What is behind values that fill
the preview gets a few characters at most, so little of it is formatted, and what would not even
leave its name is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from ....engine.records.face import PREVIEW_BYTES_MAX
from ....engine.runtime.task_id import UUID
from ..preview_cuts import CHAR_BYTES_MAX, CUT, ITEM_BYTES_MIN, SEEN_MAX, VALUE_BYTES_MIN, share_out

__all__ = ["preview_of"]

ARGUMENTS_MAX: Final = 51  # more are not stored, however short
TEXT_CHARS_MAX: Final = 100  # of one value
# Characters that the members of one list or map need at least; the others are not looked at.
ROOM: Final = PREVIEW_BYTES_MAX
ROOM_INSIDE: Final = 64  # of one in another, and of those behind arguments that fill the preview
ROOM_LEAST: Final = 24  # behind many that are cut; and so many characters of a text
NAME_CHARS_MAX: Final = PREVIEW_BYTES_MAX  # no more of a name can be stored
DECIMAL_BYTES_MAX: Final = 256  # in memory; some 300 digits
DEPTH_MAX: Final = 2
BITS_MAX: Final = 256
_PLAIN: Final[frozenset[type]] = frozenset((float, bool, type(None)))
_AS_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: str,
    UUID: str,
}
# In a text it would be read as the end of one that was cut, with an argument behind it.
_LIKE_A_CUT: Final = re.compile(rf"{CUT}(?=, [^\W\d]\w*=)")
_ESCAPED: Final = r"\\u2026"
_BRACKETS: Final[Mapping[type, str]] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}"}


def preview_of(arguments: Mapping[str, Any], bytes_max: int = SEEN_MAX) -> str:
    """``to='a@example.org', n=3``: the arguments of a call, by name.

    Args:
        arguments: by name.
        bytes_max: of the preview: ``PREVIEW_BYTES_MAX``, as it is stored; or more, for a redaction
            sees more of it first (``repository/model/preview_cuts.py`` makes it shorter then).
    """
    parts: list[str] = []
    size = least = n_long = 0  # least: with every value cut
    few = ROOM_LEAST if bytes_max <= ROOM else TEXT_CHARS_MAX
    for name, value in arguments.items():
        if len(parts) == ARGUMENTS_MAX or least > bytes_max:
            parts.append("…")
            break
        if size <= ROOM:
            shown = _shown(value, 0, ROOM, TEXT_CHARS_MAX, few)
        else:  # long values before it leave it that much; twice, for they may leave more
            share = 2 * bytes_max // (n_long + 1) if size <= SEEN_MAX else 0
            share = max(ROOM_LEAST, share)
            chars = min(TEXT_CHARS_MAX, share)
            shown = _shown(value, 0, min(ROOM_INSIDE, share), chars, min(few, chars))
        n_long += len(shown) > ROOM_LEAST
        name = name[:NAME_CHARS_MAX]
        parts.append(f"{name}={shown}")
        size += len(name) + len(shown) + 3
        least += len(name) + min(len(shown), VALUE_BYTES_MIN) + 3
    text = ", ".join(parts)
    if len(text) * CHAR_BYTES_MAX <= bytes_max or len(text.encode("utf-8", "ignore")) <= bytes_max:
        return text
    return share_out(parts, bytes_max)


def _shown(value: Any, depth: int, room: int, chars: int, few: int) -> str:
    """One value.

    Args:
        value: of any type.
        depth: how many lists or maps it lies in.
        room: characters that the members of a list or map need at least.
        chars: of a text at most.
        few: the same, of a member behind many others.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        text = repr(value) if len(value) <= chars else f"{value[:chars]!r}{CUT}"
        return _LIKE_A_CUT.sub(_ESCAPED, text) if CUT in text else text
    if kind is int:
        bits = value.bit_length()
        return repr(value) if bits <= BITS_MAX else f"<int of {bits} bits>"
    if kind in _PLAIN:
        return repr(value)
    if kind in _BRACKETS or kind is dict:
        return _container(value, kind, depth, room, chars, few)
    if kind in _AS_TEXT:
        return _AS_TEXT[kind](value)
    if kind is Decimal:
        if value.__sizeof__() > DECIMAL_BYTES_MAX:  # to count its digits takes all of them
            return "<Decimal of many digits>"
        digits = len(value.as_tuple().digits)
        return str(value) if digits <= TEXT_CHARS_MAX else f"<Decimal of {digits} digits>"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"[:TEXT_CHARS_MAX]
    return f"<{kind.__name__[:TEXT_CHARS_MAX]}>"


def _container(value: Any, kind: type, depth: int, room: int, chars: int, few: int) -> str:
    """Members, until the least that each of them needs has used the room up; see ``_shown``."""
    brackets = _BRACKETS.get(kind, "{}")
    start, end = brackets[0], brackets[1]
    if depth >= DEPTH_MAX:
        return f"{start}…{end}" if value else start + end
    parts: list[str] = []
    room_inside, twice = min(room, ROOM_INSIDE), 2 * room  # as above: some leave more
    for member in value.items() if kind is dict else value:
        if room <= 0:
            parts.append("…")
            break
        name, least = "", ITEM_BYTES_MIN
        most = max(few, min(chars, twice // (len(parts) + 1)))
        if kind is dict:
            key, member = member
            name, least = f"{_shown(key, DEPTH_MAX, 0, most, few)}: ", VALUE_BYTES_MIN
        shown = _shown(member, depth + 1, room_inside, most, few)
        if shown[0] in "[({":
            least = ROOM_INSIDE
        parts.append(name + shown)
        room -= len(name) + min(len(shown), least) + 2
    return start + ", ".join(parts) + end
