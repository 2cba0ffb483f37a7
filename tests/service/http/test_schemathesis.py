"""Whatever the OpenAPI document lets in, or forbids: the server answers as the document says."""

from collections.abc import Hashable
from datetime import UTC, datetime

import httpx
import msgpack
import pytest
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, Response
from schemathesis.specs.openapi.checks import positive_data_acceptance
from support_http import BASE

import lodeq
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.operations import OPERATIONS, openapi

SCHEMA = schemathesis.openapi.from_dict(openapi(OPERATIONS, lodeq.__version__))
OPERATION = {
    one.ok().definition.raw["operationId"]: one.ok() for one in SCHEMA.get_all_operations()
}
EXAMPLES = 12
UNKNOWN = "01890000-0000-7000-8000-000000000000"
# What takes nothing can be called in no wrong way.
WRONGLY = [name for name, one in OPERATION.items() if one.body or one.query or one.path_parameters]


@pytest.fixture(scope="module")
def send(tmp_path_factory):
    """Plain HTTP to an app whose engine lives on a loop in another thread.

    On disk and with a folder for checkpoints: without, some operations are refused unread.
    """
    folder = tmp_path_factory.mktemp("served")
    with start_blocking_portal() as portal:
        opening = lodeq.open(folder / "store", shards=1)
        engine = portal.call(opening.__aenter__)
        app = make_app(engine, Settings(wait_s_max=0.001, checkpoints=str(folder / "copies")))
        transport = httpx.ASGITransport(app)

        async def request(options):
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                return await client.request(**options)

        yield lambda options: portal.call(request, options)
        portal.call(opening.__aexit__, None, None, None)


def test_every_operation_is_described():
    assert set(OPERATION) == {name for name, *_ in OPERATIONS}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATION)
def test_what_it_lets_in_is_answered_as_it_says(name, send):
    check(name, GenerationMode.POSITIVE, send)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONGLY)
def test_what_it_forbids_is_refused(name, send):
    check(name, GenerationMode.NEGATIVE, send)


def check(name, mode, send):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATION[name].as_strategy(generation_mode=mode))
    def run(case):
        options = case.as_transport_kwargs(base_url=BASE)
        options.pop("cookies")
        if "data" in options:
            options["content"] = options.pop("data")
        try:
            response = send(options)
        except httpx.InvalidURL:  # too long
            return
        checked = Response.from_httpx(response, verify=False)
        case.validate_response(checked, excluded_checks=[positive_data_acceptance])

    run()


# --- what JSON cannot say -----------------------------------------------------------------------

NAMES = sorted(
    {
        "task_id",
        "epoch",
        "token",
        "leases",
        "queue",
        "queues",
        "tenant",
        "tasks",
        "payload",
        "headers",
        "result",
        "then",
        "policy",
        "backoff",
        "durable",
        "atomic",
        "limit",
        "lease",
        "wait",
        "worker",
        "seconds",
        "delay",
        "reason",
        "ids",
        "state",
        "run_at",
        "dedup_key",
        "keep",
        "job",
        "store_id",
        "shards",
        "parts",
        "shard",
        "kind",
        "rows",
        "path",
    }
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary())
    | st.sampled_from(["mail", bytes(16), datetime(2024, 1, 1, tzinfo=UTC)])
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES) | scalars.filter(lambda one: isinstance(one, Hashable)),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, one in OPERATION.items() if one.body])
def test_msgpack_of_any_kind_is_answered(name, send):
    operation = OPERATION[name]
    headers = {"content-type": "application/msgpack", "accept": "application/json"}
    url = operation.path.replace("{queue}", "mail").replace("{task_id}", UNKNOWN)
    assert "{" not in url

    @settings(max_examples=2 * EXAMPLES, deadline=None, database=None, derandomize=True)
    @given(doc=st.dictionaries(st.sampled_from(NAMES), documents, max_size=5) | documents)
    def run(doc):
        content = msgpack.packb(doc, datetime=True)
        answer = send({"method": "POST", "url": url, "headers": headers, "content": content})
        assert answer.status_code < 500, answer.text

    run()
