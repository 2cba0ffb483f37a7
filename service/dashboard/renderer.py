"""Rendering of templates. Everything is escaped except the templates' own text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import CodeType
from typing import Any, Final

from ... import __version__
from ...errors import UsageError
from ...repository.model.encoded_tasks import to_datetime
from . import text

try:
    from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined
    from jinja2.bccache import Bucket
    from starlette.responses import Response
except ImportError as exc:
    raise UsageError('the dashboard needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["HEADERS", "Pages", "answer"]

# No inline script or style, nothing from other origins. The referrer stays on: without it browsers
# send ``Origin: null`` with a form, which the guard could not distinguish from a foreign page.
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class _CompiledTemplates(BytecodeCache):
    """Templates are compiled once for all dashboards of a process."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give the bucket what was compiled from the same text, if anything was."""
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled."""
        if bucket.code is not None:
            self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED: Final = _CompiledTemplates()


class Pages:
    """The templates. ``given``: variables for all of them, about the engine and the access."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._env = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            bytecode_cache=_COMPILED,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters |= {
            "brief": text.brief,
            "common_part": text.common_part,
            "bytes": text.bytes_text,
            "count": text.count_text,
            "from_us": to_datetime,
            "iso": datetime.isoformat,
            "length": len,
            "micros": text.micros_text,
            "moment": text.moment_text,
            "rate": text.rate_text,
            "seconds": text.duration_text,
            "tick": "{:%Y-%m-%d %H:%M:%S} UTC".format,
            "value": text.value_text,
            "visible": text.visible,
        }
        self._env.globals |= {"version": __version__, **given}

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        """One template as text."""
        return self._env.get_template(template).render(context)

    def page(self, template: str, context: Mapping[str, Any], status: int = 200) -> Response:
        """One template as a response."""
        return answer(self.render(template, context), status)


def answer(body: str, status: int = 200, media_type: str = "text/html") -> Response:
    """A response with the headers that all of the dashboard's have."""
    return Response(body, status, dict(HEADERS), media_type)
