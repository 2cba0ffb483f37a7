"""Reports of maintenance calls: verify, body migration, forgetting loads, purging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.values import Finding

__all__ = ["ForgottenLoads", "MigrationReport", "PurgeReport", "VerifyReport"]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Broken rules that ``verify`` found. ``ok``: there are none."""

    ok: bool
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """Body files, records and bytes that ``migrate_bodies`` copied to the newer format.

    ``files_left``: files with something that cannot be read; ``health()`` names it.
    """

    files: int
    records: int
    bytes: int
    files_left: int


@dataclass(frozen=True, slots=True)
class ForgottenLoads:
    """How many loads that came in (``done``), were ``refused``, or were left ``abandoned``.

    ``freed_bytes``: of the files of the latter two.
    """

    done: int = 0
    refused: int = 0
    abandoned: int = 0
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """How many ``results`` and ``dead`` letters a purge removed.

    ``absent``: those that had gone or changed before, or lie in a damaged block and stay.
    """

    results: int = 0
    dead: int = 0
    absent: int = 0
