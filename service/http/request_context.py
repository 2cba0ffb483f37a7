"""One request and its answer: the forms of both, and long polls."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio import create_task_group

from ...client.documents.problems import CONTENT_TYPE, problem_of
from ...client.documents.wire import JSON, MSGPACK_FORM, Form, form_of
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError, UsageError
from ...repository.tasks.lease import Lease
from ..shared.origin import CONNECTION
from .access.roles import ACCESS, Access
from .admission import Admission
from .document_reader import id_of, read, read_query, stored_of
from .guard import RefusedError
from .payload_limits import document, engine_value
from .schemas import Query, Request

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from .server_state import Claim, ServerState

__all__ = [
    "BYTES",
    "ClientGoneError",
    "RequestContext",
    "UnsupportedError",
    "problem",
    "wanted_form",
]

BYTES: Final = "application/octet-stream"  # a body that is a stream
SHARDS: Final = "shards"  # in the query of any call
_SHARDS: Final = re.compile(r"[0-9]{1,4}(,[0-9]{1,4}){0,4095}")
T = TypeVar("T")
R = TypeVar("R", bound=Request)
Q = TypeVar("Q", bound=Query)


class ClientGoneError(Exception):
    """The client has gone: there is nobody to answer."""


class UnsupportedError(UsageError):
    """The body is of a media type that is not supported."""


class RequestContext:
    """A request being answered."""

    __slots__ = ("_request", "access", "form", "out", "server", "turns")

    def __init__(self, server: ServerState, request: HttpRequest) -> None:
        self.server = server
        self.turns = server.view.turns()
        self._request = request
        self.access: Access = request.scope[ACCESS]  # the guard, or the link, has put it there
        self.form: Form = JSON  # of the body, once it is read
        headers = request.headers
        self.out = wanted_form(headers.get("accept", ""), headers.get("content-type"))

    async def read(self, kind: type[R]) -> R:
        """Read the body; an empty one counts as an object without members.

        Raises:
            UsageError: it is not such a document, or of a media type that is not supported.
            PayloadTooLargeError: it has more parts than a request may have.
        """
        content_type = self._request.headers.get("content-type", "")
        form = form_of(content_type)
        if form is None:
            raise UnsupportedError(
                f"Content-Type {content_type!r}: send application/json or application/msgpack"
            )
        self._check_coding()
        self.form = form
        data = await self._request.body()
        return read(form, await document(form, data, self.turns) if data else {}, kind)

    def _check_coding(self) -> None:
        coding = self._request.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            raise UnsupportedError(f"Content-Encoding {coding[:80]!r}: send the body as it is")

    @contextmanager
    def uploading(self) -> Iterator[AsyncIterator[bytes]]:
        """The body in the slices in which it arrives; it counts as a long poll meanwhile.

        Raises:
            UsageError: it is of another media type, or the call came over a link. And, later:
            ClientDisconnect: the client has gone before the body's end.
            TooManyError: as many wait already as may.
        """
        if self._request.scope.get("type") != "http":
            raise UsageError("this body is a stream, which fits no frame: send it over HTTP")
        content_type = self._request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != BYTES:
            raise UnsupportedError(f"Content-Type {content_type!r}: the body is {BYTES}")
        self._check_coding()
        with self._admission.polling():
            yield self._request.stream()

    def query(self, kind: type[Q]) -> Q:
        """Read the query."""
        if not self._has_query:
            return read_query({}, kind)
        given: dict[str, str] = {}
        params = self._request.query_params
        pairs = params.multi_items() if hasattr(params, "multi_items") else params.items()
        for name, one in pairs:
            if name in given:
                raise UsageError(f"the parameter {name[:80]!r} is given twice")
            given[name] = one
        given.pop(SHARDS, None)
        return read_query(given, kind)

    def shards(self) -> list[int] | None:
        """The shards that the call is about; None: all that the node has.

        Raises:
            UsageError: it is no list of numbers.
        """
        text = self._request.query_params.get(SHARDS) if self._has_query else None
        if text is None:
            return None
        if not _SHARDS.fullmatch(text):
            raise UsageError(f"{SHARDS} is a list of numbers of shards, such as 0,2: {text[:80]!r}")
        return sorted({int(one) for one in text.split(",")})

    @property
    def _has_query(self) -> bool:
        """Whether there is anything to parse. A link's calls give their query as it is."""
        return self._request.scope.get("query_string") != b""

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
        """Answer with a document, in the form that the client accepts."""
        from starlette.responses import Response  # noqa: PLC0415 - an extra

        return Response(self.out.dumps(doc), status, media_type=self.out.content_type)

    async def answer_list(
        self, name: str, docs: Iterable[Any], rest: Mapping[str, Any], status: int = 200
    ) -> Response:
        """Answer with a list, whose documents are made and written in turns of the loop.

        Args:
            name: of the list.
            docs: its documents, made one by one.
            rest: other members of the answer.
            status: of HTTP.
        """
        from starlette.responses import Response  # noqa: PLC0415 - an extra

        items = []
        for doc in docs:
            items.append(self.out.dumps(doc))
            await self.turns.give()
        return Response(
            self.out.joined(name, items, rest), status, media_type=self.out.content_type
        )

    def stream(self, chunks: AsyncIterator[bytes], media_type: str) -> Response:
        """Answer with chunks, as they come; an error in the middle breaks the answer off.

        Raises:
            UsageError: the call came over a link, whose answers are whole.
        """
        from starlette.responses import StreamingResponse  # noqa: PLC0415 - an extra

        if self._request.scope.get("type") != "http":
            raise UsageError("this answer is a stream: ask for it over HTTP, or page with find")
        return StreamingResponse(chunks, media_type=media_type)

    async def value(self, document: Request, name: str, bytes_max: int) -> Any:
        """The value of a document, as the engine takes it; None if it has none.

        Args:
            document: from ``read``.
            name: of the value: its members are ``name``, ``name_base64`` and ``name_kind``.
            bytes_max: of a value that msgpack packed; the engine refuses a larger one.
        """
        return await engine_value(stored_of(self.form, document, name), self.turns, bytes_max, name)

    async def poll(
        self, call: Callable[[], Awaitable[T]], empty: T, claim: Claim | None = None
    ) -> T:
        """Wait for ``call``, until the client goes, cancels the claim, or the server closes.

        The leases of a client that has gone are released.

        Args:
            call: what waits.
            empty: returned where the server closes or the claim is cancelled.
            claim: the claim that it serves, if it is one.

        Raises:
            TooManyError: as many polls wait as may; those go on.
        """
        connection = self._request.scope.get("state", {}).get(CONNECTION)
        if not hasattr(connection, "has_ended"):  # of another server, or a link
            with self._admission.polling():
                return await self._poll(call, empty, claim)
        with self._admission.polling():
            if connection.has_ended:
                raise ClientGoneError
            connection.is_polling = True
            try:
                return await self._poll(call, empty, claim)
            finally:
                connection.is_polling = False

    @property
    def _admission(self) -> Admission:
        """The listener's; the application's where it runs under another server than ours."""
        connection = self._request.scope.get("state", {}).get(CONNECTION)
        found: Admission = self.server.admission if connection is None else connection.admission
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
                except RefusedError as exc:  # of a body that such a call should not have
                    error = exc
                group.cancel_scope.cancel()

            group.start_soon(watch)
            if claim is not None:
                claim.stop = group.cancel_scope.cancel
                if claim.is_cancelled:
                    claim.stop()
            with self.server.polling(group.cancel_scope, self.access):
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
        """Just before the answer: release the leases of a client that has gone."""
        connection = self._request.scope.get("state", {}).get(CONNECTION)
        if hasattr(connection, "has_gone"):
            has_gone = connection.has_gone
        else:  # of another server
            has_gone = await self._request.is_disconnected()
        if has_gone:
            self._give_back(value)

    def call_if_unsent(self, call: Callable[[], object]) -> None:
        """Call it if the connection ends before it has taken the whole answer."""
        connection = self._request.scope.get("state", {}).get(CONNECTION)
        if hasattr(connection, "on_unsent"):
            connection.on_unsent = call

    def _give_back(self, value: Any) -> None:
        if isinstance(value, list):
            self.server.view.give_back([one for one in value if isinstance(one, Lease)])
        raise ClientGoneError


def wanted_form(accept: str, content_type: str | None) -> Form:
    """The form of the answer that a client accepts, by its headers."""
    for one in accept.split(","):
        form = form_of(one)
        if form is not None:
            return form
    if content_type is not None and "*/*" in accept:
        return form_of(content_type) or JSON
    return MSGPACK_FORM if form_of(content_type or "") is MSGPACK_FORM and not accept else JSON


def problem(error: LodeqError, status: int | None = None) -> Response:
    """Answer with an error."""
    from starlette.responses import Response  # noqa: PLC0415 - an extra

    doc = problem_of(error, status)
    headers = {}
    after_ms = doc.get("retry_after_ms")
    if after_ms is not None:
        headers["retry-after"] = str(max(1, -(-after_ms // 1000)))
    return Response(JSON.dumps(doc), doc["status"], headers, CONTENT_TYPE)
