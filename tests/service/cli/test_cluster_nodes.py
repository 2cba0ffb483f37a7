"""``lodeq cluster`` and ``lodeq serve --replicate``: what they say to one node, and of mistakes."""

import json
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import httpx
import pytest
from click.testing import CliRunner
from support_etcd import until
from support_http import serving, socket_path
from support_roles import entry, token_of, write_tokens

import lodeq
import lodeq.testing
from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.replication.checkpoints import Checkpoints
from lodeq.replication.memory.log import MemoryLog
from lodeq.replication.options import LogOptions
from lodeq.replication.port import NO_COPY, Checkpoint, Member, ShardState
from lodeq.replication.replicator import LogReplicator
from lodeq.repository.api.view import view_of
from lodeq.service.cli import connection
from lodeq.service.cli.app import lodeq as command
from lodeq.service.cli.commands import cluster as commands
from lodeq.service.cluster import backup as backing_up
from lodeq.service.cluster.overview import Overview
from lodeq.service.cluster.routes import node_routes

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
TOKEN = "a token of some length"
ETCD = "etcd://127.0.0.1:1/orders?ttl=2"


async def typed(*words, code=0, env=None):
    """What a command prints, on stdout or stderr."""
    result = await anyio.to_thread.run_sync(
        lambda: CliRunner().invoke(command, [*map(str, words)], env=env)
    )
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


_taken: list[Checkpoints] = []  # by the node that was opened last


@asynccontextmanager
async def node(path, token=None, copies=None, tokens=None):
    """One node of two shards, which leads both, over a log in memory; its address."""
    log = MemoryLog(current_spawner(), SystemClock())
    replicator = LogReplicator(
        log.client("n1"),
        node="n1",
        url=f"unix://{path}.sock",
        cluster="orders",
        shards=2,
        copies=copies,
        options=LogOptions(copies_min=1),
    )

    def routes(engine):
        checkpoints = Checkpoints(
            str(path),
            engine.checkpoint,
            replicator,
            node="n1",
            url=f"unix://{path}.sock",
            spawner=current_spawner(),
            clock=SystemClock(),
        )
        _taken[:] = [checkpoints]
        return node_routes(replicator, checkpoints, view_of(engine).take_joins)

    served = lodeq.Serve(token=token, tokens=tokens, routes=routes)
    async with lodeq.open(path, shards=2, replicator=replicator, serve=served) as engine:
        await until(lambda: all(one.role == "leading" for one in replicator.status().shards))
        await until(lambda: all(replicator.holds_session(shard) for shard in range(2)))
        await until(lambda: not replicator.problems())
        yield f"unix://{path}.sock", engine


@pytest.mark.slow
async def test_a_node_is_looked_at_and_looked_after(tmp_path):
    path = tmp_path / "n1"
    async with node(path) as (url, engine):
        await engine.queue("mail").enqueue(b"x")
        told = await typed("cluster", "status", url)
        assert told.startswith("node n1 of cluster orders: session holds ")
        assert "shard 1: leading, led by n1, 0 entries behind, log from 1 to " in told
        document = json.loads(await typed("cluster", "status", url, "--json"))
        assert document["cluster"] == "orders"
        assert [one["role"] for one in document["shards"]] == ["leading"] * 2
        assert "checkpoint " in await typed("cluster", "checkpoint", url)
        floors = await typed("cluster", "truncate", url)
        assert floors.startswith("logs begin at entries ")
        # It is alone: whoever drains it has it give up both, and nobody takes them.
        assert await typed("cluster", "drain", url) == "it leads nothing\n"
        layer = view_of(engine).replicator
        await until(lambda: not any(one.leader for one in layer.status().shards))
        left = json.loads(await typed("cluster", "status", url, "--json", code=1))
        assert [one["role"] for one in left["shards"]] != ["leading"] * 2
        told = await typed("cluster", "status", url, code=1)
        assert "shard 1: following, led by nobody, " in told
        told = await typed("cluster", "drain", url, "--undo")
        assert told == "it takes part in elections again\n"


