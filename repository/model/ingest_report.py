"""The report of an ingest: the outcome of each load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["IngestReport", "IngestedJob"]


@dataclass(frozen=True, slots=True)
class IngestedJob:
    """The outcome of one load.

    ``state``: ``done``; ``refused``, and ``reason`` says why, nothing of it is visible; ``known``,
    it had come in before, nothing was done. ``tasks`` came in; ``skipped`` did not, for their dedup
    key or their id was held; ``replaced`` holders of a key gave way.
    """

    job: str
    state: Literal["done", "refused", "known"]
    tasks: int = 0
    skipped: int = 0
    replaced: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The outcome of every load that was found, in their order."""

    jobs: Sequence[IngestedJob] = ()

    @property
    def tasks(self) -> int:
        """How many came in, in all."""
        return sum(job.tasks for job in self.jobs if job.state == "done")

    @property
    def ok(self) -> bool:
        """Whether none was refused."""
        return all(job.state != "refused" for job in self.jobs)
