"""Who gets in: certificates and users of a real etcd."""

import base64
import json
import urllib.request

import pytest
from support_etcd import closing, log_of
from support_shared_log import record_of
from support_tls import make_certificates

from lodeq.errors import AccessDeniedError, UsageError
from lodeq.replication.port import Genesis, LogUnavailableError, Member

pytestmark = pytest.mark.anyio
GENESIS = Genesis("any", 1, bytes(16))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A throw-away authority, a server's certificate for 127.0.0.1, and a node's."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def test_a_node_with_a_certificate_gets_in_and_one_without_does_not(one_server, certificates):
    flags = (
        f"--trusted-ca-file={certificates / 'ca.pem'}",
        f"--cert-file={certificates / 'server.pem'}",
        f"--key-file={certificates / 'server.key'}",
        "--client-cert-auth",
    )
    server = one_server(scheme="https", flags=flags)
    ca = f"&ca={certificates / 'ca.pem'}"
    own = f"&cert={certificates / 'node.pem'}&key={certificates / 'node.key'}"
    log = log_of(server.url("tls", more=ca + own))
    async with closing(log):
        await log.connect(GENESIS)
        await log.join(Member("a"))
        term = await log.campaign(0)
        await log.append(record_of(0, term.term, 1, ((b"k", b"v"),)))
        assert len(await log.read(0, 0)) == 1
    for more in ("", ca):
        stranger = log_of(server.url("tls", more=more))
        async with closing(stranger):
            with pytest.raises(LogUnavailableError, match=r"127\.0\.0\.1:.*UNAVAILABLE"):
                await stranger.connect(GENESIS)


async def test_a_file_that_is_not_there_is_said_before_anything_is_sent(tmp_path):
    log = log_of(f"etcd://127.0.0.1:1/name?ca={tmp_path}/none.pem")
    async with closing(log):
        with pytest.raises(UsageError, match=r"ca=.*none\.pem cannot be read: No such file"):
            await log.connect(GENESIS)


def post(server, path: str, token: str = "", **fields) -> dict:
    """A call of etcd's JSON gateway: what an operator does with etcdctl."""
    request = urllib.request.Request(
        f"http://{server.endpoints[0]}/v3/{path}",
        json.dumps(fields).encode(),
        {"Authorization": token} if token else {},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def bytes_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def add_user(server, prefix: str) -> None:
    """The steps of docs/etcd.md: a role for the prefix, a user with it, authentication on."""
    post(server, "auth/user/add", name="root", password="root")
    post(server, "auth/user/grant", user="root", role="root")
    post(server, "auth/role/add", name="lodeq")
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    permission = {"permType": "READWRITE", "key": bytes_of(prefix), "range_end": bytes_of(end)}
    post(server, "auth/role/grant", name="lodeq", perm=permission)
    post(server, "auth/user/add", name="lodeq", password="s3cret")
    post(server, "auth/user/grant", user="lodeq", role="lodeq")
    post(server, "auth/enable")


async def test_a_user_with_a_role_for_the_prefix_can_do_all_that_a_node_does(one_server, tmp_path):
    server = one_server()
    add_user(server, "/lodeq/mine/")
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    more = f"&user=lodeq&password-file={secret}"
    log = log_of(server.url("mine", more=more))
    async with closing(log):
        await log.connect(GENESIS)
        await log.join(Member("a"))
        term = await log.campaign(0)
        await log.append(record_of(0, term.term, 1, ((b"k", b"v"),)))
        log._endpoints._metadata = (("token", "forgotten.1"),)  # as after a restart of etcd
        await log.append(record_of(0, term.term, 2, ((b"k", b"v"),)))
        assert len(await log.read(0, 0)) == 2
        await log.truncate(0, 2)
        await log.compact()
        assert (await log.space()).used_bytes > 0
        changes = log.watch()
        await log.report(Member("a", url="http://a"))
        assert (await anext(changes)).shard == -1
        await changes.aclose()
        assert log.session_until() > 0

    other = log_of(server.url("other", more=more))
    async with closing(other):
        with pytest.raises(AccessDeniedError, match=r"'lodeq' needs the role .* /lodeq/other/"):
            await other.connect(GENESIS)
    unknown = log_of(server.url("mine"))
    async with closing(unknown):
        with pytest.raises(AccessDeniedError, match="etcd asks for a user"):
            await unknown.connect(GENESIS)
    secret.write_text("wrong")
    wrong = log_of(server.url("mine", more=more))
    async with closing(wrong):
        with pytest.raises(AccessDeniedError, match="authentication failed"):
            await wrong.connect(GENESIS)
