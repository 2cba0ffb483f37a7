"""The session: what counts as a renewal, and from when it counts."""

import asyncio
from dataclasses import dataclass, field

import pytest
from support_behaviour import StillClock

from lodeq.engine.runtime.clock import SystemClock, boot_s
from lodeq.engine.runtime.ids import SeededRng
from lodeq.errors import UsageError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.endpoints import LeaseGoneError, RefusedError
from lodeq.replication.etcd.keys import Keys
from lodeq.replication.etcd.rpc import Refusal, Rpc
from lodeq.replication.etcd.session import Session
from lodeq.replication.port import SessionLostError

pytestmark = pytest.mark.anyio
KEYS = Keys(b"/lodeq/c/")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@dataclass
class Script:
    """A member and the endpoints around it: it answers what the test says, and takes its time."""

    clock: StillClock
    term: int = 1
    proof_term: int = 1
    ttl_s: int = 3
    takes_s: float = 0.0
    holder: int | None = None  # whose lease the member key has; None: the one that was granted
    revoked: list[int] = field(default_factory=list)
    at: int = 0
    metadata: tuple = ()
    lease: int = 0
    refuses: Refusal | None = None  # what a transaction is answered with; None: it is done

    @property
    def members(self):
        return [self]

    async def call(self, rpc, request, budget_s):
        if rpc is Rpc.LEASE_GRANT:
            self.lease = request.ID
            return pb.LeaseGrantResponse(ID=request.ID, TTL=self.ttl_s)
        if rpc is Rpc.LEASE_REVOKE:
            self.revoked.append(request.ID)
            return pb.LeaseRevokeResponse()
        if self.refuses is not None:
            raise RefusedError(self.refuses, "etcdserver: requested lease not found")
        if self.holder is not None:
            return self.found(False)
        return pb.TxnResponse(succeeded=True)

    def found(self, succeeded: bool):
        lease = self.lease if self.holder is None else self.holder
        kvs = [pb.KeyValue(key=b"k", lease=lease)] if lease else []
        answer = pb.ResponseOp(response_range=pb.RangeResponse(kvs=kvs))
        header = pb.ResponseHeader(raft_term=self.proof_term)
        return pb.TxnResponse(header=header, succeeded=succeeded, responses=[answer])

    async def ask(self, member, rpc, request, timeout_s):
        return self.found(True)

    def keepalive(self, timeout_s, metadata):
        return self

    async def write(self, request):
        self.clock.jump(self.takes_s)

    async def read(self):
        header = pb.ResponseHeader(raft_term=self.term)
        return pb.LeaseKeepAliveResponse(header=header, ID=self.lease, TTL=self.ttl_s)

    def cancel(self):
        pass

    def check_id(self, header):
        pass


async def begun(**given) -> tuple[Session, Script, StillClock]:
    clock = StillClock()
    script = Script(clock)
    session = Session(script, KEYS, clock, SeededRng(1), given.get("boot", clock.mono), 3)
    await session.join("n", b"")
    return session, script, clock


async def test_a_renewal_counts_from_when_it_was_sent():
    session, script, clock = await begun()
    assert session.until() == clock.mono() + 3
    clock.jump(1.0)
    script.takes_s = 0.4
    sent = clock.mono()
    assert await session._renew_at(script, script.lease)
    assert session.until() == pytest.approx(sent + 3)
    await session.end()


async def test_an_answer_of_a_leader_that_was_replaced_does_not_count():
    """The read behind it shows another raft term: whoever renewed may have been nobody."""
    session, script, clock = await begun()
    until = session.until()
    clock.jump(1.0)
    script.proof_term = 2
    assert not await session._renew_at(script, script.lease)
    assert session.until() == pytest.approx(until)
    script.term = 2
    assert await session._renew_at(script, script.lease)
    assert session.until() == pytest.approx(until + 1.0)
    await session.end()


async def test_a_lease_that_etcd_does_not_have_is_gone():
    session, script, _ = await begun()
    script.ttl_s = 0
    with pytest.raises(LeaseGoneError):
        await session._renew_at(script, script.lease)
    script.ttl_s, script.holder = 3, 0
    with pytest.raises(LeaseGoneError):
        await session._renew_at(script, script.lease)
    await session.end()


async def test_a_renewal_that_comes_too_late_brings_nothing_back():
    session, script, _ = await begun()
    script.takes_s = 3.5
    await session._renew_at(script, script.lease)
    assert session.until() == 0
    with pytest.raises(SessionLostError, match="it was not renewed in time; join again"):
        session.lease()
    await session.end()


async def test_time_in_suspend_counts():
    asleep_s = 0.0
    clock = StillClock()
    script = Script(clock)
    session = Session(script, KEYS, clock, SeededRng(1), lambda: clock.mono() + asleep_s, 3)
    await session.join("n", b"")
    asleep_s = 2.5
    assert session.until() == pytest.approx(clock.mono() + 0.5)
    asleep_s = 3.0
    assert session.until() == 0
    await session.end()


async def test_a_name_that_is_taken_gives_the_lease_back():
    clock = StillClock()
    script = Script(clock, holder=5)
    session = Session(script, KEYS, clock, SeededRng(1), clock.mono, 3)
    with pytest.raises(UsageError, match="give each node a name of its own"):
        await session.join("n", b"")
    assert script.revoked == [script.lease]
    assert session.until() == 0


async def test_a_lease_that_ends_before_the_node_has_joined_is_no_session():
    """This process stood still behind the grant: whoever joins has to hear what it can take."""
    clock = StillClock()
    script = Script(clock, refuses=Refusal.LEASE_GONE)
    session = Session(script, KEYS, clock, SeededRng(1), clock.mono, 3)
    with pytest.raises(SessionLostError, match="etcd has ended it"):
        await session.join("n", b"")
    assert session.until() == 0
    script.refuses = None
    await session.join("n", b"")
    assert session.until() == clock.mono() + 3
    await session.end()


@pytest.mark.parametrize("refuses", [None, Refusal.LEASE_GONE])
async def test_a_late_answer_to_an_earlier_session_does_not_end_the_next(monkeypatch, refuses):
    session, script, _ = await begun()
    is_asked, answered = asyncio.Event(), asyncio.Event()

    async def late(rpc, request, budget_s):
        is_asked.set()
        await answered.wait()
        if refuses is not None:
            raise RefusedError(refuses, "etcdserver: requested lease not found")
        return pb.TxnResponse()

    with monkeypatch.context() as patch:
        patch.setattr(script, "call", late)
        report = asyncio.ensure_future(session.report(b"v"))
        await is_asked.wait()
    session.lose("etcd has ended it")
    await session.join("n", b"")
    answered.set()
    with pytest.raises(SessionLostError):
        await report
    assert session.lease() == script.lease
    await session.end()


async def test_leaving_gives_the_lease_back_once():
    session, script, _ = await begun()
    await session.end()
    await session.end()
    assert script.revoked == [script.lease]
    assert session.until() == 0
    assert not [task for task in asyncio.all_tasks() if "etcd session" in task.get_name()]


def test_the_clock_of_suspend_never_falls_behind_the_monotonic_one():
    before = boot_s(), SystemClock().mono()
    after = boot_s(), SystemClock().mono()
    assert after[0] >= before[0]
    assert after[0] - before[0] >= 0
