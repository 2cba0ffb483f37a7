"""When a log file is full."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ...errors import UsageError

__all__ = ["Roll", "check_bounds"]


def check_bounds(given: object, seconds: object, **whole: object) -> None:
    """``UsageError`` unless all are numbers or None: ``seconds`` finite, the others integers.

    Args:
        given: what has them, for the error.
        seconds: a time.
        whole: sizes and counts, by name.
    """
    if seconds is not None and not (
        isinstance(seconds, int | float) and not isinstance(seconds, bool) and isfinite(seconds)
    ):
        raise UsageError(f"{given!r}: seconds is a finite number, or None for no such bound")
    for name, value in whole.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise UsageError(f"{given!r}: {name} is an integer, or None for no such bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """Any of these: a file is left before it would exceed one of them. None: no such bound.

    Args:
        bytes: Size of a file, at least 4 KiB. A batch that is larger gets a file of its own.
        seconds: From the file's first record on. It is left by the first append after that.
        records: How many a file holds at most. A batch is never split: one that is larger gets a
            file of its own.
    """

    bytes: int | None = 128 << 20
    seconds: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        check_bounds(self, self.seconds, bytes=self.bytes, records=self.records)
        if self.bytes is not None and self.bytes < 4096:
            raise UsageError(
                f"a file of {self.bytes} bytes is too small to be one: give 4096 or more"
            )
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"files cannot be left after {self.seconds} s")
        if self.records is not None and self.records < 1:
            raise UsageError(f"files of {self.records} records are none")

    def is_due(self, size: int, records: int, age_s: float, more_bytes: int, more: int) -> bool:
        """Whether a file of so much should be left rather than take so much more.

        Args:
            size: bytes in the file.
            records: records in the file.
            age_s: seconds since its first record.
            more_bytes: bytes to be appended.
            more: records to be appended.
        """
        return records > 0 and (
            (self.bytes is not None and size + more_bytes > self.bytes)
            or (self.records is not None and records + more > self.records)
            or (self.seconds is not None and age_s >= self.seconds)
        )
