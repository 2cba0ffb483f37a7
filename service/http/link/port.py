"""A link as its operations see it: what they change, and what they call."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from ....errors import DeadlineExceededError
from ..access.roles import NOBODY, Access
from .answers import AnswerWriter
from .serving import LinkServing

__all__ = ["AwaitedClaim", "LinkPort"]

CALLS_MAX: Final = 16  # calls of one connection at work, those that wait apart
SMALL_CLAIMS_MAX: Final = 64
LARGE_CLAIMS_MAX: Final = 4


class AwaitedClaim(Protocol):
    """A claim that is not answered yet."""

    @property
    def is_waiting(self) -> bool:
        """Whether there was nothing ready so far."""

    def end_wait(self) -> None:
        """Answer that there was nothing."""

    def take_back(self) -> None:
        """Give up without an answer."""


class LinkPort(AnswerWriter):
    """One connection; ``connection.LinkConnection`` is it."""

    def __init__(self, serving: LinkServing, admission: Any) -> None:
        super().__init__(serving.loop)
        self.serving = serving
        self.admission = admission
        self.access: Access = NOBODY  # until its hello has shown a token
        self.queues: dict[int, Any] = {}  # by handle: a queue, or the error that made none
        self.claims: dict[int, AwaitedClaim] = {}
        self.calls: dict[int, Callable[[], object]] = {}  # how each is taken back
        self.calls_at_work = asyncio.Semaphore(CALLS_MAX)
        # What takes several turns, or stands in line for its shard.
        self.small_claims = asyncio.Semaphore(SMALL_CLAIMS_MAX)
        self.large_claims = asyncio.Semaphore(LARGE_CLAIMS_MAX)
        self.slow_enqueues = asyncio.Semaphore(1)  # of many
        self.claimed_bytes = 0  # of leases whose answers are not made yet

    def check_time(self, deadline: float | None) -> None:
        """Before work that had to wait for its turn; ``deadline``: by the loop's clock, if any.

        Raises:
            DeadlineExceededError: it has passed.
        """
        if deadline is not None and self._loop.time() > deadline:
            raise DeadlineExceededError(
                "its deadline passed before the server came to it: nothing was done, send it again"
            )

    @abstractmethod
    def forget(self) -> None:
        """A request gets no answer any more."""

    @abstractmethod
    def waits(self, is_waiting: bool) -> None:
        """Count a claim that waits apart from requests at work, or do so no more."""

    @abstractmethod
    def claim_id(self, id: int) -> bytes:
        """The id by which a claim can be taken back from elsewhere."""

    @abstractmethod
    async def readable(self) -> bool:
        """Wait while the client does not read; False: it has gone."""

    @abstractmethod
    def spawn(self, id: int, work: Coroutine[Any, Any, None]) -> Callable[[], object]:
        """Do the work of a request in a task of its own. It answers; its errors are answered.

        Returns what gives it up, without an answer.
        """
