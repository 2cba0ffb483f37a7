"""Durable settings of a queue: their names, bounds and texts, for the engine, the wire and the CLI.

A setting is stored as a whole number, true or false, or a rate; what is not set is None. Each has a
name of who set it, so that two who differ can be named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...engine.records.face import LABEL_BYTES_MAX
from ...engine.records.queues.queue_settings import key_setting
from ...engine.values import BY_BYTES_MAX, Setting, SettingValue, spelled
from ...errors import UsageError
from .arguments import duration_s
from .values import Duration

__all__ = [
    "BY_OPERATOR",
    "CONCURRENCY_MAX",
    "FUNCTION_PREFIX",
    "SETTING_NAMES",
    "SETTING_UNCHANGED",
    "QueueSettings",
    "Unchanged",
    "check_by",
    "check_changes",
    "key_concurrency_text",
    "label_of",
    "merged",
    "parse_key_concurrency",
    "parse_rate",
    "public_settings",
    "rate_text",
    "setting_text",
]


class Unchanged:
    """The default of every setting of ``configure``: leave it as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


SETTING_UNCHANGED: Final = Unchanged()
BY_OPERATOR: Final = "operator"
FUNCTION_PREFIX: Final = "function "  # of who has set what a task function declares
STARTS_MAX: Final = 100_000  # starts that a rate remembers
CONCURRENCY_MAX: Final = 1_000_000
_COUNT_MAX: Final = 1 << 62
_KEYS: Final = re.compile(r"(\d{1,7})\s*/\s*([^=\0\s][^=\0]*)")
_PERIODS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SMOOTH_MS: Final = 100  # the shortest period of a smooth rate, where one so long is as good
_RATE: Final = re.compile(r"(\d{1,6})\s*/\s*(\d{0,9})\s*(ms|[smhd])(\s+smooth)?")
PERIOD_MS_MAX: Final = 100_000 * 86_400_000


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a queue, in all its tenants; None is not set, and the default holds.

    Attributes:
        queue: its name.
        history: seconds for which the history of an ended task is kept; 0: none.
        history_rows: ended tasks in the history at most.
        history_bytes: bytes of history at most.
        dead_max: dead letters at most; the oldest go first.
        dead_bytes: bytes of dead letters at most, estimated.
        faces: whether function, preview and labels of its tasks are stored.
        rate: starts in any window of a period, such as ``10/s``.
        concurrency: leases at once.
        key_concurrency: leases at once of tasks with the same value of a label, such as
            ``2/customer``.
        by: who has set it, by the name of the setting.
    """

    queue: str
    history: float | None = None
    history_rows: int | None = None
    history_bytes: int | None = None
    dead_max: int | None = None
    dead_bytes: int | None = None
    faces: bool | None = None
    rate: str | None = None
    concurrency: int | None = None
    key_concurrency: str | None = None
    by: Mapping[str, str] = field(default_factory=dict)


SETTING_NAMES: Final = (
    "history",
    "history_rows",
    "history_bytes",
    "dead_max",
    "dead_bytes",
    "faces",
    "rate",
    "concurrency",
    "key_concurrency",
)


def parse_rate(text: object) -> tuple[int, int]:
    """(starts, period in milliseconds) of ``"100/m"``, ``"3/10s"`` or ``"10/s smooth"``."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    count = int(found[1]) if found else 0
    period_ms = int(found[2] or 1) * _PERIODS_MS[found[3]] if found else 0
    if found is None or not 1 <= count <= STARTS_MAX or not 1 <= period_ms < PERIOD_MS_MAX:
        raise UsageError(
            f"expected a rate such as '100/m', '3/10s' or '10/s smooth' (1 to 100,000 starts; ms, "
            f"s, m, h or d, with a number before it if needed), got {spelled(text)}"
        )
    return _smoothed(count, period_ms) if found[4] else (count, period_ms)


