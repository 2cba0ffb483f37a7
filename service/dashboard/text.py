"""Formatting of values for the pages: short, with few digits.

Everything here returns text; the templates escape it. In users' values control and bidirectional
characters are written as escapes first, so that they cannot change how the rest of a page reads.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final

import msgpack

from ...client.documents.wire import UNPACK_ERRORS
from ...repository.model.codec import PackedBytes
from ...repository.model.json_values import rendered

__all__ = [
    "brief",
    "bytes_text",
    "common_part",
    "count_text",
    "duration_text",
    "micros_text",
    "moment_text",
    "rate_text",
    "unpacked",
    "value_text",
    "visible",
]

NOTHING: Final = "–"
PARTS_MAX: Final = 4096  # parts of a msgpack value; a larger one is shown as bytes
_NOT_EXACT: Final = "[shown as JSON, which cannot hold the value itself]"
TEXT_MAX: Final = 8192  # characters shown of a value
REASON_MAX: Final = 200  # characters of a reason that others are searched by
_KIND: Final = re.compile(r"[^\W\d][\w.]*:(?=\s|$)")
_CODE: Final = re.compile(r"\s*[1-5]\d\d(?=[\s:,-]|$)")  # of SMTP, HTTP or the like
_DIFFERS: Final = re.compile(
    r"""(?P<code>\b(?:code|errno|error|exit|http|status)[ =]-?\d{1,4}\b)"""
    r"""|(?<!\w)(?P<quote>["'`]).*?(?:(?P=quote)(?!\w)|$)|[^\s"'`]*[\d@/\\=]\S*""",
    re.IGNORECASE,
)
BRIEF_MAX: Final = 400  # characters shown in a cell of a table
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def visible(text: str) -> str:
    """The text with everything unprintable escaped, except line breaks and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def brief(text: str) -> str:
    """As ``visible``, cut to fit a cell of a table."""
    more = len(text) - BRIEF_MAX
    return visible(text) if more <= 0 else f"{visible(text[:BRIEF_MAX])} … {more:,} characters more"


def common_part(reason: str) -> str:
    """The part of a reason that tasks which failed for the same one have: a pattern with ``*``.

    It is the first line, with ``*`` for quoted texts and for words with a number, a path, an
    address or the like in them: these differ from task to task. The type of the error stays, and
    a code does: ``550`` at the start of the message, ``Errno 28``, ``HTTP 503``. Where hardly
    anything would be left, it is the line.
    """
    line = (reason.splitlines() or [""])[0][:REASON_MAX].strip()
    kind = _KIND.match(line)
    start = 0 if kind is None else kind.end()
    code = _CODE.match(line, start)
    start = start if code is None else code.end()
    part = (line[:start] + _DIFFERS.sub(_masked, line[start:])).strip("* ")
    return part if len(part.replace("*", "").strip()) > 2 else line


def _masked(found: re.Match[str]) -> str:
    return found[0] if found["code"] else "*"


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65_536 else f"\\U{code:08x}"
    )


def count_text(value: float | None) -> str:
    """A whole number with thousands separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate_text(value: float | None) -> str:
    """A rate per second."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def duration_text(seconds: float | None) -> str:
    """Seconds as two units at most: ``3.2 s``, ``4 m 10 s``, ``2 d 3 h``."""
    if seconds is None:
        return NOTHING
    if seconds <= 0:
        return "0 s"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, less, small in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // less
            return f"{whole // size} {unit} {rest} {small}" if rest else f"{whole // size} {unit}"
    return f"{seconds:.1f} s"


def micros_text(us: int, count: int = 1) -> str:
    """Microseconds as a duration; a dash if ``count`` is 0: nothing was measured."""
    return duration_text(us / 1e6) if count else NOTHING


def bytes_text(value: float | None) -> str:
    """Bytes in the largest unit that leaves a whole part."""
    if value is None:
        return NOTHING
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def moment_text(moment: datetime | None) -> str:
    """A time in UTC, to the millisecond."""
    if moment is None:
        return NOTHING
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"


def value_text(value: Any) -> str:
    """A payload, headers or a result: text as it is, structures as JSON, bytes as text or hex."""
    if isinstance(value, PackedBytes):
        return value_text(unpacked(value)) if value else ""
    if isinstance(value, bytes | bytearray):
        text = _bytes_value(bytes(value))
    elif isinstance(value, str):
        text = value
    else:
        found = rendered(value)
        text = json.dumps(found.value, indent=2, ensure_ascii=False, allow_nan=False)
        if not found.is_exact:
            text = f"{_NOT_EXACT}\n{text}"
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}\n… {len(text) - TEXT_MAX:,} characters more"
    return visible(text)


def unpacked(data: bytes) -> Any:
    """The value that msgpack packed; a note and its bytes if decoding it would cost too much."""
    parts = 0

    def count(inner: Any) -> Any:
        nonlocal parts
        parts += 1 + len(inner)
        if parts > PARTS_MAX:
            raise ValueError("too many parts")
        return inner

    try:
        return msgpack.unpackb(
            data,
            timestamp=3,
            strict_map_key=False,
            list_hook=count,
            object_hook=count,
            ext_hook=lambda code, inner: count(msgpack.ExtType(code, inner)),
            max_array_len=PARTS_MAX,
            max_map_len=PARTS_MAX,
        )
    except UNPACK_ERRORS:
        return f"[{len(data):,} bytes of msgpack, not shown as a value]\n{_bytes_value(data)}"


def _bytes_value(data: bytes) -> str:
    try:
        text = data[: TEXT_MAX * 4].decode()
    except UnicodeDecodeError:
        text = ""
    if text and sum(not (c.isprintable() or c in "\n\t") for c in text) * 8 <= len(text):
        return text
    shown = data[: TEXT_MAX // 4]
    rest = f" … {len(data) - len(shown):,} bytes more" if len(data) > len(shown) else ""
    return f"{shown.hex(' ', 2)}{rest}" if data else ""
