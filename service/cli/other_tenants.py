"""Tenants of a queue that a command leaves alone: how many there are, and how they are said.

A command on a queue without ``--tenant`` means the default tenant. Whoever does not know that takes
it for the whole queue, so the command says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import click

from ...repository.api.engine import Engine
from ...repository.model.values import QueueStats
from .missing_queue import seen_queues

__all__ = ["NOBODY", "LeftOut", "left_out", "note_left_out"]


class LeftOut(NamedTuple):
    """Tenants of a queue that a command did not touch, and their tasks that it would have."""

    tenants: int = 0
    tasks: int = 0

    def __str__(self) -> str:
        """Who they are: ``1 other tenant``."""
        return f"{self.tenants:,} other tenant{'' if self.tenants == 1 else 's'}"

    @property
    def them(self) -> str:
        """The pronoun for them."""
        return "it" if self.tenants == 1 else "them"

    @property
    def json(self) -> dict[str, int]:
        """The field of a JSON object; none where nobody is left out."""
        return {"other_tenants": self.tenants} if self.tenants else {}


NOBODY: Final = LeftOut()


async def left_out(
    engine: Engine,
    queue: str,
    tenant: str,
    counted: Callable[[QueueStats], int],
    *,
    is_all: bool,
) -> LeftOut:
    """Count the tenants that a command for the default tenant leaves out; nobody for any other.

    Args:
        engine: the store.
        queue: its name.
        tenant: whose queue is meant; one that is named is meant alone.
        counted: the tasks of a tenant that count; a tenant without any is not left out.
        is_all: all tenants are meant.
    """
    if tenant or is_all:
        return NOBODY
    found = await seen_queues(engine) or {}
    counts = [counted(one) for (name, whose), one in found.items() if name == queue and whose]
    return LeftOut(sum(count > 0 for count in counts), sum(counts))


def note_left_out(others: LeftOut, what: str) -> None:
    """Note on stderr that a list leaves tenants out.

    Args:
        others: who they are.
        what: they have, in words, for example ``dead letters``.
    """
    if others.tenants:
        has = "has" if others.tenants == 1 else "have"
        click.echo(
            f"note: {others} of this queue {has} {what}, too: --all-tenants lists {others.them}",
            err=True,
        )
