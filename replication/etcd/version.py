"""Releases of etcd: which one must not be used, and which one is not fit for production."""

from __future__ import annotations

import enum
import re
from typing import Final

__all__ = ["Fitness", "fitness_of"]

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class Fitness(enum.Enum):
    """What a release of etcd is good for."""

    FIT = "fit for production"
    TRIAL = "for trials and tests"
    CORRUPTS = "it may corrupt its data"


def fitness_of(version: str) -> Fitness:
    """What the release that a member names in its status is good for.

    3.5.0 to 3.5.2 may corrupt data when they are killed. 3.4 before 3.4.32 and 3.5 before 3.5.14
    lack corrections: among others, a leader of etcd that was cut off could end a lease which its
    successor had renewed.
    """
    found = _VERSION.match(version)
    if found is None:
        return Fitness.TRIAL
    release = tuple(int(part) for part in found.groups())
    if (3, 5, 0) <= release <= (3, 5, 2):
        return Fitness.CORRUPTS
    if release < (3, 4, 32) or (3, 5, 0) <= release < (3, 5, 14):
        return Fitness.TRIAL
    return Fitness.FIT
