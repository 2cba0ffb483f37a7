"""The state machine with limits of keys: every rule of the others, and other limits.

What a task is called by is drawn with its number, of few values. ``claim_with_starvation`` is left
out: which claim serves the oldest depends on what was set aside before.
"""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from model.compare import Compare, us
from model.key_reference import KeyReference
from model.machine import PLAIN, Model, picks, tenant_queues
from model.world import MONO_US

CUSTOMERS, REGIONS = ("a", "a", "b", None), ("x", "x", "x", "y", None)


class KeyCompare(Compare):
    """Takes over who waits, before all is compared."""

    def look(self, found):
        model, numbers = self.model, {task_id: n for n, task_id in self.ids.items()}
        is_quiet = not self.engine._state.key_limits.has_unswept
        waiting = {
            numbers[t.id] for (_, state), ts in found.items() if state == "waiting" for t in ts
        }
        is_ordered = self.shards == 1 and not model.has_moved
        model.ref.adopt(waiting, is_ordered=is_ordered, is_quiet=is_quiet)
        model.has_moved = False
        for (_, state), ts in found.items():
            if state == "waiting":  # side by side by key, in the order of a hash
                ts.sort(key=lambda t: self.order_of_waiting(self.ref.tasks[numbers[t.id]]))

    def order_of_waiting(self, t):
        return (t.spec.tenant, t.spec.n)


class KeyModel(Model):
    """The rules, with limits of keys."""

    comparison = KeyCompare
    claim_with_starvation = None

    def __init__(self):
        super().__init__()
        self.has_moved = False  # tasks have got other places since the last look

    @initialize(
        shards=st.sampled_from([1, 1, 3]),
        pending_max=st.sampled_from([None, None, None, 9]),
        history_s=st.sampled_from([0, 0, 20]),
    )
    def start(self, shards, pending_max, history_s=0):
        self.shards, self.pending_max, self.history_s = shards, pending_max, history_s
        self.ref = KeyReference(us(self.clock.now), MONO_US, pending_max, history_s * 1000)
        self.run(self.open())
        self.limit_keys("a", 1, "customer")

    def teardown(self):
        if self.is_same:
            self.pass_time(125_000)
            self.same()
            assert not self.engine._state.key_limits.has_unswept
        super().teardown()

    def labels_of(self, n):
        mixed = n * 2_654_435_761 >> 7
        found = {
            "customer": CUSTOMERS[mixed % len(CUSTOMERS)],
            "region": REGIONS[mixed // 8 % len(REGIONS)],
        }
        return {name: value for name, value in found.items() if value is not None} or None

    # -- rules -------------------------------------------------------------------------------

    @rule(
        queue=st.sampled_from(["a", "a", "b"]),
        n=st.sampled_from([None, 1, 1, 2, 3]),
        label=st.sampled_from(["customer", "customer", "region"]),
    )
    def limit_keys(self, queue, n, label):
        text = None if n is None else f"{n}/{label}"
        self.run(self.engine.configure(queue, key_concurrency=text))
        self.ref.key_limits.pop(queue, None)
        if n is not None:
            self.ref.key_limits[queue] = (n, label)

    @rule(
        tenant_queue=tenant_queues,
        priorities=st.lists(st.sampled_from([5, 5, 0, 9]), min_size=3, max_size=6),
        pick=picks,
        is_cancelled=st.booleans(),
    )
    def crowd(self, tenant_queue, priorities, pick, is_cancelled):
        """More tasks than their keys have room; a lease ends; who is let go may be cancelled."""
        for priority in priorities:
            self.enqueue(tenant_queue, PLAIN | {"priority": priority})
        self.same()
        self.take([tenant_queue], len(priorities), None, "", False)
        self.same()
        live = [x for x in self.leases if x[1] is x[2].lease and not x[1].dead]
        if not live:
            return
        waiting = [t for t in self.ref.tasks.values() if t.state == "waiting"]
        lease, theirs, task = live[pick % len(live)]
        self.touched.add(task.spec.n)
        self.both(lease.complete(b"r"), self.ref.complete, task, theirs, b"r")
        self.same()
        for t in waiting:
            if is_cancelled and t.state == "ready":
                self.cancel_number(t.spec.n)
                self.same()

    @rule(pick=picks, state=st.sampled_from(["waiting", "ready"]))
    def cancel_one_of(self, pick, state):
        found = [t.spec.n for t in self.ref.tasks.values() if t.state == state]
        if found:
            self.cancel_number(found[pick % len(found)])

    def cancel_number(self, n):
        self.touched.add(n)
        ours, theirs = self.both(self.engine.cancel(self.ids[n]), self.ref.cancel, n)
        assert ours == theirs

    def act(self, name, meant, **options):
        self.has_moved |= name == "reprioritise"
        return super().act(name, meant, **options)

    def take(self, keys, limit, length, worker, exported):
        # Whether a claim has met an overdue task cannot be seen: let the sweep end those first.
        if self.ref.is_by_keys(keys) and any(
            t.state in ("ready", "waiting") and t.expires and t.expires <= self.ref.ms
            for t in self.ref.tasks.values()
        ):
            self.pass_time((-self.ref.wall % 1_000_000) or 1_000_000)
            self.same()
        super().take(keys, limit, length, worker, exported)