def _smoothed(count: int, period_ms: int) -> tuple[int, int]:
    """A rate of few starts in a short period that nowhere exceeds the one given.

    Of all that reach it, or 95 % of it, in whole milliseconds, the one with the fewest starts at
    once. A start that comes late is lost to its period: one of ``SMOOTH_MS`` loses little by that.
    """
    for least_ms, share in ((SMOOTH_MS, 1.0), (SMOOTH_MS, 0.95), (1, 0.95)):
        for few in range(1, count):
            short_ms = -(-period_ms // (count // few))
            if short_ms >= least_ms and few * period_ms >= share * count * short_ms:
                return few, short_ms
    return count, period_ms


def rate_text(rate: tuple[int, int]) -> str:
    """The inverse of ``parse_rate``, in the largest unit that is exact."""
    count, period_ms = rate
    unit = next(u for u in ("d", "h", "m", "s", "ms") if period_ms % _PERIODS_MS[u] == 0)
    length = period_ms // _PERIODS_MS[unit]
    return f"{count}/{'' if length == 1 else length}{unit}"


def parse_key_concurrency(text: object) -> tuple[int, ...]:
    """Parse ``"2/customer"``, two leases at once for each value of the label, as it is stored.

    The name of the label follows as the bytes of its text, so that a release before this setting
    keeps the row: it knows whole numbers, an even count of them.
    """
    found = _KEYS.fullmatch(text) if isinstance(text, str) else None
    count = int(found[1]) if found else 0
    try:
        label = found[2].encode() if found else b""
    except UnicodeEncodeError:
        label = b""
    if not 1 <= count <= CONCURRENCY_MAX or not 1 <= len(label) < LABEL_BYTES_MAX:
        raise UsageError(
            "expected leases at once for each value of a label, such as '2/customer' (1 to "
            f"{CONCURRENCY_MAX:,}, and the name of a label), got {text!r:.100}"
        )
    return (count, *label, *(0,) * (1 - len(label) % 2))


def key_concurrency_text(value: tuple[int, ...]) -> str:
    """The inverse of ``parse_key_concurrency``."""
    count, label = key_setting(value)
    return f"{count}/{label}"


def label_of(text: str) -> str:
    """The name of the label in ``"2/customer"``."""
    return key_setting(parse_key_concurrency(text))[1]


def check_by(by: object) -> str:
    """Who sets it: 1 to 512 bytes of text."""
    try:
        size = len(by.encode()) if isinstance(by, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not isinstance(by, str) or not 1 <= size <= BY_BYTES_MAX:
        raise UsageError(f"by must be a str of 1 to {BY_BYTES_MAX} bytes, got {by!r:.80}")
    return by


def check_changes(
    *,
    history: Duration | Unchanged | None = SETTING_UNCHANGED,
    history_rows: int | Unchanged | None = SETTING_UNCHANGED,
    history_bytes: int | Unchanged | None = SETTING_UNCHANGED,
    dead_max: int | Unchanged | None = SETTING_UNCHANGED,
    dead_bytes: int | Unchanged | None = SETTING_UNCHANGED,
    faces: bool | Unchanged | None = SETTING_UNCHANGED,
    rate: str | Unchanged | None = SETTING_UNCHANGED,
    concurrency: int | Unchanged | None = SETTING_UNCHANGED,
    key_concurrency: str | Unchanged | None = SETTING_UNCHANGED,
) -> dict[str, SettingValue | None]:
    """The changes of a ``configure``, as they are stored; None takes a setting back.

    Args:
        history: seconds, 0 for none; at most ten years.
        history_rows: 0 or more.
        history_bytes: 0 or more.
        dead_max: 0 or more.
        dead_bytes: 0 or more.
        faces: true or false.
        rate: text such as ``10/s``.
        concurrency: 1 to 1,000,000.
        key_concurrency: text such as ``2/customer``.
    """
    changes: dict[str, SettingValue | None] = {}
    if not isinstance(history, Unchanged):
        changes["history"] = None if history is None else _ms(history)
    for name, count, least, most in (
        ("history_rows", history_rows, 0, _COUNT_MAX),
        ("history_bytes", history_bytes, 0, _COUNT_MAX),
        ("dead_max", dead_max, 0, _COUNT_MAX),
        ("dead_bytes", dead_bytes, 0, _COUNT_MAX),
        ("concurrency", concurrency, 1, CONCURRENCY_MAX),
    ):
        if not isinstance(count, Unchanged):
            changes[name] = None if count is None else _count(name, count, least, most)
    if not isinstance(faces, Unchanged):
        if faces is not None and not isinstance(faces, bool):
            raise UsageError(f"faces must be True, False or None, got {faces!r:.80}")
        changes["faces"] = faces
    if not isinstance(rate, Unchanged):
        changes["rate"] = None if rate is None else parse_rate(rate)
    if not isinstance(key_concurrency, Unchanged):
        is_none = key_concurrency is None
        changes["key_concurrency"] = None if is_none else parse_key_concurrency(key_concurrency)
    if not changes:
        raise UsageError(f"nothing to set: name one of {', '.join(SETTING_NAMES)}")
    return changes


def _ms(history: Duration) -> int:
    return round(duration_s(history, "history") * 1000)


def _count(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        hint = "; to stop a queue, pause it" if name == "concurrency" and value == 0 else ""
        raise UsageError(f"{name} {value!r:.80} is not between {least} and {most:,}{hint}")
    return value


def merged(
    queue: str,
    stored: Mapping[str, Setting],
    changes: Mapping[str, SettingValue | None],
    by: str,
    now_us: int,
    *,
    replace: bool,
) -> dict[str, Setting]:
    """The settings that are stored once ``changes`` are made.

    Args:
        queue: its name, for errors.
        stored: what is set now.
        changes: from ``check_changes``.
        by: who makes them.
        now_us: wall microseconds.
        replace: False refuses to change what somebody else has set.

    Raises:
        UsageError: two settings for one queue; it names both who set them.
    """
    found = dict(stored)
    for name, value in changes.items():
        had = found.get(name)
        if had is not None and had.value == value:
            continue
        if had is not None and had.by != by and not replace:
            raise UsageError(
                f"two settings of {name} for queue {queue!r}: {had.by} has set "
                f"{setting_text(name, had.value)}, {by} wants {setting_text(name, value)}; "
                "leave one of them out, make them the same, or use another queue"
            )
        if value is None:
            found.pop(name, None)
        else:
            found[name] = Setting(value, by, now_us)
    faces, keys = found.get("faces"), found.get("key_concurrency")
    if faces is not None and faces.value is False and keys is not None:
        raise UsageError(
            f"queue {queue!r}: key_concurrency goes by a label, and faces=False stores none: "
            "take one of the two back"
        )
    return found


def setting_text(name: str, value: SettingValue | None) -> str:
    """A stored value as people write it."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        if name == "key_concurrency":
            return key_concurrency_text(value)
        return rate_text((value[0], value[1])) if len(value) == 2 else str(value)
    if name == "history":
        return f"{value / 1000:g}s"
    return str(value).lower()


def public_settings(queue: str, stored: Mapping[str, Setting]) -> QueueSettings:
    """The settings as users see them."""
    values: dict[str, Any] = {}
    for name in SETTING_NAMES:
        one = stored.get(name)
        if one is None:
            continue
        if isinstance(one.value, tuple):
            values[name] = setting_text(name, one.value)
        else:
            values[name] = one.value / 1000 if name == "history" else one.value
    return QueueSettings(queue, **values, by={name: stored[name].by for name in values})
