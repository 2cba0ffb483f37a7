"""Look at a result record without decoding it: searches pass over most rows, each in a microsecond.

A glance believes what the bytes say and checks no checksum. So it only ever says that a record need
not be decoded; what it lets through is decoded, checked and held against the search once more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from .frame import CHECKSUM_BYTES
from .patterns import has_parts
from .result import HAS_FACE, RESULT_FIELDS, RESULT_HEAD

__all__ = ["ANY_TIME", "ResultGlance"]

ANY_TIME: Final = (-(1 << 63), (1 << 63) - 1)
_LEAST: Final = RESULT_HEAD.size + CHECKSUM_BYTES
_AT: Final = RESULT_FIELDS.at
_STATUS: Final[int] = _AT["status"]
_CREATED: Final[int] = _AT["created"]
_FINISHED: Final[int] = _AT["finished"]
_LENGTHS: Final[int] = _AT["error"]  # its length, and behind it those of worker, queue and tenant
_QUEUE: Final[int] = _AT["queue"]  # a byte, as the next
_TENANT: Final[int] = _AT["tenant"]
_time: Final = struct.Struct("<q").unpack_from
_lengths: Final = struct.Struct(f"<{RESULT_FIELDS.part('error', 'tenant')}").unpack_from
_CUT: Final = "…".encode()
_CUT_MIN: Final = 252  # a face with a longer preview may have lost the end of it
_UNSURE: Final = "\ufffd"  # stands for bytes that are no text


class ResultGlance:
    """What a record must have in it to be worth decoding."""

    __slots__ = (
        "_created",
        "_finished",
        "_has_times",
        "_is_plain",
        "_needles",
        "_queue",
        "_reason",
        "_statuses",
        "_tenant",
        "_text",
        "skips_cut",
    )

    def __init__(
        self,
        *,
        statuses: frozenset[int],
        queue: bytes | None = None,
        tenant: bytes | None = None,
        needles: Sequence[bytes] = (),
        created: tuple[int, int] = ANY_TIME,
        finished: tuple[int, int] = ANY_TIME,
        reason: str | None = None,
        text: str | None = None,
    ) -> None:
        """What a search means.

        Args:
            statuses: that are meant, as numbers.
            queue: its name; None for all.
            tenant: its name, empty for the default one; None for all.
            needles: bytes that are all somewhere in a record.
            created: the first and the last wall microsecond of the enqueue.
            finished: the same of the end.
            reason: part of the error, in any case; ``*`` stands for any characters.
            text: part of the error or of the face, in any case.
        """
        self._statuses = statuses
        self._queue, self._tenant = queue, tenant
        self._needles = tuple(needles)
        self._created, self._finished = created, finished
        self._has_times = created != ANY_TIME or finished != ANY_TIME
        self._reason = None if reason is None else reason.casefold()
        self._text = None if text is None or _UNSURE in text else text.casefold()
        self._is_plain = self._reason is None and self._text is None
        # Whether a record without the text goes although its preview may have lost it.
        self.skips_cut = False

    def passes(self, raw: bytes) -> bool:
        """Whether a record may be meant."""
        if len(raw) < _LEAST:
            return True  # damage: whoever decodes it says so
        for needle in self._needles:
            if needle not in raw:
                return False
        if raw[_STATUS] not in self._statuses:
            return False
        names = RESULT_HEAD.size
        queue, tenant = self._queue, self._tenant
        if queue is not None and (raw[_QUEUE] != len(queue) or not raw.startswith(queue, names)):
            return False
        if tenant is not None and (
            raw[_TENANT] != len(tenant) or not raw.startswith(tenant, names + raw[_QUEUE])
        ):
            return False
        if self._has_times:
            first, last = self._created
            (at,) = _time(raw, _CREATED)
            if not first <= at <= last:
                return False
            first, last = self._finished
            (at,) = _time(raw, _FINISHED)
            if not first <= at <= last:
                return False
        return self._is_plain or self._has_texts(raw)

    def _has_texts(self, raw: bytes) -> bool:
        n_error, n_worker, n_queue, n_tenant = _lengths(raw, _LENGTHS)
        start = RESULT_HEAD.size + n_queue + n_tenant + n_worker
        end = start + n_error
        if self._reason is not None:
            error = raw[start:end].decode("utf-8", "replace")
            if not has_parts(self._reason, error.casefold()):
                return False
        if self._text is None:
            return True
        if raw[2] & HAS_FACE:
            n_face = int.from_bytes(raw[end : end + 2], "little")
            end += 2 + n_face
            if not self.skips_cut and (n_face > _CUT_MIN or _CUT in raw[start:end]):
                return True
        # Names and lengths of the packing between texts are bytes that are no text, or one letter.
        return self._text in raw[start:end].decode("utf-8", "replace").casefold()
