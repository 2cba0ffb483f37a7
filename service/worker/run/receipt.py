"""The receipt of a call: a ``Receipt`` that can fetch the typed result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ....repository.model.values import Deferred, Duration, Receipt, Result

if TYPE_CHECKING:
    from ..typed.signature import TypedSignature

__all__ = ["JobReceipt", "ResultHost"]

R_co = TypeVar("R_co", covariant=True)


class ResultHost(Protocol):
    """The app, as far as receipts use it."""

    @property
    def engine(self) -> Any:
        """The open store."""

    def sync_engine(self) -> Any:
        """Return the open store for calls that block."""


class JobReceipt(Receipt, Generic[R_co]):
    """The answer to ``TaskFunction.enqueue``: a ``Receipt``, and the way to the call's result.

    Equal to the plain receipt of the same task; a copy that was pickled is a plain receipt.
    """

    _app: ResultHost
    _typed: TypedSignature

    @classmethod
    def of(cls, receipt: Receipt, app: ResultHost, typed: TypedSignature) -> JobReceipt[Any]:
        """Make one of a plain receipt."""
        made: JobReceipt[Any] = cls(*receipt)
        made._app, made._typed = app, typed
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Receipt, tuple(self)

    def __repr__(self) -> str:
        return f"Job{Receipt.__repr__(Receipt(*self))}"

    async def result(self, *, wait: Duration = 0.0) -> Result[R_co] | None:
        """Return the result of the call; None until it has ended.

        The value is read by the annotation of what the function returns, when it is first used; if
        it is something else, reading it raises ``UsageError``.

        Args:
            wait: seconds to wait for the end; it returns as soon as the task ends.

        Otherwise as ``Engine.result``, including Durability and Cancellation.
        """
        return self._read(await self._app.engine.result(self.id, wait=wait))

    def result_sync(self, *, wait: Duration = 0.0) -> Result[R_co] | None:
        """Return the same in a thread without an event loop, which it blocks.

        Args:
            wait: seconds to wait for the end.

        Raises:
            UsageError: an event loop runs in this thread.

        Otherwise as ``result``, including Durability and Cancellation.
        """
        return self._read(self._app.sync_engine().result(self.id, wait=wait))

    def _read(self, found: Result[Any] | None) -> Result[Any] | None:
        typed = self._typed
        if found is None or found.status != "completed" or not typed.has_typed_result:
            return found
        stored = found
        return replace(found, value=Deferred(b"", lambda _: typed.decode_result(stored.value)))
