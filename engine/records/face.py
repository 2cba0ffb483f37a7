"""The face of a task: its function, a preview of its arguments and its labels, for people to read.

It stands in the task record between headers and payload, and in the result record between error
and value: msgpack of ``[function, preview, [labels]]``, a label being ``key=value``. All three
empty: there is no face, and not a byte of one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

__all__ = [
    "FUNCTION_BYTES_MAX",
    "LABELS_MAX",
    "LABEL_BYTES_MAX",
    "NO_FACE",
    "PREVIEW_BYTES_MAX",
    "Face",
    "label_in",
    "pack_face",
    "pack_fields",
    "unpack_face",
]

FUNCTION_BYTES_MAX: Final = 256  # in UTF-8, as the others
PREVIEW_BYTES_MAX: Final = 256
LABELS_MAX: Final = 8
LABEL_BYTES_MAX: Final = 64  # of "key=value"


class Face(NamedTuple):
    """A decoded face. Labels are ``key=value``, in the order in which they were given."""

    function: str = ""
    preview: str = ""
    labels: tuple[str, ...] = ()


NO_FACE: Final = Face()
_pack: Final = msgpack.Packer().pack
_unpack: Final = msgpack.unpackb
_ERRORS: Final = (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException)


def pack_face(face: Face) -> bytes:
    """The bytes that records have; none for an empty face. What is in it was checked."""
    if not (face.function or face.preview or face.labels):
        return b""
    return pack_fields(*face)


def pack_fields(function: str, preview: str, labels: tuple[str, ...]) -> bytes:
    """The bytes of a face that is not empty."""
    packed: bytes = _pack((function, preview, labels))
    return packed


def unpack_face(raw: bytes) -> Face:
    """The inverse. What is no face shows as none: it is for people, and must not hide a task."""
    if not raw:
        return NO_FACE
    try:
        function, preview, labels = _unpack(raw, max_ext_len=0)
    except _ERRORS:
        return NO_FACE
    if type(function) is not str or type(preview) is not str or type(labels) is not list:
        return NO_FACE
    if not all(type(label) is str for label in labels):
        return NO_FACE
    return Face(function, preview, tuple(labels))


def label_in(raw: bytes, start: str) -> str | None:
    """The label that begins with ``start``, such as ``customer=``; None: there is none.

    As ``unpack_face`` finds it, at half its cost: claims ask for each task.
    """
    if not raw:
        return None
    try:
        labels = _unpack(raw, max_ext_len=0)[2]
        for label in labels:
            if label.startswith(start):
                found: str = label
                return found
    except (*_ERRORS, LookupError, AttributeError):
        pass
    return None
