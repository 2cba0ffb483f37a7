"""Where the ``lodeq`` script begins: it works without the extra, if only to say what is missing."""

from __future__ import annotations

import io
import sys

__all__ = ["main"]

_EXTRA = frozenset({"click", "rich"})


def main() -> int:
    """Run the command line. Returns 2 without its extra; else it ends by ``SystemExit``."""
    try:
        from .cli import lodeq  # noqa: PLC0415 - what it needs may not be installed
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write('the command line needs an extra: pip install "lodeq[cli]"\n')
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
    lodeq()
    return 0
