"""What the pages show of a store, and how: by eyes that read HTML."""

import re

import pytest
from support_dashboard import browsing, row, tile

import lodeq
from lodeq.repository.api.view import EngineView
from lodeq.repository.model.codec import CodecBytes
from lodeq.service.dashboard.live import figures as live_figures

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>\"'&\u202egnp.exe\x1b[2J"


async def test_an_empty_store_says_so(engine):
    async with browsing(engine) as client:
        page = await client.get("/")
        assert page.status_code == 200
        assert "No queues yet" in page.text
        assert "healthy" in page.text


async def test_every_queue_has_its_counts(engine, clock):
    mail, images = engine.queue("mail"), engine.queue("images", tenant="acme")
    await mail.enqueue(b"1")
    await mail.enqueue(b"2")
    await mail.enqueue(b"later", delay=60)
    await images.enqueue(b"3")
    lease = await images.claim_one()
    await lease.bury("broken")
    clock.advance(7)
    async with browsing(engine) as client:
        page = await client.get("/")
        assert row(page, "mail")[:6] == ["mail", "2", "7.0 s", "1", "0", "0"]
        assert row(page, "images")[:6] == ["images", "0", "–", "0", "0", "1"]
        assert (tile(page, "Ready"), tile(page, "Delayed"), tile(page, "Dead")) == ("2", "1", "1")
        assert tile(page, "Oldest ready") == "7.0 s"


async def test_rates_and_latencies_are_those_between_statuses(engine, clock):
    mail = engine.queue("mail")
    async with browsing(engine) as client:
        await client.get("/")
        for _ in range(20):
            await mail.enqueue(b"x")
        clock.advance(2)
        leases = await mail.claim(limit=20)
        clock.advance(0.5)
        for lease in leases[:15]:
            await lease.complete()
        for lease in leases[15:]:
            await lease.nack()
        clock.advance(7.5)
        page = await client.get("/")
        cells = row(page, "mail")
        assert cells[6:11] == ["2.0", "1.5", "0.50", "2.0 s", "500 ms"]
        assert (tile(page, "Enqueued"), tile(page, "Failed")) == ("2.0 /s", "0.50 /s")
        queue = await client.get("/queues/mail")
        assert tile(queue, "Claimed") == "2.0 /s"
        assert tile(queue, "Waits") == "2.0 s mean"


async def test_statuses_are_a_second_apart_however_many_ask(engine, clock):
    async with browsing(engine) as client:
        await client.get("/")
        await engine.queue("mail").enqueue(b"x")
        assert "mail" not in (await client.get("/")).text
        clock.advance(1)
        assert row(await client.get("/"), "mail")[1] == "1"


async def test_a_status_that_takes_long_is_collected_seldom(engine, clock, monkeypatch):
    taken = []

    def slow(self, sums):
        taken.append(clock.mono())
        clock.advance(0.5)
        return stats(self, sums)

    stats = EngineView.stats
    monkeypatch.setattr(EngineView, "stats", slow)
    figures = live_figures.LiveFigures(engine)
    for _ in range(24):
        await figures.status()
        clock.advance(1)
    assert [round(at - taken[0]) for at in taken] == [0, 10, 21]


async def test_queues_are_found_by_a_part_of_their_name(engine):
    for name in ("mail.fast", "mail.slow", "images"):
        await engine.queue(name).enqueue(b"x")
    async with browsing(engine) as client:
        page = await client.get("/?q=mail")
        assert 'data-key="mail.fast"' in page.text
        assert 'data-key="images"' not in page.text
        nothing = await client.get("/", params={"q": HOSTILE})
        assert "<script>alert" not in nothing.text
        assert "No queue has" in nothing.text


async def test_more_queues_than_a_page_holds_are_counted(engine):
    for number in range(203):
        await engine.queue(f"q{number:03}").enqueue(b"x")
    async with browsing(engine) as client:
        page = await client.get("/")
        assert page.text.count('<tr data-key="q') == 200
        assert "3 more queues" in page.text


