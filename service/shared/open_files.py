"""Open files: what a process of ours asks the system for."""

from __future__ import annotations

import resource
from typing import Final

__all__ = ["FILES", "allow_files"]

FILES: Final = 8192  # a store may have 1,024 open, callers three times 1,024 connections


def allow_files() -> None:
    """Raise the limit of open files to what callers and a store need; often it is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