async def test_tokens_with_roles_are_for_clients_of_a_node_and_not_for_nodes(tmp_path):
    file = write_tokens(
        tmp_path / "t", entry("web", "producer", queues=["mail"]), entry("boss", "admin")
    )
    async with node(tmp_path / "n1", TOKEN, tokens=file) as (url, _):
        async with lodeq.connect(f"lodeq://{url}", token=token_of("web")) as client:
            mail = client.queue("mail")
            receipts = [await mail.enqueue(b"x", shard_key=f"{n}") for n in range(8)]
            with pytest.raises(lodeq.AccessDeniedError, match="needs the scope worker"):
                await client.queue("mail").claim()
            with pytest.raises(lodeq.AccessDeniedError, match="scope producer:other"):
                await client.queue("other").enqueue(b"x")
        async with lodeq.connect(f"lodeq://{url}", token=token_of("boss")) as client:
            leases = await client.queue("mail").claim(limit=8)
            assert {lease.task_id for lease in leases} == {one.id for one in receipts}
        for name in ("web", "boss"):
            said = await typed(
                "cluster", "status", url, env={"LODEQ_TOKEN": token_of(name)}, code=2
            )
            assert "give the server's own token" in said
        assert "node n1" in await typed("cluster", "status", url, env={"LODEQ_TOKEN": TOKEN})


@pytest.mark.slow
async def test_a_cluster_is_backed_up_and_made_a_store_again(tmp_path):
    backup, store = tmp_path / "backup", tmp_path / "store"
    async with node(tmp_path / "n1", TOKEN, copies=1) as (url, engine):
        ids = [(await engine.queue("mail").enqueue(b"x" * 40, shard_key=f"{n}")).id for n in "abcd"]
        words, env = ("cluster", "backup", url), {"LODEQ_TOKEN": TOKEN}
        assert "give the server's token" in await typed(*words, backup, code=2)
        assert not backup.exists()
        told = await typed(*words, backup, env=env)
        steps = "checkpoints of nodes n1\nshards 0, 1 from node n1\nshard 0: entry "
        assert told.startswith(steps)
        assert told.endswith(f"{backup} is a backup of orders\n")
        assert sorted(os.listdir(backup)) == ["backup.json", "nodes"]
        assert backup.stat().st_mode & 0o777 == 0o700
        began = anyio.current_time()
        slowly = await typed(*words, tmp_path / "slow", "--rate", "0.2", env=env)
        assert slowly.startswith(steps)
        size = sum(one.stat().st_size for one in (tmp_path / "slow").rglob("*") if one.is_file())
        assert anyio.current_time() - began > size / (0.2 * 2**20) - 0.5
    told = await typed("cluster", "assemble", store, backup)
    assert told.count(f"of {backup / 'nodes' / 'n1'}") == 2
    async with lodeq.open(store) as engine:
        assert (await engine.verify()).ok
        assert [(await engine.get(one)).state for one in ids] == ["ready"] * 4


@pytest.mark.slow
async def test_a_backup_takes_no_folder_that_is_there(tmp_path):
    """Not even the one in which it would be put together: another may be under way."""
    (tmp_path / "there").mkdir()
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "link.partial").symlink_to(tmp_path / "there")
    async with node(tmp_path / "n1") as (url, _):
        for name, said in (
            ("there", "never overwrites"),
            ("other", "another backup is under way"),
            ("link", "another backup is under way"),
            ("none/there", "does not exist: make it first"),
        ):
            told = await typed("cluster", "backup", url, tmp_path / name, code=2)
            assert said in told
            assert "checkpoints of" not in told
    assert not os.listdir(tmp_path / "there")
    assert (tmp_path / "other.partial").is_dir()


def changed(path, **body):
    """Have a node send something else in the place of a file of its checkpoint."""
    real = Checkpoints.file

    def file(self, digest, asked):
        place = real(self, digest, asked)
        if not asked.startswith(path):
            return place
        other = f"{self.folder}.other"
        with open(place, "rb") as before, open(other, "wb") as after:
            after.write(body.get("is", b"?" * len(before.read())))
        return other

    return file