async def test_the_shards_their_commits_and_their_balance(engine):
    for _ in range(8):
        await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        page = await client.get("/")
        shards = [row(page, str(index)) for index in range(2)]
        assert [cells[0] for cells in shards] == ["0", "1"]
        assert sum(int(cells[2]) for cells in shards) == 8
        assert sum(int(cells[3]) for cells in shards) >= 8
        assert all(cells[5].endswith("s") for cells in shards if cells[3] != "0")
        assert "% of all tasks" in page.text
        assert "Writes per commit" in page.text


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "dead"])
async def test_a_queue_by_state(engine, state):
    mail = engine.queue("mail", max_attempts=3)
    await mail.enqueue(b"x", delay=60 if state == "delayed" else None, priority=7)
    if state in ("leased", "dead"):
        lease = await mail.claim_one(worker="w1")
    if state == "dead":
        await lease.bury("no such address")
    (task,) = await mail.list(state)
    async with browsing(engine) as client:
        page = await client.get(f"/queues/mail?state={state}")
        cells = row(page, str(task.id))
        assert cells[:2] == [str(task.id), "7"]
        assert f'aria-current="page">{state.capitalize()} <span class="n' in page.text
        last = {"delayed": "in 1 m", "leased": "in 30.0 s", "dead": "no such address"}
        assert last.get(state, "") in cells


async def test_a_long_list_goes_on_page_by_page(engine):
    mail = engine.queue("mail")
    await mail.enqueue_many([lodeq.NewTask(b"x") for _ in range(60)])
    seen, path = [], "/queues/mail?state=ready"
    async with browsing(engine) as client:
        while path:
            page = await client.get(path)
            found = [one.split('"')[0] for one in page.text.split('<tr data-key="')[1:]]
            seen += found
            assert len(found) <= 25
            more = page.text.partition('rel="next" href="')[2].partition('"')[0]
            path = more.replace("&amp;", "&")
    assert seen == [str(task.id) for task in await mail.list("ready")]


async def test_tenants_are_told_apart(engine):
    await engine.queue("mail", tenant="acme").enqueue(b"1")
    await engine.queue("mail", tenant="beta").enqueue(b"2")
    async with browsing(engine) as client:
        everyone = await client.get("/queues/mail")
        assert everyone.text.count('<tr data-key="') == 2
        acme = await client.get("/queues/mail?tenant=acme")
        assert acme.text.count('<tr data-key="') == 1
        assert "tenant acme" in acme.text
        assert row(await client.get("/"), "mail")[0] == "mail 2 tenants"


async def test_a_task_with_its_times_and_its_payload(engine, clock):
    mail = engine.queue("mail", tenant="acme")
    receipt = await mail.enqueue(
        {"to": "ann", "raw": b"\xff"}, headers={"trace": "00-1"}, priority=2
    )
    clock.advance(3)
    lease = await mail.claim_one(worker="w1", lease=40)
    clock.advance(10)
    async with browsing(engine) as client:
        path = f"/tasks/{receipt.id}"
        page = await client.get(path)
        assert tile(page, "Attempts") == "1 of 5"
        assert (tile(page, "Worker"), tile(page, "Tenant")) == ("w1", "acme")
        assert tile(page, "Lease") == "30.0 s left"
        assert "<strong>claimed</strong>" in page.text
        assert "after 3.0 s" in page.text
        assert "&#34;to&#34;: &#34;ann&#34;" in page.text
        assert "&#34;base64&#34;: &#34;/w==&#34;" in page.text  # bytes within are marked
        await lease.complete({"sent": True})
        page = await client.get(path)
        assert "completed" in page.text
        assert "after 10.0 s" in page.text
        assert "&#34;sent&#34;: true" in page.text
        assert "no longer stored" in page.text


async def test_a_typed_id_leads_to_its_task(engine):
    receipt = await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        found = await client.get("/tasks/", params={"id": f" {receipt.id} "})
        assert (found.status_code, found.headers["location"]) == (303, f"/tasks/{receipt.id}")
        wrong = await client.get("/tasks/", params={"id": HOSTILE})
        assert wrong.status_code == 422
        assert "<script>" not in wrong.text.replace('<script src="/static/dashboard.js" defer>', "")


@pytest.mark.parametrize(
    "path",
    [
        "/queues/nothing",
        "/queues/No%20Name",
        "/queues/%3Cscript%3E",
        "/queues/mail/dance",
        "/tasks/01a20389-ab86-7614-b993-4097a77a61b0",
    ],
)
async def test_what_is_not_there_is_a_page_that_says_so(engine, path):
    await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        page = await client.get(path)
        assert page.status_code == 404
        assert "Not found" in page.text
        assert "<script>" not in page.text


