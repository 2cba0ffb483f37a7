"""One request and its answer: forms, members of documents, long polls."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio import create_task_group

from ...client.problems import CONTENT_TYPE, problem_of
from ...client.wire import JSON, MSGPACK_FORM, Form, Stored, form_of
from ...engine.runtime.task_id import TaskId
from ...errors import LimitError, LodeqError, UsageError
from ...repository.model.arguments import duration_s
from ...repository.state.turns import Turns
from ...repository.tasks.lease import Lease
from .admission import Admission
from .guard import RefusedError
from .payload_limits import document, engine_value

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .claim_ids import Claim
    from .server_state import ServerState

__all__ = [
    "ClientGoneError",
    "DocumentReader",
    "RequestContext",
    "UnsupportedError",
    "id_of",
    "problem",
]

T = TypeVar("T")
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")


class ClientGoneError(Exception):
    """Nobody is left to answer."""


class UnsupportedError(UsageError):
    """A body of a media type that is none of ours."""


class DocumentReader:
    """The members of a document, each taken once; one that nobody takes is an error."""

    __slots__ = ("_left", "form", "what")

    def __init__(self, form: Form, doc: object, what: str) -> None:
        if not isinstance(doc, dict):
            raise UsageError(f"{what} must be an object, not {type(doc).__name__}")
        self._left = dict(doc)
        self.form = form
        self.what = what

    def take(self, name: str, default: Any = None) -> Any:
        """A member as it is; the engine says what is wrong with it."""
        return self._left.pop(name, default)

    def has(self, name: str) -> bool:
        """Whether a member is there, not yet taken."""
        return name in self._left

    def need(self, name: str) -> Any:
        """A member that must be there."""
        self.check(name)
        return self._left.pop(name)

    def check(self, name: str) -> None:
        """A member must be there."""
        if name not in self._left:
            raise UsageError(f"{self.what} needs {name!r}")

    def whole(self, name: str, default: Any = None) -> Any:
        """A member; one without a fraction is a whole number, however it was written."""
        value = self._left.pop(name, default)
        return int(value) if type(value) is float and value.is_integer() else value

    def id(self, name: str) -> TaskId:
        """A task's id, which must be there."""
        return id_of(self.need(name))

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise UsageError(f"{name} must be true or false")
        return value

    def durable(self) -> bool | None:
        """How much a call asks for, or None."""
        if self._left.get("durable") is None:
            return self.take("durable")  # type: ignore[no-any-return]  # None
        return self.flag("durable", False)

    def seconds(self, name: str) -> float | None:
        """A length of time, or None."""
        value = self._left.pop(name, None)
        return None if value is None else duration_s(value, name)

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise UsageError(f"{name} must be text")
        return value

    def items(self, name: str, most: int) -> list[Any]:
        """A list of bounded length."""
        value = self.need(name)
        if not isinstance(value, list):
            raise UsageError(f"{name} must be a list")
        if len(value) > most:
            raise LimitError(f"{len(value)} {name} in one request, at most {most}: split it")
        return value

    def value(self, name: str) -> Any:
        """A ``Stored`` value, or None."""
        stored = self.form.take(self._left, name)
        for key in (name, f"{name}_base64", f"{name}_kind"):
            self._left.pop(key, None)
        return stored

    def raw(self, name: str) -> bytes:
        """Bytes of ours: a token."""
        raw = self.form.take_raw(self._left, name)
        del self._left[name]
        return raw

    def claim_id(self) -> bytes | None:
        """The id that a client has drawn for its claim, if it has."""
        return self.raw("claim_id") if "claim_id" in self._left else None

    def key(self, name: str) -> str | bytes | None:
        """A dedup or shard key."""
        coded = f"{name}_base64"
        if coded in self._left and self._left.get(name) is None:
            self._left.pop(name, None)
            raw = self.form.take_raw(self._left, coded)
            del self._left[coded]
            return raw
        value: str | bytes | None = self._left.pop(name, None)  # the engine checks its type
        return value

    def done(self) -> None:
        """Refuse what was not taken: a misspelt option must not pass in silence."""
        if self._left:
            names = ", ".join(sorted(map(repr, self._left)))
            raise UsageError(f"{self.what} has no {names}")


def id_of(value: Any) -> TaskId:
    """An id as text: a UUID, with or without its hyphens, and nothing around it; or its bytes."""
    if isinstance(value, str) and not _ID.fullmatch(value):
        raise UsageError(f"not a task id: {value[:80]!r} is not a UUID")
    return TaskId(value)


