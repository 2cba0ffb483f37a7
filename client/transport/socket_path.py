"""Addresses of sockets with a relative path: they mean the folder in which they were given.

A client connects again and again, and by then its process may have gone to another folder.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["absolute_url"]

NAME_BYTES_MAX: Final = 107 if sys.platform == "linux" else 103  # of ``sun_path``, without its NUL


def absolute_url(url: str) -> str:
    """The address with the whole path of its socket; any other as it is.

    So is one whose whole path is longer than that of a socket can be: it leads there from here.
    """
    if url[:5].lower() != "unix:":
        return url
    path = url[5:].removeprefix("//")
    if not path or os.path.isabs(path) or "\0" in path:
        return url
    try:
        whole = os.path.abspath(path)
    except OSError:  # the current folder is not there any more
        return url
    return f"unix://{whole}" if len(os.fsencode(whole)) <= NAME_BYTES_MAX else url