@pytest.mark.parametrize(
    "query",
    [
        "state=asleep",
        "after=%00",
        "after=AAAA%ff",
        "tenant=No%20Name",
        "state=%3Cscript%3E",
    ],
)
async def test_a_query_that_means_nothing_is_refused(engine, query):
    await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        page = await client.get(f"/queues/mail?{query}")
        assert page.status_code == 422
        assert "<script>" not in page.text


async def test_whatever_users_stored_stays_text(engine):
    mail = engine.queue("mail", max_attempts=1)
    receipt = await mail.enqueue({HOSTILE: HOSTILE}, headers={HOSTILE: HOSTILE})
    lease = await mail.claim_one(worker="<b>w</b>")
    async with browsing(engine) as client:
        pages = [await client.get("/queues/mail?state=leased")]
        await lease.nack(reason=HOSTILE)
        pages.append(await client.get("/queues/mail?state=dead"))
        pages.append(await client.get(f"/tasks/{receipt.id}"))
        other = await engine.queue("mail").enqueue(HOSTILE.encode())
        pages.append(await client.get(f"/tasks/{other.id}"))
    for page in pages:
        text = page.text.replace('<script src="/static/dashboard.js" defer>', "")
        assert page.status_code == 200
        assert "<script>" not in text
        assert "<b>" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[2].text
    assert "\\u202egnp" in pages[1].text


async def test_nothing_is_created_by_looking(engine):
    async with browsing(engine) as client:
        await client.get("/queues/unknown")
        await client.get("/queues/unknown/pause")
    assert await engine.queues() == {}


async def test_latencies_of_a_quiet_minute_are_those_since_open(engine, clock):
    mail = engine.queue("mail")
    await mail.enqueue(b"x")
    clock.advance(2)
    await (await mail.claim_one()).complete()
    async with browsing(engine) as client:
        for _ in range(3):
            assert row(await client.get("/"), "mail")[9] == "2.0 s"
            clock.advance(10)


async def test_a_dead_letter_tells_when_it_goes(engine, clock):
    mail = engine.queue("mail", dead_retention=3600)
    receipt = await mail.enqueue(b"x")
    lease = await mail.claim_one()
    clock.advance(5)
    await lease.bury("broken")
    async with browsing(engine) as client:
        text = (await client.get(f"/tasks/{receipt.id}")).text
    steps = re.findall(r"<strong>(\w+)</strong>.*?<small>(.*?)</small>", text)
    assert steps[2:] == [
        ("claimed", "after 0 s"),
        ("dead", "after 5.0 s"),
        ("forgotten", "after 1 h"),
    ]


async def test_what_a_codec_cannot_read_is_shown_as_it_lies_there(engine, caplog):
    """Over HTTP anybody can send bytes that are said to be a codec's."""

    class Strict:
        def encode(self, value):
            return b"ours:" + value.encode()

        def decode(self, data):
            if not data.startswith(b"ours:"):
                raise KeyError("not ours")
            return data[5:].decode()

    mail = engine.queue("mail", codec=Strict())
    own = await mail.enqueue("seen by its codec")
    alien = await mail.enqueue(CodecBytes(b"alien bytes"))
    async with browsing(engine) as client:
        page = await client.get(f"/tasks/{own.id}")
        assert "seen by its codec" in page.text
        assert "ours:" not in page.text
        page = await client.get(f"/tasks/{alien.id}")
        assert page.status_code == 200
        assert "alien bytes" in page.text
    assert "KeyError" not in caplog.text


async def test_a_task_shows_its_call_and_its_labels(engine):
    mail = engine.queue("mail")
    async with browsing(engine) as client:
        await mail.enqueue(b"x")
        assert ">Call<" not in (await client.get("/queues/mail")).text
        face = {"function": "send", "preview": f"to={HOSTILE}", "labels": {"customer": "7"}}
        receipt = await mail.enqueue(b"y", **face)
        for path in ("/queues/mail", f"/tasks/{receipt.id}"):
            page = (await client.get(path)).text
            assert "<strong>send</strong>" in page
            assert "customer=7" in page
            assert "<script>alert" not in page
        (_, lease) = await mail.claim(limit=2)
        await lease.complete()
        assert "<strong>send</strong>" in (await client.get(f"/tasks/{receipt.id}")).text


