"""JWTs: what of an issuer's tokens is good, for how long, and what their scopes give."""

import base64
import hashlib
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support_http import asgi_client, serving, socket_path
from support_roles import entry, token_of, write_tokens
from support_wire import pack, wired

import lodeq
import lodeq.testing
from lodeq.service.http.access import tokens_file
from lodeq.service.http.access.tokens_file import LOOK_S, TokensFile
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
ISSUER, AUDIENCE = "https://login.example.org/", "lodeq"
KEYS = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
KINDS = {
    "RS256": jwt.algorithms.RSAAlgorithm,
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}
LEEWAY_S = 30
SHORT = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - refused


def public(name, key=None, **more):
    key = KEYS[name] if key is None else key
    return json.loads(KINDS[name].to_jwk(key.public_key())) | {"kid": name} | more


KEY_SET = [public(name) for name in KEYS]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def engine(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        yield engine


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


def configured(file, *entries, keys=KEY_SET, more=""):
    """The file of tokens, with an issuer and its keys."""
    write_tokens(file.with_name("keys.json"), json.dumps({"keys": keys}), mode=0o644)
    table = f'[jwt]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\nkeys = "keys.json"\n{more}'
    return write_tokens(file, *entries, table)


def made(clock, scope="lodeq:producer", *, alg="EdDSA", key=None, headers=None, **claims):
    """A token; a claim of None is left out."""
    now_s = clock.wall_us() // 1_000_000
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "web", "exp": now_s + 600, "scope": scope}
    given = {name: one for name, one in (given | claims).items() if one is not None}
    headers = {"kid": alg} if headers is None else headers
    return jwt.encode(given, KEYS[alg] if key is None else key, algorithm=alg, headers=headers)


async def status(app, token, queue="mail", path=None):
    async with asgi_client(app, authorization=f"Bearer {token}") as client:
        if path is not None:
            return (await client.get(f"/v1{path}")).status_code
        body = {"queue": queue, "tasks": [{"payload": 1}]}
        return (await client.post("/v1/tasks", json=body)).status_code


@pytest.mark.parametrize("alg", KEYS)
async def test_a_token_of_the_issuer_is_good(engine, clock, file, alg):
    app = make_app(engine, Settings(tokens=TokensFile(configured(file))))
    assert await status(app, made(clock, alg=alg)) == 200
    assert await status(app, made(clock, alg=alg, scope=None)) == 401


def tampered(token):
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["scope"] = "lodeq:admin"
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


def claims_of(clock):
    return jwt.decode(made(clock), options={"verify_signature": False})


