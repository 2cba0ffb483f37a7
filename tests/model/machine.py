"""The state machine: every rule is done by the engine and by the reference, then all is compared.

The engine runs on a private event loop, one ``run_until_complete`` a step. Time is a manual clock
in eighths of a second (exact in floats and in milliseconds), randomness is seeded, no backoff has
jitter: the same steps give the same queue, to the microsecond.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from model.compare import payload, us
from model.facts import Policy, RefusedError
from model.world import ENDS, POLICIES, STARVATION_S, STATES, TENANT_QUEUES, World, ms

from lodeq import TaskFilter

tenant_queues = st.sampled_from(TENANT_QUEUES)
picks = st.integers(0, 31)
delays = st.sampled_from([None, 0, 0.5, 3])
lengths = st.sampled_from([None, 1.0, 2.5, 30.0])
reasons = st.sampled_from(["", "boom", "häßlich"])
options = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([5, 5, 5, 0, 7, 9]),
        "delay": st.sampled_from([None, None, 0, 0.5, 2, 2.125]),
        "ttl": st.sampled_from([None, None, None, 0.5, 3, 7.25]),
        "key": st.sampled_from([None, "x", "x", "y"]),
        "window": st.sampled_from([None, 1, 30, 30]),
        "on_conflict": st.sampled_from(["return", "return", "raise", "replace"]),
        "headers": st.sampled_from([None, None, {"h": 1}]),
        "max_attempts": st.sampled_from([None, None, 1, 4]),
    }
)
PLAIN = dict.fromkeys(("delay", "ttl", "key", "window", "headers", "max_attempts")) | {
    "priority": 5,
    "on_conflict": "return",
}
plain = st.just(PLAIN)
tasks = st.one_of(plain, options)
many = st.lists(st.tuples(st.sampled_from([None, *TENANT_QUEUES]), tasks), min_size=1, max_size=6)


class Model(World):
    """The rules."""

    # -- rules: in -------------------------------------------------------------------------

    @rule(tenant_queue=tenant_queues, o=tasks)
    def enqueue(self, tenant_queue, o):
        s = self.spec(tenant_queue, POLICIES[tenant_queue[0]], o)
        t = self.new_task(s, o)
        call = self.queues[tenant_queue].enqueue(
            t.payload,
            priority=t.priority,
            delay=t.delay,
            ttl=t.ttl,
            dedup_key=t.dedup_key,
            dedup_window=t.dedup_window,
            on_conflict=t.on_conflict,
            headers=t.headers,
            max_attempts=t.max_attempts,
            labels=t.labels,
        )
        receipt, expected = self.both(call, self.ref.enqueue, s)
        if receipt is not None:
            self.same_receipt(receipt, expected)

    @rule(tenant_queue=st.sampled_from([None, *TENANT_QUEUES]), given=many, atomic=st.booleans())
    def enqueue_many(self, tenant_queue, given, atomic):
        specs, new = [], []
        for at, o in given:
            if tenant_queue is None and at is None:
                at = TENANT_QUEUES[0]
            is_of_queue = at is None or (tenant_queue is not None and at[0] == tenant_queue[0])
            policy = POLICIES[tenant_queue[0]] if is_of_queue else Policy()
            specs.append(self.spec(tenant_queue if at is None else at, policy, o))
            new.append(self.new_task(specs[-1], o, at))
        to = self.engine if tenant_queue is None else self.queues[tenant_queue]
        theirs = self.refs(self.ref_many, specs, atomic)
        receipts, name, error = self.run(self.engines(to.enqueue_many(new, atomic=atomic)))
        assert name == theirs[1], f"{name} instead of {theirs}: {error}"
        expected = theirs[0] if error is None else theirs[2] or [None] * len(specs)
        receipts = (error.receipts or [None] * len(specs)) if error is not None else receipts
        if atomic and error is not None:
            expected = [None] * len(specs)
        for receipt, one in zip(receipts, expected, strict=True):
            assert (receipt is None) == (one is None)
            if one is not None:
                self.same_receipt(receipt, one)

    def ref_many(self, specs, atomic):
        self.ref.check_room(specs)
        if atomic and self.shards > 1 and len({s.key for s in specs}) > 1:
            raise RefusedError("LimitError")
        return self.ref.enqueue_many(specs, atomic=atomic)

    # -- rules: out ------------------------------------------------------------------------

    def tenant_queue_at(self, pick, *states):
        """A tenant queue that has such tasks, if there is one."""
        found = [x for x in TENANT_QUEUES if self.ref.of(*x, *states)] or TENANT_QUEUES
        return found[pick % len(found)]

    has_ready = precondition(
        lambda self: any(t.state == "ready" for t in self.ref.tasks.values()) or self.n % 4 == 0
    )

    has_dead = precondition(lambda self: any(t.state == "dead" for t in self.ref.tasks.values()))

    @has_ready
    @rule(
        pick=picks,
        more=st.lists(tenant_queues, max_size=3),
        limit=st.sampled_from([1, 1, 2, 5]),
        length=lengths,
        worker=st.sampled_from(["", "w1"]),
        exported=st.sampled_from([False, False, True]),
    )
    def claim(self, pick, more, limit, length, worker, exported):
        more = more if pick > 7 else []
        self.take([self.tenant_queue_at(pick, "ready"), *more], limit, length, worker, exported)

    @has_ready
    @rule(
        pick=picks,
        more=st.lists(tenant_queues, max_size=2),
        limit=st.sampled_from([1, 2, 5]),
        length=lengths,
    )
    def claim_all_tenants(self, pick, more, limit, length):
        # Whose turn an overdue task took cannot be seen: let the sweep end those first.
        if any(
            t.state == "ready" and t.expires and t.expires <= self.ref.ms
            for t in self.ref.tasks.values()
        ):
            self.pass_time((-self.ref.wall % 1_000_000) or 1_000_000)
            self.same()
        more = more if pick > 15 else []
        self.take([(self.tenant_queue_at(pick, "ready")[0], None), *more], limit, length, "", False)

    @rule(
        pick=picks,
        more=st.lists(tenant_queues, max_size=2),
        limit=st.sampled_from([1, 3, 20]),
        crowd=st.lists(st.sampled_from([0, 5, 9]), max_size=10),
    )
    def claim_with_starvation(self, pick, more, limit, crowd):
        keys = list(
            dict.fromkeys([self.tenant_queue_at(pick, "ready"), *(more if pick > 7 else [])])
        )
        for priority in crowd:
            self.enqueue(keys[0], PLAIN | {"priority": priority})
        self.same()  # takes their seq over before any of them is claimed
        if len(keys) == 1:
            tenant_queue = self.engine._state.find_tenant_queue(
                *(name.encode() for name in keys[0])
            )
            if (
                tenant_queue is None or not tenant_queue.claims
            ):  # nothing was left of it: it counts anew
                self.ref.counts[keys[0]] = 0
            call = self.hungry[keys[0]].claim(limit=limit)
        else:
            call = self.engine.claim([self.hungry[key] for key in keys], limit=limit)
        self.taken(call, keys, limit, starvation=STARVATION_S * 1_000_000)

    def take(self, keys, limit, length, worker, exported):
        if len(keys) == 1:
            call = self.queues[keys[0]].claim(
                limit=limit, lease=length, worker=worker, exported=exported
            )
        else:
            call = self.engine.claim(
                [self.queues[key] for key in keys],
                limit=limit,
                lease=length,
                worker=worker,
                exported=exported,
            )
        self.taken(call, keys, limit, length, worker, exported)

    def taken(self, call, keys, limit, length=None, worker="", exported=False, starvation=None):
        leases = self.run(call)
        seen = [self.number_in(lease) for lease in leases]
        length_us = 30_000_000 if length is None else round(length * 1e6)
        granted = self.ref.claim(keys, limit, length_us, worker, exported, seen, starvation)
        assert seen == [t.spec.n for t in granted]
        for lease, t in zip(leases, granted, strict=True):
            self.same_lease(lease, t)
            self.leases.append((lease, t.lease, t))

    @has_dead
    @rule(
        pick=picks,
        limit=st.sampled_from([1, 1, 2, 5]),
        length=lengths,
        exported=st.sampled_from([False, False, True]),
    )
    def claim_dead(self, pick, limit, length, exported):
        queue, tenant = self.tenant_queue_at(pick, "dead")
        leases = self.run(
            self.queues[queue, tenant].claim(
                limit=limit, lease=length, worker="w2", exported=exported, dead=True
            )
        )
        seen = [self.number_in(lease) for lease in leases]
        length_us = 30_000_000 if length is None else round(length * 1e6)
        granted = self.ref.claim_dead(queue, tenant, limit, length_us, "w2", exported, seen)
        for lease, t in zip(leases, granted, strict=True):
            self.same_lease(lease, t)
            assert (lease.reason, us(lease.dead_at)) == (t.reason, t.died * 1000)
            self.leases.append((lease, t.lease, t))
        if pick % 2:  # else it is ended by the rules of all leases
            self.end_borrowed(pick)

    def end_borrowed(self, pick):
        """The last one that was claimed: done, sent back, or let go."""
        lease, theirs, task = self.leases[-1] if self.leases else (None, None, None)
        if lease is None or task.lease is not theirs:
            return
        self.touched.add(task.spec.n)
        if pick % 3 == 0:
            self.both(lease.redrive(), self.ref.redrive_lease, task, theirs)
        elif pick % 3 == 1:
            self.both(lease.complete(b"seen to"), self.ref.complete, task, theirs, b"seen to")
        else:
            self.both(lease.nack(reason="no"), self.ref.nack, task, theirs, None, "no")

    def number_in(self, lease):
        return int(lease.payload)

    def same_lease(self, lease, t):
        n, s = t.spec.n, t.spec
        assert lease.task_id == self.ids[n]
        assert lease.payload == payload(self.ref.says.get(n, n))
        assert lease.attempt == t.attempts
        assert lease.epoch > self.epochs.get(n, 0)
        self.epochs[n] = lease.epoch
        assert (lease.queue, lease.tenant, lease.priority) == (s.queue, s.tenant, s.priority)
        assert lease.headers == (s.headers or {})
        assert us(lease.enqueued_at) == t.created
        assert us(lease.deadline) == self.ref.wall + t.lease.length
        assert lease.policy.max_attempts == s.policy.attempts

    # -- rules: back -----------------------------------------------------------------------

    def lease_at(self, pick):
        """One that is live; one time in four any of the last sixteen, most of them long lost."""
        live = [x for x in self.leases if x[1] is x[2].lease] if pick % 4 else []
        recent = live or self.leases[-16:]
        lease, theirs, task = recent[pick % len(recent)]
        self.touched.add(task.spec.n)
        return lease, theirs, task

    has_leases = precondition(
        lambda self: (
            any(x[1] is x[2].lease for x in self.leases) or (self.leases and self.n % 4 == 0)
        )
    )

    @has_leases
    @rule(
        pick=picks,
        result=st.sampled_from([None, b"r", {"k": [1]}]),
        keep=st.sampled_from([True, True, False]),
        then=st.lists(st.tuples(st.sampled_from([None, None, *TENANT_QUEUES]), tasks), max_size=2),
    )
    def complete(self, pick, result, keep, then):
        lease, theirs, task = self.lease_at(pick)
        specs, new = [], []
        for at, o in then:
            o = o | {"key": None}
            s = self.spec(at or (task.spec.queue, task.spec.tenant), Policy(), o)
            specs.append(s)
            new.append(self.new_task(s, o, at))
        self.both(
            lease.complete(result, keep=keep, then=new),
            self.ref.complete,
            task,
            theirs,
            result,
            keep,
            specs,
        )
        self.find_new(s for s in specs if s.n in self.ref.tasks)

    def find_new(self, specs):
        """The ids of follow-ups, which nobody is told: by their payloads."""
        wanted = {s.n: s for s in specs}
        for tenant_queue in {(s.queue, s.tenant) for s in wanted.values()}:
            for state in ("ready", "delayed"):
                for t in self.run(self.queues[tenant_queue].list(state, limit=10_000)):
                    if int(t.payload) in wanted:
                        self.ids[int(t.payload)] = t.id

    @has_leases
    @rule(chosen=st.lists(st.tuples(picks, st.sampled_from([None, 1])), max_size=4))
    def complete_many(self, chosen):
        found = [(*self.lease_at(pick), value) for pick, value in chosen]
        told = [
            self.refs(self.ref.complete, task, theirs, value)[1] for _, theirs, task, value in found
        ]
        out = self.run(self.engine.complete_many([(x[0], x[3]) for x in found]))
        assert [e and type(e).__name__ for e in out] == told

    @has_leases
    @rule(pick=picks, delay=delays, reason=reasons)
    def nack(self, pick, delay, reason):
        lease, theirs, task = self.lease_at(pick)
        if delay is None and task.spec.policy.backoff is None:
            delay = 1  # the default backoff has jitter
        self.both(
            lease.nack(delay=delay, reason=reason), self.ref.nack, task, theirs, ms(delay), reason
        )

    @has_leases
    @rule(pick=picks, delay=delays)
    def release(self, pick, delay):
        lease, theirs, task = self.lease_at(pick)
        self.both(lease.release(delay=delay), self.ref.release, task, theirs, ms(delay))

    @has_leases
    @rule(pick=picks, reason=reasons)
    def bury(self, pick, reason):
        lease, theirs, task = self.lease_at(pick)
        self.both(lease.bury(reason), self.ref.bury, task, theirs, reason)

    @has_leases
    @rule(pick=picks)
    def redrive_lease(self, pick):
        lease, theirs, task = self.lease_at(pick)
        self.both(lease.redrive(), self.ref.redrive_lease, task, theirs)

    @has_leases
    @rule(pick=picks)
    def cancel_lease(self, pick):
        lease, theirs, task = self.lease_at(pick)
        self.both(lease.cancel(), self.ref.cancel_lease, task, theirs)

    @has_leases
    @rule(pick=picks, length=st.sampled_from([None, 0, 0.5, 4]))
    def heartbeat(self, pick, length):
        lease, theirs, task = self.lease_at(pick)
        length_us = None if length is None else round(length * 1e6)
        ours, expected = self.both(
            lease.heartbeat(length), self.ref.heartbeat, task, theirs, length_us
        )
        assert us(ours) == expected

    # -- rules: operators --------------------------------------------------------------------

    def number_at(self, pick):
        numbers = list(self.ids)[-16:]
        self.touched.add(n := numbers[pick % len(numbers)])
        return n

    has_ids = precondition(lambda self: self.ids)

    @has_ids
    @rule(pick=picks)
    def cancel(self, pick):
        n = self.number_at(pick)
        ours, theirs = self.both(self.engine.cancel(self.ids[n]), self.ref.cancel, n)
        assert ours == theirs

    @has_dead
    @rule(pick=picks)
    def redrive(self, pick):
        tenant_queue = ("a", None) if pick > 23 else self.tenant_queue_at(pick, "dead")
        dead = self.ref.of(*tenant_queue, "dead")
        self.touched |= {t.spec.n for t in dead}
        order = {t.id: i for i, t in enumerate(self.run(self.queues[tenant_queue].list("dead")))}
        dead.sort(key=lambda t: order[self.ids[t.spec.n]])
        ours, theirs = self.both(self.queues[tenant_queue].redrive(), self.ref.redrive, dead)
        assert ours == theirs[0]

    @has_ids
    @rule(pick=picks)
    def redrive_one(self, pick):
        tenant_queue = self.tenant_queue_at(pick, "dead")
        dead = self.ref.of(*tenant_queue, "dead") if pick % 4 else []
        n = dead[pick % len(dead)].spec.n if dead else self.number_at(pick)
        dead = [t for t in self.ref.of(*tenant_queue, "dead") if t.spec.n == n]

        def expected():
            if not dead:
                raise RefusedError("TaskNotFoundError")
            if self.ref.redrive(dead)[1]:
                raise RefusedError("DuplicateTaskError")
            return 1

        ours, theirs = self.both(self.queues[tenant_queue].redrive([self.ids[n]]), expected)
        assert ours == theirs

    # -- rules: acts on what a filter means ---------------------------------------------------

    def act(self, name, meant, **options):
        """One act, in slices of three."""
        done, cursor = 0, None
        while True:
            report = self.run(self.engine.act(name, meant, limit=3, cursor=cursor, **options))
            done, cursor = done + report.done, report.cursor
            self.check_refused(name, report.refused)
            assert not report.skipped
            if cursor is None:
                return done

    def check_refused(self, name, refused):
        assert not refused

    def unpins(self, dead, numbers):
        """Whether a delete of the dead lets go others of the same act, which may come before."""
        return False

    @rule(
        pick=picks,
        every=st.booleans(),
        state=st.sampled_from([None, "ready", "delayed"]),
        priority=st.sampled_from([0, 5, 9]),
    )
    def reprioritise(self, pick, every, state, priority):
        tenant_queue = self.tenant_queue_at(pick, *([state] if state else ["ready", "delayed"]))
        tenant_queue = ("a", None) if every and tenant_queue[0] == "a" else tenant_queue
        tasks = self.ref.of(*tenant_queue, *([state] if state else STATES))
        self.touched |= {t.spec.n for t in tasks}
        meant = TaskFilter(queue=tenant_queue[0], tenant=tenant_queue[1], state=state)
        ours = self.act("reprioritise", meant, priority=priority)
        assert ours == self.ref.reprioritise(tasks, priority)

    def bury_keyed(self, tenant_queue):
        """Dead letters whose windows may still be open."""
        self.enqueue(tenant_queue, PLAIN | {"key": "x", "window": 30})
        self.same()
        self.take([tenant_queue], 5, None, "", False)
        for lease, theirs, task in self.leases:
            if task.lease is theirs is not None and task.spec.key is not None:
                self.both(lease.bury("no"), self.ref.bury, task, theirs, "no")
        self.same()

    @rule(
        pick=picks,
        state=st.sampled_from([None, "dead", "completed", "expired", "cancelled"]),
        keyed=st.booleans(),
    )
    def delete(self, pick, state, keyed):
        if keyed:
            self.bury_keyed(self.tenant_queue_at(pick, "dead"))
        tenant_queue = (
            self.tenant_queue_at(pick, "dead")
            if pick % 2
            else TENANT_QUEUES[pick % len(TENANT_QUEUES)]
        )
        states = ("dead", *ENDS) if state is None else (state,)
        dead = {t.spec.n for t in self.ref.of(*tenant_queue, "dead")} if "dead" in states else set()
        over = {
            n
            for n, r in self.ref.results.items()
            if (r.spec.queue, r.spec.tenant) == tenant_queue and r.status in set(states) - {"dead"}
        }
        if self.unpins(dead, dead | over):
            return
        self.touched |= dead | over
        keys = [t.spec.key for n in sorted(dead) if (t := self.ref.tasks[n]).spec.key is not None]
        ours = self.act(
            "delete", TaskFilter(queue=tenant_queue[0], tenant=tenant_queue[1], state=state)
        )
        assert ours == self.ref.delete(dead | over)
        if keys:  # its window may still be open
            self.enqueue(tenant_queue, PLAIN | {"key": keys[pick % len(keys)][-1]})

    # -- rules: queues --------------------------------------------------------------------------

    @rule(
        pick=picks,
        every=st.booleans(),
        what=st.sampled_from([None, "ready", "delayed", "dead", "pause", "resume", "resume"]),
    )
    def operate(self, pick, every, what):
        """``purge``, or what it says."""
        tenant_queue = self.tenant_queue_at(pick, what or "ready")
        tenant_queue = ("a", None) if every and tenant_queue[0] == "a" else tenant_queue
        if what == "pause":
            self.run(self.queues[tenant_queue].pause())
            self.ref.paused.add(tenant_queue)
        elif what == "resume":
            for one in list(self.ref.paused) or [tenant_queue]:
                self.run(self.queues[one].resume())
                self.ref.paused.discard(one)
        else:
            states = STATES[:2] + STATES[3:] if what is None else (what,)
            self.touched |= {t.spec.n for t in self.ref.of(*tenant_queue, *states)}
            ours, theirs = self.both(
                self.queues[tenant_queue].purge(what), self.ref.purge, *tenant_queue, *states
            )
            assert ours == theirs

    @rule(
        queue=st.sampled_from(["a", "b"]),
        rate=st.sampled_from([None, None, (1, 1), (3, 2), (6, 5)]),
        concurrency=st.sampled_from([None, None, None, 1, 3]),
    )
    def limit(self, queue, rate, concurrency):
        text = None if rate is None else f"{rate[0]}/{rate[1]}s"
        self.run(self.engine.configure(queue, rate=text, concurrency=concurrency))
        n, period = (None, None) if rate is None else (rate[0], rate[1] * 1_000_000)
        self.ref.limit(queue, n, period, concurrency)

    @rule(queue=st.sampled_from(["a", "b"]), rate=st.sampled_from([(1, 1), (3, 2)]))
    def start_one_by_one(self, queue, rate):
        """More claims of one than a rate lets start."""
        self.limit(queue, rate, None)
        for _ in range(rate[0] + 1):
            self.enqueue((queue, ""), PLAIN)
        self.same()  # takes their seq over before any of them is claimed
        for _ in range(rate[0] + 1):
            self.take([(queue, "")], 1, None, "", False)

    # -- rules: time ---------------------------------------------------------------------------

    @rule(eighths=st.sampled_from([0, 1, 1, 4, 4, 8, 8, 12, 20, 80]))
    def advance(self, eighths):
        self.pass_time(eighths * 125_000)

    def pass_time(self, length_us):
        async def move():
            self.clock.advance(length_us / 1e6)

        before, self.is_same = set(self.ref.tasks), False
        self.ref.advance(length_us)
        self.run(move())
        self.touched |= before - set(self.ref.tasks)
        self.touched |= {t.spec.n for t in self.ref.tasks.values() if t.state == "dead"}

    @rule()
    def advance_far(self):
        """Past all but the results of a task without a queue's own policy."""
        self.pass_time(40_000_000)

    @rule(eighths=st.sampled_from([-40, -8, -3, 3, 8, 40]))
    def step_wall(self, eighths):
        self.clock.step_wall(eighths / 8)
        self.ref.step(eighths * 125_000)