@pytest.mark.slow
async def test_a_backup_of_what_is_not_what_it_says_is_none(tmp_path, monkeypatch):
    taken = Checkpoints.take

    def claims(**more):
        async def take(self):
            found = await taken(self)
            return replace(found, **{name: one(found) for name, one in more.items()})

        return take

    async with node(tmp_path / "n1") as (url, engine):
        await engine.queue("mail").enqueue(b"x")
        words = ("cluster", "backup", url, tmp_path / "backup")
        for method, other, said in (
            ("file", changed("shard1/MANIFEST"), "is not what the manifest says"),
            ("file", changed("checkpoint.json"), "its manifest has the digest"),
            ("file", changed("replica.json", **{"is": b"{}"}), "replica.json"),
            ("file", changed("shard0/CURRENT", **{"is": b"x" * 999}), "sends more than"),
            ("take", claims(applied=lambda one: (10**6, one.applied[1])), "and it says 1000000"),
            ("take", claims(digest=lambda one: "d" * 32), "has no checkpoint 'dddd"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(backing_up, "RETRY_S", 0.0)
                patch.setattr(Checkpoints, method, other)
                assert said in await typed(*words, code=2)
            assert not {"backup", "backup.partial"} & {*os.listdir(tmp_path)}


@pytest.mark.slow
async def test_a_backup_that_lacks_something_says_so(tmp_path, monkeypatch):
    take, look = Checkpoints.take, backing_up._look
    async with node(tmp_path / "n1") as (url, engine):
        await engine.queue("mail").enqueue(b"x")
        words = ("cluster", "backup", url, tmp_path / "backup")

        async def later(*given):
            found = await look(*given)
            found.lasts[1] += 5  # which a node knew that does not answer any more
            return found

        monkeypatch.setattr(backing_up, "_look", later)
        told = await typed(*words, code=1)
        assert "; the last 5 are missing\n" in told
        body = json.loads((tmp_path / "backup" / "backup.json").read_text())
        assert body["shards"][1]["last"] == body["shards"][1]["entry"] + 5
        (tmp_path / "backup").rename(tmp_path / "n0")

        times = []

        async def busy(self):
            times.append(1)
            if len(times) < 8:
                raise lodeq.BusyError("a checkpoint is being taken already: ask again")
            return await take(self)

        monkeypatch.setattr(backing_up, "_look", look)
        monkeypatch.setattr(backing_up, "RETRY_S", 0.0)
        monkeypatch.setattr(Checkpoints, "take", busy)
        assert "is a backup of" in await typed(*words)
        assert len(times) == 8

        async def gone(self):
            raise lodeq.UsageError("no checkpoint today")

        monkeypatch.setattr(Checkpoints, "take", gone)
        told = await typed("cluster", "backup", url, tmp_path / "next", code=2)
        assert "no node that answers has a copy of shard 0: start those that have" in told
        assert "no checkpoint today" in told
        assert not {"next", "next.partial"} & {*os.listdir(tmp_path)}


@pytest.mark.slow
async def test_a_checkpoint_that_is_being_fetched_is_kept(tmp_path):
    async with node(tmp_path / "n1") as (_, _engine):
        checkpoints = _taken[0]
        first = await checkpoints.take()
        assert await anyio.to_thread.run_sync(checkpoints.files, first.digest)
        for _ in range(3):
            last = await checkpoints.take()
        folders = [checkpoints.folder_of(one.digest) for one in (first, last)]
        assert all(map(os.path.isdir, folders))
        assert len(os.listdir(checkpoints.folder)) == 3


@pytest.mark.slow
async def test_copies_are_looked_at_and_what_cannot_be_is_said(tmp_path):
    async with node(tmp_path / "n1", copies=1) as (url, engine):
        await engine.queue("mail").enqueue(b"x")
        told = await typed("cluster", "status", url)
        assert "shard 1: leading, led by n1" in told
        assert told.count("; copies on n1") == 2
        for words, said in (
            (("remove", url), "0 nodes would be left for copies=1"),
            (("forget", url, "n1"), "stop it first"),
            (("forget", url, "n2"), "can be forgotten are none; live are n1"),
            (("move", url, 0, "--to", "n2"), "every node has a copy of shard 0"),
            (("move", url, 1, "--to", "n2"), "the nodes that can are n1"),
            (("move", url, 7, "--to", "n1"), "there is no shard 7"),
            (("move", url, 1), "Missing option"),
        ):
            assert said in await typed("cluster", *words, code=2)
        assert "node n1 gets its share" in await typed("cluster", "add", url)
        there = await typed("cluster", "move", url, 1, "--to", "n1")
        assert there == "shard 1 is on node n1\n"


@pytest.mark.slow
async def test_without_a_number_of_copies_nothing_is_placed(tmp_path):
    async with node(tmp_path / "n1") as (url, _):
        assert "copies on" not in await typed("cluster", "status", url)
        for words in (("remove", url), ("add", url), ("move", url, 1, "--to", "n1")):
            assert "every node has a copy of every shard" in await typed("cluster", *words, code=2)


async def test_a_node_without_a_session_lives_and_is_not_well(tmp_path):
    async with node(tmp_path / "n1") as (url, engine):
        view_of(engine).replicator._at.joined.clear()
        link = httpx.AsyncHTTPTransport(uds=url.removeprefix("unix://"))
        async with httpx.AsyncClient(transport=link, base_url="http://lodeq") as client:
            answer = await client.get("/v1/health")
    assert (answer.status_code, answer.json()["ok"]) == (200, False)


@pytest.mark.slow
async def test_a_node_that_left_a_checkpoint_is_forgotten_once(tmp_path):
    async with node(tmp_path / "n1") as (url, engine):
        layer = view_of(engine).replicator
        await layer.publish(Checkpoint("n2", "unix:///n2", "digest", (0, 0)))
        assert await typed("cluster", "forget", url, "n2") == "node n2 is forgotten\n"
        said = await typed("cluster", "forget", url, "n2", code=2)
        assert "no node 'n2' is remembered, or it is forgotten already" in said


@pytest.mark.slow
async def test_a_node_with_a_token_is_asked_with_it(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    async with node(tmp_path / "n1", TOKEN) as (url, _):
        for words in (("status",), ("checkpoint",), ("drain",), ("truncate",)):
            told = await typed("cluster", *words, url, code=2)
            assert "give the server's token" in told
            assert "commands take it from --token-file or LODEQ_TOKEN" in told
        assert "node n1" in await typed("cluster", "status", url, "--token-file", token)
        assert "node n1" in await typed("cluster", "status", url, env={"LODEQ_TOKEN": TOKEN})
        token.chmod(0o644)
        told = await typed("cluster", "status", url, "--token-file", token, code=2)
        assert "can be read by others" in told


@pytest.mark.slow
async def test_a_replica_is_not_opened_as_a_plain_store(tmp_path):
    path = tmp_path / "n1"
    async with node(path) as (_, engine):
        await engine.queue("mail").enqueue(b"x")
    for words in (("serve", path), ("enqueue", path, "mail", "x"), ("compact", path)):
        told = await typed(*words, code=2)
        assert "replica" in told
    assert "mail" in await typed("ls", path)  # looking is free
    assert "is a store of its own" in await typed("cluster", "detach", path)
    await typed("enqueue", path, "mail", "y")
    assert "2" in await typed("ls", path)


async def test_nobody_answers(tmp_path):
    for words in (("status",), ("checkpoint",), ("drain",), ("truncate",)):
        told = await typed("cluster", *words, f"unix://{tmp_path}/nowhere.sock", code=2)
        assert told.startswith("error: unix://")
        assert told.count("\n") == 1


async def test_a_cluster_that_nobody_leads_is_not_said_to_be_a_blocked_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.01)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.5)
    async with node(tmp_path / "n1") as (url, engine):
        layer = view_of(engine).replicator
        await layer.drain(is_on=True)
        await until(lambda: not any(one.leader for one in layer.status().shards))
        told = await typed("enqueue", f"lodeq://{url}", "mail", "x", code=2)
    assert "loop" not in told
    assert "no node of the cluster leads anything" in told


async def test_what_is_served_is_no_node():
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path):
            for words in (("status",), ("checkpoint",), ("drain",)):
                told = await typed("cluster", *words, f"unix://{path}", code=2)
                assert "is no node of a cluster: start it with --replicate" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster", "status", "etcd://a:b/x"), "is not host or host:port"),
        (("cluster", "status", "etcd://u:p@a/x"), "carries no password"),
        (("cluster", "status", "nowhere"), "nowhere"),
        (("cluster", "detach", "nowhere"), "nowhere does not exist"),
        (("serve", "s", "--node", "n1"), "give --replicate"),
        (("serve", "s", "--zone", "a"), "give --replicate"),
        (("serve", "s", "--replicate", "etcd://a"), "cluster name ''"),
        (("serve", "s", "--replicate", ETCD, "--node", "a/b"), "node name 'a/b' is not valid"),
        (
            ("serve", "s", "--replicate", ETCD, "--host", "0.0.0.0", "--token-file", "token"),
            "say --advertise tcp://HOST:PORT",
        ),
        (
            ("serve", "s", "--replicate", ETCD, "--port", "0"),
            "say --advertise tcp://HOST:PORT",
        ),
        (
            ("serve", "s", "--replicate", ETCD, "--advertise", "10.0.0.1:8765"),
            "'10.0.0.1:8765' is none of unix://FILE, tcp://HOST:PORT",
        ),
        (
            ("serve", "s", "--replicate", ETCD, "--advertise", "tcp://0.0.0.0:8765"),
            "say --advertise tcp://HOST:PORT",
        ),
    ],
)
async def test_a_mistake_is_said_before_anything_is_made(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    assert said in await typed(*words, code=2)
    assert os.listdir(tmp_path) == ["token"]


async def test_the_extra_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "lodeq.replication.etcd.log", None)
    for words in (("cluster", "status", ETCD), ("serve", "s", "--replicate", ETCD)):
        assert 'pip install "lodeq[etcd]"' in await typed(*words, code=2)
    assert os.listdir(tmp_path) == []