def encoded(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def unsigned(clock):
    return f"{encoded({'alg': 'none', 'kid': 'EdDSA'})}.{encoded(claims_of(clock))}."


def signed_with_the_public_key(clock):
    """The known attack: the public key of an RSA key, taken for the secret of HS256."""
    pem = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = f"{encoded({'alg': 'HS256', 'kid': 'RS256'})}.{encoded(claims_of(clock))}"
    mac = hmac.new(pem, parts.encode(), hashlib.sha256).digest()
    return f"{parts}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


BAD = {
    "another key": lambda clock: made(clock, key=ed25519.Ed25519PrivateKey.generate()),
    "a key of another kind": lambda clock: made(clock, headers={"kid": "RS256"}),
    "an unknown key": lambda clock: made(clock, headers={"kid": "other"}),
    "no key named": lambda clock: made(clock, headers={}),
    "another issuer": lambda clock: made(clock, iss="https://evil.example/"),
    "another audience": lambda clock: made(clock, aud="mail"),
    "no audience": lambda clock: made(clock, aud=None),
    "no issuer": lambda clock: made(clock, iss=None),
    "no end": lambda clock: made(clock, exp=None),
    "a subject that is no text": lambda clock: made(clock, sub="\ud800"),
    "no subject": lambda clock: made(clock, sub=None),
    "an end that is none": lambda clock: made(clock, exp="tomorrow"),
    "an end beyond all times": lambda clock: made(clock, exp=1 << 60),
    "a start that is none": lambda clock: made(clock, nbf=True),
    "a critical header": lambda clock: made(clock, headers={"kid": "EdDSA", "crit": ["x"], "x": 1}),
    "changed claims": lambda clock: tampered(made(clock)),
    "no signature": unsigned,
    "a shared secret": signed_with_the_public_key,
    "scopes of others": lambda clock: made(clock, "openid mail:send"),
    "a role that is none": lambda clock: made(clock, "lodeq:boss lodeq: lodeq:Producer"),
    "a queue that is none": lambda clock: made(clock, "lodeq:producer:Mail lodeq:producer:a/b"),
    "scopes that are none": lambda clock: made(clock, {"lodeq:producer": True}),
    "no token": lambda clock: "a.b.c",
    "deep": lambda clock: base64.urlsafe_b64encode(b"[" * 9000).decode() + ".e30.e30",
}


@pytest.mark.parametrize("why", BAD)
async def test_a_token_that_is_not_good(engine, clock, file, why):
    app = make_app(engine, Settings(tokens=TokensFile(configured(file))))
    assert await status(app, BAD[why](clock)) == 401


async def test_time_is_the_engines_with_leeway(engine, clock, file):
    app = make_app(engine, Settings(tokens=TokensFile(configured(file))))
    now_s = clock.wall_us() // 1_000_000
    token = made(clock, exp=now_s + 60)
    early = made(clock, nbf=now_s + 2 * LEEWAY_S, exp=now_s + 900)
    assert (await status(app, token), await status(app, early)) == (200, 401)
    clock.advance(LEEWAY_S)
    assert (await status(app, token), await status(app, early)) == (200, 200)
    clock.advance(60 - 1)
    assert await status(app, token) == 200
    clock.advance(1)
    assert (await status(app, token), await status(app, early)) == (401, 200)


@pytest.mark.parametrize("scope", ["lodeq:worker lodeq:producer:mail", ["lodeq:producer:mail"]])
async def test_scopes_give_roles_by_queue(engine, clock, file, scope):
    app = make_app(engine, Settings(tokens=TokensFile(configured(file))))
    token = made(clock, scope)
    assert await status(app, token) == 200
    assert await status(app, token, "other") == 403
    assert await status(app, token, path="/queues/mail/stats") == 403


async def test_scopes_give_roles_by_tenant(engine, clock, file):
    app = make_app(engine, Settings(tokens=TokensFile(configured(file))))
    token = made(clock, "lodeq:reader:mail:acme lodeq:reader:own:")
    found = [
        await status(app, token, path=path)
        for path in (
            "/queues/mail/stats?tenant=acme",
            "/queues/mail/stats",
            "/queues/own/stats",
            "/queues/own/stats?tenant=acme",
            "/stats",
        )
    ]
    assert found == [200, 403, 200, 403, 403]
    assert await status(app, made(clock, "lodeq:admin"), path="/stats") == 200


async def test_another_claim_may_have_the_scopes(engine, clock, file):
    app = make_app(engine, Settings(tokens=TokensFile(configured(file, more='scopes = "perms"\n'))))
    assert await status(app, made(clock, perms="lodeq:producer", scope=None)) == 200
    assert await status(app, made(clock)) == 401


async def test_tokens_of_the_file_stand_beside_them(engine, clock, file):
    path = configured(file, entry("web", "producer"))
    app = make_app(engine, Settings(tokens=TokensFile(path)))
    assert (await status(app, token_of("web")), await status(app, made(clock))) == (200, 200)


async def test_keys_are_read_again(engine, clock, file):
    tokens = TokensFile(configured(file))
    app = make_app(engine, Settings(tokens=tokens))
    new = ed25519.Ed25519PrivateKey.generate()
    old_token, new_token = made(clock), made(clock, key=new)
    assert (await status(app, old_token), await status(app, new_token)) == (200, 401)
    fresh = json.dumps({"keys": [public("EdDSA", new)]})
    write_tokens(file.with_name("keys.json"), fresh, mode=0o644)
    clock.advance(LOOK_S)
    assert (await status(app, old_token), await status(app, new_token)) == (401, 200)
    write_tokens(file.with_name("keys.json"), "{}", mode=0o644)
    clock.advance(LOOK_S)
    assert (await status(app, old_token), await status(app, new_token)) == (401, 200)
    assert "is no key set" in tokens.problem


@pytest.mark.parametrize("how", ["time", "keys", "issuer"])
async def test_a_link_ends_with_its_token(engine, clock, file, how):
    settings = Settings(tokens=TokensFile(configured(file, entry("web", "producer"))))
    with socket_path() as path:
        async with (
            serving(engine, path=path, settings=settings) as url,
            wired(url, token=made(clock, "lodeq:worker:mail")) as wire,
            wired(url, token=token_of("web")) as other,
        ):
            wire.send([0, 0, pack({"queue": "mail"})], [3, 1, 0, 1, None, 30.0, "w"])
            wire.send([7, 2, [], None])
            assert (await wire.answer(2))[0] == 0
            if how == "time":
                clock.advance(600 + LEEWAY_S)
            else:
                if how == "keys":
                    configured(file, entry("web", "producer"), keys=KEY_SET[:1])
                else:
                    write_tokens(file, entry("web", "producer"))
                clock.advance(LOOK_S)
            assert await wire.answer(1) == [0, []]
            assert await wire.answer(0) == [3, 2]
            assert await wire.is_closed()
            other.send([8, 1, "GET", "/engine", {}, None, None])
            assert (await other.answer(1))[0] == 0


async def test_so_many_tokens_are_known_at_most(engine, clock, file, monkeypatch):
    monkeypatch.setattr(tokens_file, "JWTS_MAX", 2)
    tokens = TokensFile(configured(file))
    app = make_app(engine, Settings(tokens=tokens))
    for n in range(5):
        assert await status(app, made(clock, sub=f"user {n}")) == 200
    assert len(tokens._jwts) == 2
    clock.advance(600 + LEEWAY_S)
    tokens.look(clock)
    assert not tokens._jwts


def private():
    key = json.loads(KINDS["EdDSA"].to_jwk(KEYS["EdDSA"]))
    return key | {"kid": "x"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([], "has not 1 to"),
        ([{"kty": "oct", "k": "c2VjcmV0", "kid": "x"}], "is not a public one"),
        ([{}], "is no key set"),
        ([1], "is no key set"),
        (["x"], "is no key set"),
        ([public("RS256", alg="HS256")], "is not a public one"),
        ([public("EdDSA", x="AAAA")], "is no key set"),
        ([private()], "is not a public one"),
        ([KEY_SET[0], KEY_SET[0]], "is there twice"),
        (
            [public("RS256", SHORT)],
            "2048 bits",
        ),
    ],
)
def test_a_key_set_that_is_refused(file, keys, said):
    configured(file, keys=keys)
    with pytest.raises(lodeq.UsageError, match=said):
        TokensFile(file)


def test_keys_that_others_can_write_are_refused(file):
    configured(file)
    file.with_name("keys.json").chmod(0o666)
    with pytest.raises(lodeq.UsageError, match="written by others"):
        TokensFile(file)
    file.with_name("keys.json").unlink()
    with pytest.raises(lodeq.UsageError, match=r"keys\.json cannot be read"):
        TokensFile(file)


@pytest.mark.parametrize("more", ["leeway = 3600\n", 'audiences = "x"\n', "scopes = ''\n"])
def test_a_wrong_table_is_refused(file, more):
    configured(file, more=more)
    with pytest.raises(lodeq.UsageError, match="no file of tokens"):
        TokensFile(file)


def test_a_path_that_is_none_is_refused(file):
    text = configured(file).read_text().replace("keys.json", "keys\\u0000.json")
    write_tokens(file, text)
    with pytest.raises(lodeq.UsageError, match="no file of tokens"):
        TokensFile(file)
