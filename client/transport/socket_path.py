"""Addresses of sockets with a relative path: they mean the folder in which they were given.

A client connects again and again, and by then its process may have gone to another folder.
"""

from __future__ import annotations

import os

__all__ = ["absolute_url"]


def absolute_url(url: str) -> str:
    """The address with the whole path of its socket; any other as it is."""
    if url[:5].lower() != "unix:":
        return url
    path = url[5:].removeprefix("//")
    if not path or os.path.isabs(path) or "\0" in path:
        return url
    try:
        return f"unix://{os.path.abspath(path)}"
    except OSError:  # the current folder is not there any more
        return url
