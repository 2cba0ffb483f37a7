"""A connection that is closed while etcd is silent."""

import asyncio

import grpc
import pytest

from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.ids import SystemRng
from lodeq.errors import ClosedError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.etcd.endpoints import Endpoints
from lodeq.replication.etcd.log import EtcdLog
from lodeq.replication.etcd.rpc import Rpc
from lodeq.replication.port import Genesis

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_close_that_is_cut_short_lets_go_of_the_members(monkeypatch):
    """The layer waits less long for a close than giving a session back may take."""
    log = EtcdLog(parse_address("etcd://127.0.0.1:1/c"), clock=SystemClock(), rng=SystemRng())
    log._endpoints.open()
    silent = asyncio.Event()

    async def never() -> None:
        await silent.wait()

    monkeypatch.setattr(log._session, "end", never)
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert log._endpoints.members == []
    with pytest.raises(ClosedError):
        await log.connect(Genesis("c", 1, bytes(16)))


@pytest.mark.parametrize("user", ["", "?user=u&password-file={}/secret"])
async def test_a_call_that_fails_as_the_connection_is_closed_says_so(tmp_path, user):
    (tmp_path / "secret").write_text("s")
    endpoints = Endpoints(parse_address(f"etcd://m/c{user.format(tmp_path)}"), SystemClock())

    class Member:
        endpoint = "m"

        async def call(self, *_):
            await endpoints.close()
            raise failed

        async def close(self):
            pass

    failed = grpc.aio.AioRpcError(
        grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata()
    )
    endpoints.members = [Member()]
    with pytest.raises(ClosedError):
        await endpoints.call(Rpc.TXN, pb.TxnRequest(), 1.0)
    endpoints.is_closed, endpoints.members = False, [Member()]
    if user:
        with pytest.raises(ClosedError):
            await endpoints.authenticate(1.0)


async def test_a_call_for_a_token_that_a_close_cancels_says_so(tmp_path):
    (tmp_path / "secret").write_text("s")
    address = parse_address(f"etcd://m/c?user=u&password-file={tmp_path}/secret")
    endpoints = Endpoints(address, SystemClock())

    class Member:
        endpoint = "m"

        async def call(self, *_):
            await endpoints.close()
            raise asyncio.CancelledError  # as gRPC does

        async def close(self):
            pass

    endpoints.members = [Member()]
    with pytest.raises(ClosedError):
        await endpoints.authenticate(1.0)