async def test_the_history_of_a_queue_is_a_tab_that_stands_still(engine, clock):
    mail = engine.queue("mail")
    for n in range(30):
        await mail.enqueue(b"%d" % n)
        lease = await mail.claim_one(worker="w1")
        await lease.complete()
    async with browsing(engine) as client:
        page = await client.get("/queues/mail?state=history")
        assert page.status_code == 200
        assert page.text.count("data-key=") >= 25
        assert "completed" in page.text
        assert "data-live" not in page.text
        following = re.search(r'rel="next" href="([^"]+)"', page.text)[1].replace("&amp;", "&")
        rest = await client.get(following)
        assert "w1" in rest.text
        assert (await client.get("/queues/mail?state=done")).status_code == 422


async def test_ended_tasks_show_their_calls_and_are_found_by_the_time_they_ended(engine, clock):
    mail = engine.queue("mail")
    for to in ("ann", "bob"):
        await mail.enqueue(b"x", function="send", preview=f"to={to!r}", labels={"of": to})
    for _ in range(2):
        await (await mail.claim_one()).complete()
        clock.advance(3600)
    async with browsing(engine) as client:
        base = "/queues/mail?state=history"
        page = await client.get(base)
        assert "send(to=&#39;ann&#39;)" in page.text.replace("<strong>", "").replace(
            "</strong>", ""
        )
        assert "of=bob" in page.text
        for more, n in (
            ("&since=90m", 1),
            ("&until=90m", 1),
            ("&since=3h&until=30m", 2),
            ("&since=30m", 0),
            ("&text=bob", 1),
        ):
            assert (await client.get(base + more)).text.count("data-key=") == n, more
        assert "is meant by all" in (await client.get(f"{base}&since=30m")).text
        assert (await client.get(f"{base}&since=soon")).status_code == 422
        assert (await client.get(f"{base}&since=9999999d")).status_code == 422


@pytest.mark.parametrize("cut", [8, 13, 35])
async def test_the_first_digits_of_an_id_are_searched(engine, cut):
    receipt = await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        typed = str(receipt.id)[:cut]
        page = await client.get(f"/tasks/?id={typed.upper()}", follow_redirects=False)
        assert (page.status_code, page.headers["location"]) == (303, f"/find?id_prefix={typed}")
        assert str(receipt.id)[24:] in (await client.get(page.headers["location"])).text
        whole = await client.get(f"/tasks/?id={receipt.id}", follow_redirects=False)
        assert whole.headers["location"] == f"/tasks/{receipt.id}"
        assert (await client.get("/tasks/?id=nonsense")).status_code == 422


async def test_the_page_of_a_task_has_its_attempts(engine, clock):
    mail = engine.queue("mail")
    receipt = await mail.enqueue(b"x")
    lease = await mail.claim_one(worker="w1")
    clock.advance(2)
    await lease.nack(delay=0, reason=HOSTILE)
    async with browsing(engine) as client:
        page = await client.get(f"/tasks/{receipt.id}")
        assert '<h2 id="attempts">' in page.text
        assert "nacked" in page.text
        assert "<script>alert" not in page.text
        assert "redriven" not in page.text
        lease = await mail.claim_one(worker="w1")
        await lease.bury("bad")
        await mail.redrive()
        await (await mail.claim_one(worker="w1")).complete()
        page = await client.get(f"/tasks/{receipt.id}")
        numbers = re.findall(r'<th scope="row" class="n">(\d)|<td colspan="5">(\w+)', page.text)
        assert numbers == [("1", ""), ("2", ""), ("", "redriven"), ("1", "")]


async def test_a_payload_above_3_mib_is_shown_as_its_size(tmp_path):
    async with lodeq.open(tmp_path / "s") as engine, browsing(engine) as client:
        receipt = await engine.queue("mail").enqueue(bytes(4 << 20))
        for path in (f"/tasks/{receipt.id}", "/queues/mail", "/find?queue=mail"):
            page = await client.get(path)
            assert page.status_code == 200
        page = await client.get(f"/tasks/{receipt.id}")
        assert "(4194304 bytes)" in page.text