class RequestContext:
    """A request being answered."""

    __slots__ = ("_request", "hub", "out", "turns")

    def __init__(self, hub: ServerState, request: Request) -> None:
        self.hub = hub
        self.turns = Turns(hub.core)
        self._request = request
        self.out = _wanted(request.headers.get("accept", ""), request.headers.get("content-type"))

    async def members(self, what: str = "the body", *, is_needed: bool = True) -> DocumentReader:
        """The body's document. A body is needed, or an empty one counts as ``{}``."""
        content_type = self._request.headers.get("content-type", "")
        form = form_of(content_type)
        if form is None:
            raise UnsupportedError(
                f"Content-Type {content_type!r}: send application/json or application/msgpack"
            )
        data = await self._request.body()
        if not data and not is_needed:
            return DocumentReader(form, {}, what)
        return DocumentReader(form, await document(form, data, self.turns), what)

    def query(self, *names: str) -> Mapping[str, str]:
        """The query's members; none but these."""
        given = self._request.query_params
        unknown = set(given) - set(names)
        if unknown:
            raise UsageError(f"no such query parameter: {', '.join(sorted(unknown))}")
        return given

    def path(self, name: str) -> str:
        """A part of the path."""
        value: str = self._request.path_params[name]
        return value

    @property
    def task_id(self) -> TaskId:
        """The id in the path."""
        return id_of(self.path("task_id"))

    def header(self, name: str) -> str | None:
        """A header of the request."""
        return self._request.headers.get(name)

    def answer(self, doc: Any, status: int = 200) -> Response:
        """The answer, in the form that was asked for."""
        from starlette.responses import Response  # noqa: PLC0415 - an extra

        return Response(self.out.dumps(doc), status, media_type=self.out.content_type)

    async def answer_list(
        self, name: str, docs: Iterable[Any], rest: Mapping[str, Any], status: int = 200
    ) -> Response:
        """An answer of a list, each of whose documents is made and written in its turn."""
        from starlette.responses import Response  # noqa: PLC0415 - an extra

        items = []
        for doc in docs:
            items.append(self.out.dumps(doc))
            await self.turns.give()
        return Response(
            self.out.joined(name, items, rest), status, media_type=self.out.content_type
        )

    async def value(self, stored: Stored | None, bytes_max: int, what: str) -> Any:
        """What to hand to the engine for a value of the body."""
        return await engine_value(stored, self.turns, bytes_max, what)

    async def poll(
        self, call: Callable[[], Awaitable[T]], empty: T, claim: Claim | None = None
    ) -> T:
        """Wait for ``call``, until the client goes, cancels the claim, or the server closes.

        ``empty`` where the server closes or the claim is cancelled. A client that has gone gives
        back what it had claimed.

        Raises:
            TooManyError: there are as many polls as there may be; the others go on.
        """
        with self._admission.polling():
            return await self._poll(call, empty, claim)

    @property
    def _admission(self) -> Admission:
        """That of the listener; of the whole application where the server is not ours."""
        connection = self._request.scope.get("state", {}).get("connection")
        found: Admission = self.hub.admission if connection is None else connection.admission
        return found

    async def _poll(self, call: Callable[[], Awaitable[T]], empty: T, claim: Claim | None) -> T:
        gone, value = False, empty
        error: LodeqError | RefusedError | None = None
        async with create_task_group() as group:

            async def watch() -> None:
                nonlocal gone, error
                try:
                    while (await self._request.receive())["type"] != "http.disconnect":
                        pass
                    gone = True
                except RefusedError as exc:  # a body that nobody had asked for
                    error = exc
                group.cancel_scope.cancel()

            group.start_soon(watch)
            if claim is not None:
                claim.stop = group.cancel_scope.cancel
                if claim.is_cancelled:
                    claim.stop()
            with self.hub.polling(group.cancel_scope):
                try:
                    value = await call()
                except LodeqError as exc:
                    error = exc
            group.cancel_scope.cancel()
        if error is not None:
            raise error
        if gone:
            self._give_back(value)
        return value

    async def check_here(self, value: Any) -> None:
        """Just before the answer: what a client that has gone claimed goes back."""
        if await self._request.is_disconnected():
            self._give_back(value)

    def _give_back(self, value: Any) -> None:
        if isinstance(value, list):
            self.hub.give_back([one for one in value if isinstance(one, Lease)])
        raise ClientGoneError


def _wanted(accept: str, content_type: str | None) -> Form:
    for one in accept.split(","):
        form = form_of(one)
        if form is not None:
            return form
    if content_type is not None and "*/*" in accept:
        return form_of(content_type) or JSON
    return MSGPACK_FORM if form_of(content_type or "") is MSGPACK_FORM and not accept else JSON


def problem(error: LodeqError, status: int | None = None) -> Response:
    """The answer of an error."""
    from starlette.responses import Response  # noqa: PLC0415 - an extra

    doc = problem_of(error, status)
    headers = {}
    after_ms = doc.get("retry_after_ms")
    if after_ms is not None:
        headers["retry-after"] = str(max(1, -(-after_ms // 1000)))
    return Response(JSON.dumps(doc), doc["status"], headers, CONTENT_TYPE)
