"""Limits of keys in the reference: what a claim may grant, and who may wait.

Which tasks a claim meets on its way, and so sets aside, is nobody's promise, nor when a task that
waits is let go. So the reference takes from what it sees whether a task of such a queue is ready or
waits (``adopt``), and says what must be so: a claim grants the first whose key has room, and
nothing only if there is none; a task is set aside by a claim alone, and only if its key is full;
of one key the first goes first; and nothing waits for a key that has room.
"""

from collections import Counter
from dataclasses import dataclass, field

from model.reference import Reference


@dataclass
class KeyReference(Reference):
    """The whole queue, with limits of keys."""

    key_limits: dict = field(default_factory=dict)  # queue -> (leases at once, label)
    claimed: set = field(default_factory=set)  # queues that a claim of this step has looked into
    is_short: bool = False  # it left a task with room: it has set others aside

    def of(self, queue, tenant, *states):
        if "ready" in states and "delayed" in states:
            states = (*states, "waiting")
        return super().of(queue, tenant, *states)

    # -- keys --------------------------------------------------------------------------------

    def key(self, task):
        """The key a task is counted by; None: it is not counted."""
        label = self.key_limits.get(task.spec.queue, (None, None))[1]
        value = (task.spec.labels or {}).get(label)
        return None if value is None else (task.spec.queue, task.spec.tenant, value)

    def by_key(self, *states):
        """Tasks in these states by key; no dead letter."""
        return Counter(
            key
            for t in self.tasks.values()
            if t.state in states and not t.is_borrowed and (key := self.key(t)) is not None
        )

    def has_key_room(self, task, live):
        key = self.key(task)
        return key is None or live[key] < self.key_limits[task.spec.queue][0]

    # -- claims ------------------------------------------------------------------------------

    def is_by_keys(self, keys):
        """Whether a claim of these has to do with keys."""
        return any(self.key_limits.get(queue) for queue, _ in keys)

    def claim(self, keys, limit, length, worker="", exported=False, seen=(), starvation=None):
        if not self.is_by_keys(keys):
            return super().claim(keys, limit, length, worker, exported, seen, starvation)
        keys = list(dict.fromkeys(keys))
        live, out = self.by_key("leased"), []
        assert len(seen) <= limit
        for n in seen:
            t = self.tasks[n]
            assert t.state in ("ready", "waiting"), t  # it may have been let go meanwhile
            assert self.has_key_room(t, live), f"{t} is one lease too many"
            first = self.first(keys, live, t if starvation is None else None)
            assert first is None or t.order <= first.order, f"{t} before {first}"
            assert self.has_room(t.spec.queue)
            live[self.key(t)] += 1
            self.grant(t, length, worker, exported)
            out.append(t)
        left = self.first(keys, live)
        assert left is None or seen, f"{left} was left, though its key has room"
        self.claimed, self.is_short = {queue for queue, _ in keys}, left and len(out) < limit
        self.passed = {tenant_queue: set() for tenant_queue in self.passed}
        return out

    def first(self, keys, live, granted=None):
        """The first with room of those that the next task must be compared with, if there is one.

        With ``granted`` of its own tenant queue alone where a claim of all tenants has turns.
        """
        has_turns = granted is not None and any(tenant is None for _, tenant in keys)
        found = [
            t
            for queue, tenant in keys
            if self.has_room(queue)
            for t in self.of(queue, tenant, "ready")
            if (queue, None) not in self.paused
            and (queue, t.spec.tenant) not in self.paused
            and self.has_key_room(t, live)
            and not (
                has_turns and (queue, t.spec.tenant) != (granted.spec.queue, granted.spec.tenant)
            )
        ]
        return min(found, key=lambda t: t.order, default=None)

    # -- what is seen ------------------------------------------------------------------------

    def adopt(self, waiting, *, is_ordered, is_quiet):
        """Take over who waits.

        Args:
            waiting: numbers of the tasks that do.
            is_ordered: whether one look at all keys goes by their order.
            is_quiet: whether all is at rest.
        """
        live = self.by_key("leased")
        let_go, aside = {}, 0
        for t in self.tasks.values():
            if t.state == "ready" and t.spec.n in waiting:
                assert t.spec.queue in self.claimed, f"{t} waits, and no claim has met it"
                assert not self.has_key_room(t, live), f"{t} waits, though its key has room"
                t.state = "waiting"
                aside += 1
            elif t.state == "waiting" and t.spec.n not in waiting:
                self.ready(t)
                let_go.setdefault(self.key(t), []).append(t.order)
        assert not self.is_short or aside, "a claim left what it could have granted"
        self.claimed, self.is_short = set(), False
        still = [t for t in self.tasks.values() if t.state == "waiting"]
        assert {t.spec.n for t in still} == waiting
        for t in still if is_ordered else ():
            if self.key(t) is not None:
                assert t.order > max(let_go.get(self.key(t), ()), default=(-1, 0)), (
                    f"{t} was passed"
                )
        if is_quiet:
            given = live + self.by_key("ready")
            for t in still:
                assert not self.has_key_room(t, given), f"{t} waits for a key that has room"