async def test_a_log_with_too_few_live_copies_is_not_said_to_be_well(monkeypatch):
    members = [Member("n1", "", "1", "", 0, (5, 5)), Member("n2", "", "1", "", 0, (5, NO_COPY))]
    shards = [ShardState(shard, "n1", 7, 5, 1) for shard in range(2)]
    copies = [2]

    async def found(_):
        return Overview("orders", members, shards, (), (), copies[0])

    monkeypatch.setattr(commands, "overview", found)
    told = await typed("cluster", "status", ETCD, code=1)
    assert "problem: shards 1: fewer live copies than they should have" in told
    await typed("cluster", "status", ETCD, "--json", code=1)
    for copies[0] in (0, 1):
        assert "problem" not in await typed("cluster", "status", ETCD)


@pytest.mark.slow
async def test_no_etcd_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (("cluster", "status", ETCD), ("serve", "s", "--replicate", ETCD)):
        told = await typed(*words, code=2)
        assert "127.0.0.1:1" in told
        assert told.count("\n") == 1
    assert os.listdir(tmp_path) == []


async def test_a_node_that_does_not_know_yet_where_copies_are_is_not_said_to_have_none(monkeypatch):
    """It has just been started: whoever stops it would take copies that nobody else has."""
    seen = [[[], []], [["n1", "n2"], []], [["n1", "n2"], ["n1"]], [["n2"], ["n2", "n1"]]]
    last, asked = [["n2"], ["n2"]], []

    async def ask(url, method, path, **_):
        if path == "/cluster/remove":
            return {"node": "n1"}
        asked.append(path)
        found = seen[len(asked) - 1] if len(asked) <= len(seen) else last
        return {"shards": [{"shard": at, "copies": one} for at, one in enumerate(found)]}

    monkeypatch.setattr(commands, "ask_node", ask)
    monkeypatch.setattr(commands, "LOOK_S", 0)
    told = await typed("cluster", "remove", "tcp://127.0.0.1:1")
    assert told == "node n1 has no copies any more: stop it\n"
    assert len(asked) == len(seen) + 1
    last[:] = [[], []]
    told = await typed("cluster", "remove", "tcp://127.0.0.1:1", "--wait", "0.01", code=1)
    assert "not done yet: the node has not read yet where all copies are; it goes on" in told
