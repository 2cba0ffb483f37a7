"""Large answers over the link come in turns: whoever asks for little does not wait for all."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from support_http import BASE, serving, socket_path
from support_loop import on_loop

import lodeq
import lodeq.testing
from lodeq.repository.api.view import EngineView
from lodeq.service.http.link.answer_turns import TURN_BYTES, AnswerTurns
from lodeq.service.http.server_state import PAGES_MAX


class Iterations:
    """Counts those of the loop."""

    def __init__(self) -> None:
        self.n = 0
        self._handle = asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.n += 1
        self._handle = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._handle.cancel()


async def answers(sizes: list[int]) -> list[tuple[int, int]]:
    """(which, iteration) of calls that begin together, in the order of their answers."""
    turns, iterations = AnswerTurns(asyncio.get_running_loop()), Iterations()
    found: list[tuple[int, int]] = []

    async def one(n: int) -> None:
        await turns.begin()
        found.append((n, iterations.n))
        turns.answered(sizes[n])

    await asyncio.gather(*map(one, range(len(sizes))))
    iterations.stop()
    return found


@on_loop
async def test_small_answers_share_a_turn() -> None:
    found = await answers([TURN_BYTES // 64] * 50)
    assert len({at for _, at in found}) == 1


@on_loop
async def test_a_turn_without_any_is_between_two_large_ones_and_they_keep_their_order() -> None:
    found = await answers([TURN_BYTES] * 6)
    assert [n for n, _ in found] == list(range(6))
    steps = [later - at for (_, at), (_, later) in pairwise(found)]
    assert min(steps) >= 2
    assert max(steps) <= 4  # and nobody waits without need


@on_loop
async def test_a_call_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    turns = AnswerTurns(asyncio.get_running_loop())
    await turns.begin()
    turns.answered(TURN_BYTES)
    waiting = [asyncio.ensure_future(turns.begin()) for _ in range(4)]
    await asyncio.sleep(0)
    for one in waiting[:3]:
        one.cancel()
    await waiting[3]
    await turns.begin()


@pytest.mark.anyio
async def test_results_that_are_asked_for_at_once_are_made_in_turns_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value, count = b"v" * TURN_BYTES, 24
    async with lodeq.testing.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([lodeq.NewTask(b"x")] * count)
        leases = await queue.claim(limit=count)
        await engine.complete_many([(lease, value) for lease in leases])
        with socket_path() as path:
            async with serving(engine, path=path) as url, lodeq.connect(url) as client:
                await client.queue("mail").stats()  # it is connected
                iterations, made = Iterations(), []
                answered = AnswerTurns.answered

                def noted(turns: AnswerTurns, n_bytes: int) -> None:
                    made.append(iterations.n)
                    answered(turns, n_bytes)

                monkeypatch.setattr(AnswerTurns, "answered", noted)
                found = await asyncio.gather(*(client.result(lease.task_id) for lease in leases))
                iterations.stop()
        assert [one and one.value for one in found] == [value] * count
        assert min(later - at for at, later in pairwise(made)) >= 2


@pytest.mark.anyio
async def test_a_call_that_changes_something_waits_for_no_large_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []

    async def begin(_: AnswerTurns) -> None:
        begun.append("a turn")

    monkeypatch.setattr(AnswerTurns, "begin", begin)
    async with lodeq.testing.open() as engine:
        await engine.queue("mail").enqueue(b"x")
        with socket_path() as path:
            async with serving(engine, path=path) as url, lodeq.connect(url) as client:
                (lease,) = await client.queue("mail").claim()
                begun.clear()
                await lease.progress(0.5)
                await lease.nack(reason="no")
                assert begun == []
                await client.queue("mail").stats()
                assert begun == ["a turn"]


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["http", "link"])
async def test_only_so_many_pages_are_made_at_once_whoever_asks(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is several MiB: of hundreds of callers none is refused, and all are answered in turn."""
    at_work, all_begun, go_on = [0, 0], asyncio.Event(), asyncio.Event()
    page = EngineView.page
    count = PAGES_MAX + 4

    async def slowly(self: EngineView, *args: Any, **options: Any) -> Any:
        at_work[0] += 1
        at_work[1] = max(at_work)
        if at_work[0] == PAGES_MAX:
            all_begun.set()
        await go_on.wait()
        found = await page(self, *args, **options)
        at_work[0] -= 1
        return found

    monkeypatch.setattr(EngineView, "page", slowly)
    async with lodeq.testing.open() as engine, AsyncExitStack() as stack:
        await engine.queue("mail").enqueue(b"x")
        path = stack.enter_context(socket_path())
        url = await stack.enter_async_context(serving(engine, path=path))
        if transport == "http":
            over = httpx.AsyncHTTPTransport(uds=path)
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=over, base_url=BASE)
            )
            asks = [partial(client.get, "/v1/queues/mail/tasks")] * count
        else:
            engines = [await stack.enter_async_context(lodeq.connect(url)) for _ in range(2)]
            asks = [engines[n % 2].queue("mail").peek for n in range(count)]
        asked = [asyncio.ensure_future(ask()) for ask in asks]
        await all_begun.wait()
        await anyio.wait_all_tasks_blocked()
        assert at_work == [PAGES_MAX, PAGES_MAX]
        go_on.set()
        await asyncio.gather(*asked)
        assert at_work[1] == PAGES_MAX


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
