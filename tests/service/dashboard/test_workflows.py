"""Pages of workflows: the list, one with its drawing, its buttons, and the links from its tasks."""

import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support_dashboard import FORM, ask, browsing, form_token, row, tile
from support_http import ServedOpening

import lodeq
import lodeq.testing
from lodeq import NewTask
from lodeq.dashboard import dashboard

pytestmark = pytest.mark.anyio


@pytest.fixture
def shown(engine):
    return engine


async def report(engine, pages=3, name="report", on_failure="run"):
    flow = await engine.workflow(
        NewTask(b"j", "joins", function="bind"), name=name, on_failure=on_failure
    )
    parts = [NewTask(b"p", "parts", function="render", preview=f"page={n}") for n in range(pages)]
    ids = await flow.add(parts)
    await flow.add([NewTask(b"c", "checks", function="check")], after=ids[:2])
    await flow.seal()
    return flow, ids


async def test_the_list_and_its_states(shown):
    flow, _ = await report(shown)
    other = await shown.workflow(name="<b>open</b>")
    async with browsing(shown) as client:
        page = await client.get("/workflows")
        assert row(page, str(flow.id))[:5] == ["report", "running", "4", "0", "0"]
        assert row(page, str(other.id))[0] == "&lt;b&gt;open&lt;/b&gt;"
        only = await client.get("/workflows?state=open")
        assert str(flow.id) not in only.text
        assert str(other.id) in only.text
        assert (await client.get("/workflows?state=lost")).status_code == 422
        assert 'href="/workflows"' in (await client.get("/")).text


async def test_the_list_page_by_page(shown):
    ids = [(await shown.workflow()).id for _ in range(30)]
    async with browsing(shown) as client:
        page = await client.get("/workflows")
        found = re.findall(r'<tr data-key="([^"]+)"', page.text)
        more = re.search(r'rel="next" href="([^"]+)"', page.text)[1].replace("&amp;", "&")
        found += re.findall(r'<tr data-key="([^"]+)"', (await client.get(more)).text)
    assert found == [str(one) for one in sorted(ids, reverse=True)]


async def test_one_is_drawn_and_names_who_failed(shown):
    flow, ids = await report(shown)
    leases = await shown.queue("parts").claim(limit=3)
    await leases[0].bury("no such <page>")
    await leases[1].complete()
    async with browsing(shown) as client:
        page = await client.get(f"/workflows/{flow.id}")
    assert (tile(page, "Members"), tile(page, "Ended"), tile(page, "Failed")) == (
        "4", "2 50 %", "1",
    )  # fmt: skip
    assert page.text.count('class="box"') == 3  # two functions and the callback
    assert page.text.count('class="tie"') == 2
    for text in ("1 dead", "1 completed", "1 leased"):
        assert f"<title>{text}</title>" in page.text
    failed = row(page, f"failed-{leases[0].task_id}")
    number = ids.index(leases[0].task_id)
    assert failed[0] == str(number)
    assert failed[2:] == [f"render(page={number})", "dead", "no such &lt;page&gt;"]
    assert f'href="/tasks/{flow.callback}"' in page.text
    assert all(f'href="/tasks/{one}"' in page.text for one in ids)


async def test_a_thousand_members_are_a_few_boxes(engine):
    flow, ids = await report(engine, pages=1000)
    async with browsing(engine) as client:
        page = await client.get(f"/workflows/{flow.id}")
        assert page.text.count('class="box"') == 3
        assert "1,000 in parts" in page.text
        assert len(page.text) < 20_000
        second = await client.get(f"/workflows/{flow.id}?after=24")
        assert f'href="/tasks/{ids[25]}"' in second.text
        assert f'href="/tasks/{ids[24]}"' not in second.text
        assert (await client.get(f"/workflows/{flow.id}?after=x")).status_code == 422


async def test_cancel_asks_and_cancels_all_of_it(shown):
    flow, ids = await report(shown)
    async with browsing(shown) as client:
        question = await client.get(f"/workflows/{flow.id}/cancel")
        assert "0 of 4 members ended" in question.text
        assert (await flow.info()).state == "running"  # asking does nothing
        done = await ask(client, f"/workflows/{flow.id}/cancel")
        after = await client.get(done.headers["location"])
        assert "4 tasks cancelled." in after.text
        assert "/cancel" not in after.text  # there is nothing left to cancel
    assert (await flow.info()).state == "cancelled"
    assert (await shown.result(ids[0])).status == "cancelled"


