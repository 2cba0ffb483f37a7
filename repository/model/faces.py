"""Faces of tasks: checked and packed where a task is packed, shown by what users get back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ...engine.records.face import (
    FUNCTION_BYTES_MAX,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    PREVIEW_BYTES_MAX,
    Face,
    pack_face,
    pack_fields,
    unpack_face,
)
from ...errors import UsageError
from .preview_cuts import SEEN_MAX, fit_preview
from .redaction import Redaction

__all__ = [
    "NO_LABELS",
    "face_fields",
    "labels_of",
    "packed_face",
    "redacted_labels",
]

NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
_ADVICE: Final = "labels are for a few short words to find tasks by; more goes into headers"


def packed_face(
    function: Any, preview: Any, labels: Any, redaction: Redaction | None = None
) -> bytes:
    """The face as records have it; empty where all three are None or empty.

    Args:
        function: at most 256 bytes in UTF-8.
        preview: cut to 256 bytes in UTF-8: long values of arguments each, another text at its end.
        labels: at most 8, as text; each ``key=value`` at most 64 bytes in UTF-8.
        redaction: applied to the preview, and to the value of each label.

    Raises:
        UsageError: one of them cannot be kept.
    """
    if (  # as a worker gives them, nearly always
        redaction is None
        and type(function) is str
        and type(preview) is str
        and 0 < len(function) <= FUNCTION_BYTES_MAX
        and len(preview) <= PREVIEW_BYTES_MAX
        and function.isascii()
        and preview.isascii()
    ):
        return pack_fields(function, preview, _packed_labels(labels) if labels else ())
    name = "" if function is None else _text(function, "function")
    if len(name) * 4 > FUNCTION_BYTES_MAX and len(name.encode()) > FUNCTION_BYTES_MAX:
        raise UsageError(
            f"function is longer than {FUNCTION_BYTES_MAX} bytes: give the name a worker knows it "
            "by"
        )
    shown = "" if preview is None else _text(preview, "preview", SEEN_MAX)
    packed = () if labels is None else _packed_labels(labels)
    if redaction is not None:
        shown = redaction(shown)
        packed = tuple(label for label in [_redacted(one, redaction) for one in packed] if label)
    return pack_face(Face(name, fit_preview(shown), packed))


def _redacted(label: str, redaction: Redaction) -> str:
    """A label as it may be stored; empty where the hook failed, or made it too long."""
    key, _, value = label.partition("=")
    kept = redaction(value)
    if value and not kept:
        return ""
    label = f"{key}={kept}"
    return label if len(label.encode()) <= LABEL_BYTES_MAX else ""


def _text(value: object, what: str, length: int = 0) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a str, not {type(value).__name__}")
    text = value[:length] if length else value
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"{what} is not valid Unicode: {exc}") from exc
    return str(text)


def _packed_labels(labels: object) -> tuple[str, ...]:
    if type(labels) is not dict and not isinstance(labels, Mapping):
        raise UsageError(
            f"labels must be a mapping of str to str, not {type(labels).__name__}: give "
            '{"key": "value"}'
        )
    if len(labels) > LABELS_MAX:
        raise UsageError(f"{len(labels)} labels, at most {LABELS_MAX} are kept: {_ADVICE}")
    packed = []
    for key, value in labels.items():
        if type(key) is str and type(value) is str and key and "=" not in key:
            label = f"{key}={value}"
            if len(label) <= LABEL_BYTES_MAX and label.isascii():
                packed.append(label)
                continue
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(
                f"label {key!r} must be a str with a str as its value, not {type(key).__name__} "
                f"with {type(value).__name__}"
            )
        if not key or "=" in key:
            raise UsageError(f'label {key!r} must have a name without "="')
        label = _text(f"{key}={value}", f"label {key!r}")
        if len(label) > LABEL_BYTES_MAX or len(label.encode()) > LABEL_BYTES_MAX:
            raise UsageError(
                f"label {key!r} is longer than {LABEL_BYTES_MAX} bytes as key=value: {_ADVICE}"
            )
        packed.append(label)
    return tuple(packed)


def redacted_labels(labels: Mapping[str, str], redaction: Redaction) -> dict[str, str]:
    """Labels whose values may be stored; without those for which the hook failed."""
    checked = _packed_labels(labels)
    return labels_of(
        tuple(label for label in [_redacted(one, redaction) for one in checked] if label)
    )


def labels_of(packed: tuple[str, ...]) -> dict[str, str]:
    """The labels as a mapping."""
    return {key: value for key, _, value in [label.partition("=") for label in packed]}


def face_fields(raw: bytes) -> dict[str, Any]:
    """The fields ``function``, ``preview`` and ``labels`` of what users get, of a stored face."""
    if not raw:
        return {}
    face = unpack_face(raw)
    return {
        "function": face.function,
        "preview": face.preview,
        "labels": labels_of(face.labels),
    }
