"""The state machine with workflows: every rule of the others, and those on joins."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from model.compare import compare, us
from model.facts import Policy
from model.flow_reference import FlowReference
from model.machine import PLAIN, Model, picks
from model.world import MONO_US, TENANT_QUEUES

from lodeq.engine.runtime.ids import slot_of_id

failures = st.sampled_from(["run", "run", "wait", "cancel"])
ttls = st.sampled_from([None, None, None, 2, 7.25])
shapes = st.sampled_from(["flat", "flat", "chain", "after"])
RETENTION_S = 5
POLICY = Policy(attempts=2, retention=RETENTION_S * 1000)


class Flow:
    """One workflow: its join in the reference is the ``number``-th of ``ref.flows``."""

    def __init__(self, number, id, callback):
        self.number, self.id, self.callback = number, id, callback
        self.slices = []


class FlowModel(Model):
    """The rules, with workflows."""

    def __init__(self):
        super().__init__()
        self.flows = []  # in the order of ``ref.flows``
        self.handles = {}  # by number, of this process

    @initialize(
        shards=st.sampled_from([1, 1, 3]),
        pending_max=st.sampled_from([None, None, None, 9]),
        history_s=st.sampled_from([0, 20, 200]),
    )
    def start(self, shards, pending_max, history_s=0):
        self.shards, self.pending_max, self.history_s = shards, pending_max, history_s
        self.ref = FlowReference(us(self.clock.now), MONO_US, pending_max, history_s * 1000)
        self.ref.slot = lambda n: self.slot(n)  # a function: it is not copied with the reference
        self.run(self.open())

    def slot(self, n):
        return slot_of_id(bytes(self.ids[n]))

    # -- small words -------------------------------------------------------------------------

    def number_in(self, lease):
        return next(n for n, task_id in self.ids.items() if task_id == lease.task_id)

    def spec_of(self, tenant_queue, ttl=None, priority=5):
        return self.spec(tenant_queue, POLICY, PLAIN | {"ttl": ttl, "priority": priority})

    def task_of(self, s):
        o = PLAIN | {"ttl": None if s.ttl is None else s.ttl / 1000, "max_attempts": 2}
        task = self.new_task(s, o, (s.queue, s.tenant))
        return task._replace(retention=RETENTION_S)

    def flow_at(self, pick):
        return self.flows[pick % len(self.flows)]

    def join_of(self, flow):
        return self.ref.flows[flow.number]

    def handle(self, flow):
        """Of this process; the slices before are there, and are found again."""
        if flow.number not in self.handles:
            handle = self.run(self.engine.workflow(flow.callback, key=f"k{flow.number}"))
            assert (handle.id, handle.is_new) == (flow.id, False)
            for new, more, ids in flow.slices:
                after = [self.ids[n] for n in more["after"]]
                assert self.run(handle.add(new, after=after, chain=more["chain"])) == ids
            self.handles[flow.number] = handle
        return self.handles[flow.number]

    has_flows = precondition(lambda self: self.flows)

    # -- rules -------------------------------------------------------------------------------

    @rule(
        tenant_queue=st.sampled_from(TENANT_QUEUES),
        on_failure=failures,
        ttl=ttls,
        has_callback=st.booleans(),
    )
    def open_flow(self, tenant_queue, on_failure, ttl, has_callback=True):
        s = self.spec_of(tenant_queue, ttl)
        has_callback = has_callback or s.n % 3 > 0
        task = self.task_of(s) if has_callback else None
        number = len(self.flows)
        call = self.engine.workflow(task, key=f"k{number}", on_failure=on_failure)
        handle, join = self.both(call, self.ref.open_flow, s if has_callback else None, on_failure)
        if handle is None:
            return
        self.ref.flows.append(join)
        self.flows.append(Flow(number, handle.id, task))
        self.handles[number] = handle
        if has_callback:
            self.ref.made[s.n] = s
            self.ids[s.n] = handle.callback
            self.touched.add(s.n)

    @has_flows
    @rule(
        pick=picks,
        tenant_queue=st.sampled_from(TENANT_QUEUES),
        shape=shapes,
        members=st.lists(ttls, min_size=1, max_size=4),
        sources=st.lists(picks, min_size=1, max_size=3),
    )
    def add_members(self, pick, tenant_queue, shape, members, sources):
        flow = self.flow_at(pick)
        join, handle = self.join_of(flow), self.handle(flow)
        specs = [self.spec_of(tenant_queue, ttl) for ttl in members]
        new = [self.task_of(s) for s in specs]
        there = [p.n for p in join.parts]
        after = []
        if shape == "after" and there:
            after = [there[one % len(there)] for one in sources]
        more = {"after": after, "chain": shape == "chain"}
        call = handle.add(new, after=[self.ids[n] for n in after], chain=shape == "chain")
        ids, _ = self.both(call, self.ref.add, join, specs, **more)
        if ids is not None:
            flow.slices.append((new, more, ids))
            self.ids |= {s.n: one for s, one in zip(specs, ids, strict=True)}
            self.touched |= {s.n for s in specs}

    @has_flows
    @rule(pick=picks)
    def seal(self, pick):
        flow = self.flow_at(pick)
        ours, theirs = self.both(self.handle(flow).seal(), self.ref.seal, self.join_of(flow))
        assert ours == theirs

    @has_flows
    @rule(pick=picks)
    def cancel_flow(self, pick):
        flow = self.flow_at(pick)
        call = self.engine.cancel_workflow(flow.id)
        ours, theirs = self.both(call, self.ref.cancel_flow, self.join_of(flow))
        assert ours == theirs

    @has_flows
    @rule(pick=picks)
    def redrive_flow(self, pick):
        flow, self.n = self.flow_at(pick), self.n + 1
        join = self.join_of(flow)
        before = join.target
        call = self.engine.redrive_workflow(flow.id)
        ours, theirs = self.both(call, self.ref.redrive_flow, join, self.n)
        assert ours == theirs
        if join.target != before:
            self.ids[join.target] = self.run(self.engine.workflow_info(flow.id)).callback

    @rule(pick=picks)
    def redrive_awaited(self, pick):
        """What is dead of that which a task waits for."""
        alone = [join for join in self.ref.joins if join not in self.ref.flows]
        if not alone:
            return
        join = alone[pick % len(alone)]
        call = self.engine.redrive_workflow(self.ids[join.target])
        ours, theirs = self.both(call, self.ref.redrive_awaited, join)
        assert ours == theirs

    @rule(
        tenant_queue=st.sampled_from(TENANT_QUEUES),
        on_failure=failures,
        ttl=ttls,
        sources=st.lists(picks, min_size=1, max_size=4),
    )
    def wait_for(self, tenant_queue, on_failure, ttl, sources):
        if not self.ids:
            return
        numbers = list(self.ids)[-16:]
        after = [numbers[one % len(numbers)] for one in sources]
        s = self.spec_of(tenant_queue, ttl)
        call = self.engine.enqueue_after(
            self.task_of(s), [self.ids[n] for n in after], on_failure=on_failure
        )
        task_id, _ = self.both(call, self.ref.enqueue_after, s, after, on_failure)
        if task_id is not None:
            self.ids[s.n] = task_id
            self.touched.add(s.n)

    @rule(
        tenant_queue=st.sampled_from(TENANT_QUEUES[:2]),
        on_failure=failures,
        shape=st.sampled_from(["flat", "chain"]),
        hows=st.lists(
            st.sampled_from(["complete", "complete", "bury", "nack", "cancel"]),
            min_size=1,
            max_size=4,
        ),
    )
    def run_a_flow(self, tenant_queue, on_failure, shape, hows):
        """From its opening to the ends of its members."""
        count = len(self.flows)
        self.open_flow(tenant_queue, on_failure, None, True)
        if len(self.flows) == count:
            return
        self.add_members(count, tenant_queue, shape, [None] * len(hows), [0])
        self.same()
        self.seal(count)
        self.same()
        for how in hows:
            leases = len(self.leases)
            self.take([tenant_queue], 1, None, "", False)
            for lease, theirs, task in self.leases[leases:]:
                self.touched.add(task.spec.n)
                if how == "complete":
                    self.both(lease.complete(b"r"), self.ref.complete, task, theirs, b"r")
                elif how == "bury":
                    self.both(lease.bury("no"), self.ref.bury, task, theirs, "no")
                elif how == "cancel":
                    self.both(lease.cancel(), self.ref.cancel_lease, task, theirs)
                else:
                    self.both(lease.nack(delay=0, reason="x"), self.ref.nack, task, theirs, 0, "x")
            self.same()

    def check_refused(self, name, refused):
        """A delete leaves what a workflow may still read."""
        numbers = {str(task_id): n for n, task_id in self.ids.items()}
        assert all(self.ref.is_pinned(numbers[one]) for one in refused), refused
        assert not refused or name == "delete"

    def unpins(self, dead, numbers):
        return any(
            join.state != "over" and join.target in dead and any(p.n in numbers for p in join.parts)
            for join in self.ref.joins
        )

    # -- comparing ---------------------------------------------------------------------------

    async def settled(self):
        """Joins on other slots have counted what was sent to them."""
        for _ in range(2):  # the second sees what the first has led to
            for groups in self.engine._state.flows.slices():
                for one in [shard.coalescer.wait(g) for shard, g in groups.items() if g.ops]:
                    await one

    @invariant()
    def same(self):
        if self.engine is None:
            return
        self.run(self.settled())
        if self.ref.has_released:  # in which order they were let go is nobody's promise
            self.ref.tails = [[(t, 0, seq) for tie in self.ref.tails for t, _, seq in tie]]
            self.ref.has_released = False
        self.run(compare(self))
        self.run(self.compare_flows())
        self.touched.clear()
        self.is_same = True

    async def compare_flows(self):
        for flow in self.flows:
            join, info = self.join_of(flow), await self.engine.workflow_info(flow.id)
            callback = None if join.target is None else self.ids[join.target]
            ended = sum(p.status is not None for p in join.parts)
            assert (
                info.state,
                info.generation,
                info.members,
                info.ended,
                info.failed,
                info.callback,
            ) == (join.shown, join.generation, len(join.parts), ended, join.failed, callback)
            await self.compare_parts(flow.id, join)
        for join in self.ref.joins:
            if join not in self.ref.flows:
                await self.compare_parts(self.ids[join.target], join)

    async def compare_parts(self, named, join):
        parts = await self.engine.parts_page(named, limit=1000)
        assert [(p.task_id, p.status) for p in parts] == [
            (self.ids[p.n], p.status) for p in join.parts
        ]