async def test_redrive_runs_dead_members_again(shown):
    flow, _ = await report(shown, on_failure="wait")
    for queue in ("parts", "checks"):
        for lease in await shown.queue(queue).claim(limit=4):
            await lease.bury("broken")
    async with browsing(shown) as client:
        done = await ask(client, f"/workflows/{flow.id}/redrive")
        after = await client.get(done.headers["location"])
        assert re.search(r"\d tasks redriven\.", after.text)
        assert tile(after, "Failed") == "0"
        assert tile(after, "Redriven") == "1 times"


async def test_a_redrive_that_cannot_be_says_why(shown):
    flow = await shown.workflow(NewTask(b"j", "joins"))
    async with browsing(shown) as client:
        refused = await ask(client, f"/workflows/{flow.id}/redrive")
        assert refused.status_code == 422
        assert "seal it first" in refused.text


async def test_a_reader_sees_no_buttons_and_may_not_act(shown):
    flow, _ = await report(shown)
    async with browsing(shown, access="read") as client:
        page = await client.get(f"/workflows/{flow.id}")
        assert "/cancel" not in page.text
        assert (await client.get(f"/workflows/{flow.id}/cancel")).status_code == 403
        assert (await client.post(f"/workflows/{flow.id}/cancel")).status_code == 403
    assert (await flow.info()).state == "running"


async def test_a_form_of_another_session_is_refused(shown):
    flow, _ = await report(shown)
    async with browsing(shown) as client, browsing(shown) as other:
        token = form_token(await other.get(f"/workflows/{flow.id}/cancel"))
        body = f"form={token}0"
        refused = await client.post(f"/workflows/{flow.id}/cancel", content=body, headers=FORM)
        assert refused.status_code == 403


async def test_a_task_links_to_its_workflow_and_names_what_it_waits_for(shown):
    flow, ids = await report(shown)
    (*_, check) = await flow.parts_page()
    alone = (await shown.queue("parts").enqueue(b"p")).id
    waits = await shown.enqueue_after(NewTask(b"w", "later"), [alone])
    link = f'href="/workflows/{flow.id}"'
    async with browsing(shown) as client:
        for one in (ids[0], check.task_id, flow.callback):
            assert link in (await client.get(f"/tasks/{one}")).text
        page = await client.get(f"/tasks/{check.task_id}")
        assert "Waits for" in page.text
        assert row(page, str(ids[0]))[0] == "0"
        assert f"/tasks/{check.task_id}/cancel" in page.text  # a waiting task may be cancelled
        page = await client.get(f"/tasks/{waits}")
        assert row(page, str(alone))[2] == "under way"
        assert "/workflows/" not in page.text
        assert "Waits for" not in (await client.get(f"/tasks/{alone}")).text
        by_member = await client.get(f"/workflows/{ids[0]}")
        assert str(flow.id) in by_member.text
        assert (await client.get(f"/workflows/{alone}")).status_code == 404
        assert (await client.get(f"/workflows/{flow.id}/explode")).status_code == 404
        assert (await client.get(f"/workflows/{ids[0]}/cancel")).status_code == 404


async def test_a_queue_has_a_tab_of_tasks_that_wait(shown):
    flow, _ = await report(shown)
    async with browsing(shown) as client:
        page = await client.get("/queues/joins?state=waiting")
        assert str(flow.callback) in page.text
        assert "Purge 1 waiting" in page.text
        assert "No delayed tasks." in (await client.get("/queues/joins?state=delayed")).text
        assert "2 waiting" in (await client.get("/")).text
        done = await ask(client, "/queues/joins/purge?state=waiting")
        assert done.status_code == 303
    assert (await flow.info()).callback_state == "cancelled"


async def test_workflows_of_a_served_store_through_a_client_and_a_mount():
    async with ServedOpening(lodeq.testing.open()) as remote:
        flow, ids = await report(remote)

        async def authorize(scope):
            return "write"

        app = Starlette(routes=[Mount("/jobs", dashboard(remote, authorize=authorize))])
        web = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=web, base_url="http://host", follow_redirects=True
        ) as client:
            page = await client.get("/jobs/workflows")
            assert row(page, str(flow.id))[1] == "running"
            page = await client.get(f"/jobs/workflows/{flow.id}")
            assert page.text.count('class="box"') == 3
            link = re.search(rf'href="([^"]*/tasks/{ids[0]})"', page.text)[1]
            task = await client.get(f"/jobs/workflows/{link}")
            assert task.status_code == 200
            back = re.search(rf'href="([^"]*/workflows/{flow.id})"', task.text)[1]
            assert (await client.get(f"/jobs/tasks/{back}")).status_code == 200
            done = await ask(client, f"/jobs/workflows/{flow.id}/cancel")
            assert "4 tasks cancelled." in done.text
