"""Each part of a function's policy on each path by which one of its tasks is made: every cell."""

import functools

import anyio
import pytest
from support_cli import run
from support_dashboard import FORM, browsing, form_token
from support_http import asgi_client, serving, socket_path

import lodeq
from lodeq.service.http.app import make_app
from lodeq.testing import ManualClock, worker
from lodeq.worker import App, current

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


POLICY = {
    "max_attempts": 3,
    "retry": lodeq.Backoff("fixed", base=7.0),
    "retention": 60,
    "dead_retention": 90,
    "priority": 7,
    "ttl": 600,
    "timeout": 5,
    "rate": "20/s",
    "queue_concurrency": 2,
}


class Jobs:
    def __init__(self):
        self.app = app = App(name="test")
        self.runs = []
        self.clock = ManualClock()

        @app.task("mail", **POLICY)
        async def send(to: str = "a") -> None:
            ctx = current()
            self.runs.append((ctx.timeout_s, ctx.queue))

        @app.cron("* * * * *", queue="ticks", **POLICY)
        async def tick() -> None:
            ctx = current()
            self.runs.append((ctx.timeout_s, ctx.queue))

        @app.task("parents", max_attempts=9)
        async def parent() -> None:
            current().then(send.new())

        @app.task("others")
        async def other() -> None: ...

        self.send, self.parent, self.other = send, parent, other


async def by_enqueue(jobs, engine):
    await jobs.send.enqueue()


async def by_enqueue_sync(jobs, engine):
    await anyio.to_thread.run_sync(jobs.send.enqueue_sync)


async def by_options(jobs, engine):
    await jobs.send.options(labels={"x": "1"}).enqueue()


async def by_enqueue_many(jobs, engine):
    await jobs.send.enqueue_many([jobs.send.new()])


async def by_many_of_the_app(jobs, engine):
    await jobs.app.enqueue_many([jobs.other.new(), jobs.send.new()])


async def by_many_of_the_engine(jobs, engine):
    await engine.enqueue_many([jobs.send.new()])


async def by_many_of_another_queue(jobs, engine):
    await engine.queue("others").enqueue_many([jobs.send.new()])


async def by_follow_up(jobs, engine):
    await jobs.parent.enqueue()
    lease = (await engine.queue("parents").claim())[0]
    await lease.complete(None, then=[jobs.send.new()])


async def by_workflow(jobs, engine):
    async with await jobs.app.workflow(key="w") as flow:
        await flow.add([jobs.send.new()])


async def by_cron(jobs, engine):
    jobs.clock.advance(60)
    await jobs.app._cron.flush()


async def by_name(jobs, engine):
    await engine.enqueue_function("mail", "send", {"to": "a"})


async def by_http(jobs, engine):
    async with asgi_client(make_app(engine)) as client:
        body = {"queue": "mail", "function": "send", "arguments": {"to": "a"}}
        reply = await client.post("/v1/functions/enqueue", json=body)
        assert reply.status_code < 300, reply.text


async def by_command(jobs, engine):
    with socket_path() as path:
        async with serving(engine, path=path) as url:
            call = functools.partial(run, "enqueue", url, "mail", "send", "--arg", "to=a")
            await anyio.to_thread.run_sync(call)


async def by_dashboard(jobs, engine):
    async with browsing(engine) as client:
        page = await client.get("/functions/mail?name=send")
        body = f"form={form_token(page)}&arg.to=a"
        done = await client.post("/functions/mail?name=send", content=body, headers=FORM)
        assert done.status_code == 303


PATHS = [
    *(by_enqueue, by_enqueue_sync, by_options, by_enqueue_many, by_many_of_the_app),
    *(by_many_of_the_engine, by_many_of_another_queue, by_follow_up, by_workflow, by_cron),
    *(by_name, by_http, by_command, by_dashboard),
]


@pytest.mark.parametrize("path", PATHS)
async def test_every_part_of_the_policy_holds(path):
    jobs = Jobs()
    async with worker(jobs.app, clock=jobs.clock) as bench:
        engine, queue = bench.engine, "ticks" if path is by_cron else "mail"
        await jobs.app._publish_limits(None)  # as a worker that starts
        await engine.publish_functions(jobs.app.published())
        await path(jobs, engine)
        (task,) = await engine.queue(queue).peek()
        assert (task.queue, task.priority, task.max_attempts) == (queue, 7, 3)
        assert round((task.expires_at - task.enqueued_at).total_seconds()) == 600
        settings = await engine.settings(queue)
        assert (settings.rate, settings.concurrency) == ("20/s", 2)
        # Nothing but what the task carries and what is set in the store is known to who claims it.
        (lease,) = await engine.queue(queue).claim()
        policy = lease.policy
        assert (policy.retention_ms, policy.dead_retention_ms) == (60_000, 90_000)
        await lease.nack()
        task = await engine.get(task.id)
        assert round((task.due_at - bench.clock.now).total_seconds()) == 7
        bench.clock.advance(8)
        jobs.app._cron.close()
        await jobs.app.drain()
        assert (5.0, queue) in jobs.runs
