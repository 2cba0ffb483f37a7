"""The store of a shard that is not here: it has no rows, and says so to whoever asks for one.

A lookup that found nothing would be taken for the truth. So every read raises, with an error that
tells where the shard is; only what has nothing to answer (closing, a sync of nothing) works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from ...errors import LodeqError
from .port import Op, Rows, StoreView

__all__ = ["StubStore"]


class StubStore:
    """A ``Store`` that refuses.

    Args:
        refusal: makes the error that a read or write raises.
    """

    reads_beside = False

    def __init__(self, refusal: Callable[[], LodeqError]) -> None:
        self._refusal = refusal

    def _refuse(self) -> NoReturn:
        raise self._refusal()

    def get(self, key: bytes) -> bytes | None:
        """Refuse."""
        self._refuse()

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Refuse."""
        self._refuse()

    def scan(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """Refuse."""
        self._refuse()

    def scan_part(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """Refuse."""
        self._refuse()

    def scan_last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Refuse."""
        self._refuse()

    def scan_back(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """Refuse."""
        self._refuse()

    def write(self, ops: Iterable[Op]) -> None:
        """Refuse."""
        self._refuse()

    def start_sync(self, done: Callable[[BaseException | None], None]) -> None:
        """Nothing to sync: ``done(None)`` is called before this returns."""
        done(None)

    def run(self, fn: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Refuse: ``done`` gets the error before this returns, and ``fn`` is not called."""
        done(self._refusal())

    def flush(self, wait: bool = True) -> None:
        """Refuse."""
        self._refuse()

    def snapshot(self, splits: Sequence[bytes] = ()) -> StoreView:
        """Refuse."""
        self._refuse()

    def checkpoint(self, path: str) -> None:
        """Refuse."""
        self._refuse()

    def property_int(self, name: str) -> int | None:
        """Refuse."""
        self._refuse()

    def retire(self, refusal: Callable[[], LodeqError]) -> Callable[[], None]:
        """Nothing is open, and calls are refused as they were."""
        return self.close

    def close(self) -> None:
        """Nothing is open."""
