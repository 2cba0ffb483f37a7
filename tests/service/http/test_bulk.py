"""Snapshots, loads and purges: a served store does what an embedded one does."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from support_http import ServedOpening, asgi_client, serving, socket_path
from support_ingest import create, publish, rewrite
from support_purge import end_some, make_plan

import lodeq
import lodeq.sync
from lodeq.engine.bulk.documents import read_document
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
SMALL = {"shards": 2, "block_cache_bytes": 8 << 20, "inbox": False}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def store(tmp_path):
    return tmp_path / "s"


@pytest.fixture(params=["embedded", "served"])
async def engine(request, store):
    opening = lodeq.open(store, **SMALL)
    async with ServedOpening(opening) if request.param == "served" else opening as engine:
        yield engine


def inner(engine):
    return getattr(engine, "inner", engine)


async def test_a_snapshots_life(engine, store):
    assert await engine.snapshots() == []
    taken = await engine.snapshot(keep=90)
    other = await engine.snapshot()
    assert await engine.snapshots() == await inner(engine).snapshots() == [taken, other]
    assert Path(taken.path).parent == store / "snapshots"
    assert taken.expires_ms - taken.created_ms == 90_000
    assert [mark.shard for mark in taken.shards] == [0, 1]
    await engine.release_snapshot(taken.id)
    assert await engine.snapshots() == [other]
    with pytest.raises(lodeq.SnapshotNotFoundError, match="has no snapshot"):
        await engine.release_snapshot(taken.id)
    for id in ("latest", "..", "../shard0", "a/b", ""):
        with pytest.raises((lodeq.SnapshotNotFoundError, lodeq.UsageError)):
            await engine.release_snapshot(id)
    for keep in (0, -1, "1h", float("nan")):
        with pytest.raises(lodeq.UsageError, match="keep"):
            await engine.snapshot(keep=keep)
    assert await engine.snapshots() == [other]


async def test_loads(engine, store):
    assert await engine.ingest() == lodeq.IngestReport()
    publish(store, [lodeq.NewTask(n) for n in range(20)])
    publish(store, [lodeq.NewTask(n) for n in range(3)], "k")
    rewrite(store, "k", shards=5)
    report = await engine.ingest("j")
    assert list(report.jobs) == [lodeq.IngestedJob("j", "done", 20)]
    assert (report.ok, report.tasks) == (True, 20)
    assert (await engine.queue("mail").stats()).ready == 20
    report = await engine.ingest()
    assert [(job.job, job.state) for job in report.jobs] == [("k", "refused")]
    assert not report.ok
    assert "5 shards" in report.jobs[0].reason
    for job in ("never", "no/job", 5):
        with pytest.raises(lodeq.UsageError):
            await engine.ingest(job)


async def test_forgetting_loads(engine, store):
    publish(store, [lodeq.NewTask(n) for n in range(20)])
    await engine.ingest()
    assert await engine.forget_loads(timedelta(days=1)) == lodeq.ForgottenLoads()
    for age in (3599, -1, "1d", float("nan")):
        with pytest.raises(lodeq.UsageError):
            await engine.forget_loads(age)


async def test_a_plan(engine, store, tmp_path):
    results, dead = await end_some(inner(engine))
    plan = make_plan(store, tmp_path / "plan", results[::2], dead[::3])
    assert await engine.purge_archived(plan) == lodeq.PurgeReport(35, 7, 0)
    assert await engine.purge_archived(tmp_path / "plan") == lodeq.PurgeReport(0, 0, 42)
    stats = await engine.queue("mail").stats()
    assert (stats.results, stats.dead) == (35, 13)
    assert (await engine.verify()).ok


async def test_a_plan_that_does_not_fit(engine, store, tmp_path):
    results, dead = await end_some(inner(engine))
    await create(tmp_path / "other")
    foreign = make_plan(tmp_path / "other", tmp_path / "foreign", [], [])
    with pytest.raises(lodeq.UsageError, match="of another store"):
        await engine.purge_archived(foreign)
    wider = make_plan(store, tmp_path / "wider", results, dead, shards=4)
    with pytest.raises(lodeq.UsageError, match="4 shards, the store has 2"):
        await engine.purge_archived(wider)
    plan = make_plan(store, tmp_path / "plan", results, dead)
    file = tmp_path / "plan" / "results-0.rows"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(lodeq.CorruptionError, match=r"results-0\.rows is damaged"):
        await engine.purge_archived(plan)
    with pytest.raises(lodeq.CorruptionError, match=r"nowhere/plan\.json"):
        await engine.purge_archived(tmp_path / "nowhere" / "plan.json")
    assert (await engine.queue("mail").stats()).results == 70


@pytest.mark.parametrize("settings", [Settings(body_bytes_max=480), Settings(batch_max=1)])
async def test_a_plan_goes_in_requests_of_bounded_size(store, tmp_path, settings):
    async with ServedOpening(lodeq.open(store, **SMALL), settings) as client:
        results, dead = await end_some(client.inner)
        plan = make_plan(store, tmp_path / "plan", results, dead)
        sent, send = [], client._transport.send

        async def noted(call):
            sent.append(sum(len(part["rows"]) for part in call.doc["parts"]) // 24)
            return await send(call)

        client._transport.send = noted
        assert await client.purge_archived(plan) == lodeq.PurgeReport(70, 20, 0)
        assert sum(sent) == 90
        assert sent == ([70, 20] if settings.batch_max == 1 else [10] * 9)


@pytest.mark.parametrize(
    "change",
    [
        {"plan": "/etc/passwd"},
        {"store_id": "zz"},
        {"store_id": 5},
        {"store_id": "00" * 16},
        {"shards": 3},
        {"shards": True},
        {"parts": {}},
        {"parts": [5]},
        {"shard": 2},
        {"shard": -1},
        {"shard": True},
        {"kind": "tasks"},
        {"kind": None},
        {"rows": "AAAA"},
        {"rows": "no base64"},
        {"rows": 5},
        {"path": "/etc/passwd"},
    ],
    ids=str,
)
async def test_what_is_no_part_of_a_plan_is_refused(store, change):
    async with lodeq.open(store, **SMALL) as engine, asgi_client(make_app(engine)) as client:
        part = {"shard": 0, "kind": "dead", "rows": ""}
        plan = {"store_id": engine._runtime.opened.store_id.hex(), "shards": 2, "parts": [part]}
        assert (await client.post("/v1/purge_archived", json=plan)).status_code == 200
        (part if set(change) & {"shard", "kind", "rows", "path"} else plan).update(change)
        answer = await client.post("/v1/purge_archived", json=plan)
        assert answer.status_code == 422, answer.text
        for name in ("store_id", "shards", "parts"):
            answer = await client.post(
                "/v1/purge_archived", json={key: plan[key] for key in plan if key != name}
            )
            assert answer.status_code == 422


async def test_as_another_language_speaks_it(store):
    async with lodeq.open(store, **SMALL) as engine, asgi_client(make_app(engine)) as client:
        taken = await client.post("/v1/snapshots", json={"keep": 60})
        told = json.loads(taken.content)
        manifest = read_document(f"{told['path']}/snapshot.json", "lodeq-snapshot", 1)
        assert taken.status_code == 201
        assert {name: manifest[name] for name in told if name != "path"} == {
            name: value for name, value in told.items() if name != "path"
        }
        assert (await client.get("/v1/snapshots")).json() == {"snapshots": [told]}
        assert (await client.delete(f"/v1/snapshots/{told['id']}")).status_code == 200
        gone = await client.delete(f"/v1/snapshots/{told['id']}")
        assert (gone.status_code, gone.json()["type"]) == (
            404,
            "urn:lodeq:problem:snapshot-not-found",
        )
        assert (await client.post("/v1/ingest", json={})).json() == {
            "ok": True,
            "tasks": 0,
            "jobs": [],
        }


@pytest.mark.parametrize("how", ["embedded", "served"])
def test_for_threads(store, tmp_path, how):
    with start_blocking_portal() as portal, socket_path() as path:
        opening = lodeq.open(store, **SMALL)
        inside = portal.call(opening.__aenter__)
        results, dead = portal.call(end_some, inside)
        publish(store, [lodeq.NewTask(n) for n in range(20)])
        plan = make_plan(store, tmp_path / "plan", results, dead)
        with portal.wrap_async_context_manager(serving(inside, path=path)) as url:
            engine = inside.sync if how == "embedded" else lodeq.sync.connect(url).__enter__()
            taken = engine.snapshot(keep=60)
            assert engine.snapshots() == [taken]
            engine.release_snapshot(taken.id)
            assert engine.snapshots() == []
            assert engine.ingest().tasks == 20
            assert engine.forget_loads(3600) == lodeq.ForgottenLoads()
            assert engine.purge_archived(plan) == lodeq.PurgeReport(70, 20, 0)
            if how == "served":
                engine.close()
        portal.call(opening.__aexit__, None, None, None)
