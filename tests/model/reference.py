"""What a queue must do, as plain dicts and lists: slow, small, and obviously right.

It knows nothing of shards, keys, batches or windows, and imports nothing of lodeq. Tasks are
called by the number in their payload. Microseconds are ``wall``, ``mono`` and ``seq``,
milliseconds what is stored; ``second()`` rounds up as the sweep does. ``tails`` lists who went to
the tail, in order; those of one list did so in one moment, and their order among each other is
nobody's promise: the model test takes it, and the exact ``seq``, from what it sees.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, replace

from model.facts import Lease, RefusedError, Result, Task, second

PENDING = ("ready", "delayed", "waiting")


@dataclass
class Reference:
    """The whole queue."""

    wall: int
    mono: int
    pending_max: int | None = None
    history: int = 0  # milliseconds
    seq: int = 0
    latest: int = 0  # the latest wall time there was
    tasks: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    keys: dict = field(default_factory=dict)  # dedup key -> (who holds it, until when)
    paused: set = field(default_factory=set)  # (queue, tenant), or (queue, None) for all
    limits: dict = field(default_factory=dict)  # queue -> (starts, period in µs, concurrency)
    starts: dict = field(default_factory=dict)  # queue -> when, by the monotonic clock
    passed: dict = field(default_factory=dict)  # (queue, tenant) -> who was served before it
    counts: Counter = field(default_factory=Counter)  # of claims with starvation: tasks granted
    totals: Counter = field(default_factory=Counter)
    says: dict = field(default_factory=dict)  # number -> that of the payload, where it is another
    tails: list = field(
        default_factory=list
    )  # of [(task, rank within its tenant queue, least seq), …]

    # -- small words ---------------------------------------------------------------------

    @property
    def ms(self):
        return self.wall // 1000

    def of(self, queue, tenant, *states):
        """The tasks of a (queue, tenant or None for all) in these states."""
        return [
            t
            for t in self.tasks.values()
            if t.state in states and t.spec.queue == queue and tenant in (None, t.spec.tenant)
        ]

    def is_alive(self, n):
        """Whether it is going to run."""
        return n in self.tasks and self.tasks[n].state != "dead" and not self.tasks[n].is_borrowed

    def ready(self, task):
        if not self.of(task.spec.queue, task.spec.tenant, "ready"):
            self.passed[task.spec.queue, task.spec.tenant] = set()
        task.state, task.due = "ready", 0

    def tail(self, task, delay=0):
        task.seq = self.seq = max(self.wall, self.seq + 1)
        self.tails.append([(task, 0, task.seq)])
        if delay:
            task.state, task.due = "delayed", self.ms + delay
        else:
            self.ready(task)

    def tie(self, start, rank):
        """All that went to the tail since ``start`` did so at once."""
        some = [(t, rank.get(t.spec.n, 0), seq) for [(t, _, seq)] in self.tails[start:]]
        self.tails[start:] = [some]

    def let_go(self, task):
        """Its dedup key, unless the window outlives it."""
        held_by, until = self.keys.get(task.spec.key, (None, 0))
        if held_by == task.spec.n and until <= self.ms:
            del self.keys[task.spec.key]

    def put_result(self, task, status, error, value=None, keep=True):
        retention = task.spec.policy.retention if keep else 0
        if retention or self.history:
            self.results[task.spec.n] = Result(
                task.spec,
                status,
                error,
                value if retention else None,
                task.attempts,
                task.created,
                task.died * 1000 if task.is_borrowed else task.seq,
                self.wall,
                task.lease,
                retention,
                self.history,
            )

    def is_pinned(self, n):
        """Whether somebody may still read its result."""
        return False

    def kept_until(self, r):
        """When a row goes, or first its value."""
        has_value = r.value is not None and r.retention
        return second(
            r.finished // 1000 + (r.retention if has_value else max(r.retention, r.history))
        )

    def result(self, n):
        """The result of a task, within its retention."""
        r = self.results.get(n)
        if r is None or not r.history or (r.value is not None and r.retention):
            return r
        return r if r.retention and second(r.finished // 1000 + r.retention) > self.ms else None

    def end(self, task, status, error="", value=None, keep=True):
        """Over. A dead one (status None) has its result already."""
        del self.tasks[task.spec.n]
        if task.is_borrowed:
            self.take_death_back(task)
        self.let_go(task)
        if status is not None:
            self.put_result(task, status, error, value, keep)
        task.lease = None

    def take_death_back(self, task):
        """A dead letter ends in another way."""
        self.results.pop(task.spec.n, None)

    def lay_back(self, task):
        """It is a dead letter again, as it was."""
        task.state, task.lease = "dead", None

    def die(self, task, reason):
        if task.is_borrowed:
            self.lay_back(task)
            return
        self.put_result(task, "dead", reason)
        task.state, task.lease, task.reason = "dead", None, reason
        task.died, task.forget = self.ms, self.ms + task.spec.policy.dead
        self.let_go(task)
        self.totals["dead"] += 1

    def is_over(self, task):
        """Past its TTL when it comes back: then it ends."""
        if not task.expires or task.expires > self.ms or task.is_borrowed:
            return False
        self.end(task, "expired", "ttl")
        self.totals["expired"] += 1
        return True

    # -- in ------------------------------------------------------------------------------

    def holder(self, key):
        held_by, until = self.keys.get(key, (None, 0))
        if held_by is not None and (until > self.ms or self.is_alive(held_by)):
            return held_by
        return None

    def check_pending(self, queue, tenant, more=1):
        pending = len(self.of(queue, tenant, *PENDING))
        if self.pending_max is not None and pending + more > self.pending_max:
            raise RefusedError("QueueFullError")

    def enqueue(self, s, *, checked=True):
        """(number, is it a duplicate, number of the one it replaced)."""
        held_by = self.holder(s.key) if s.key is not None else None
        gone = None
        if held_by is not None:
            self.totals["duplicates"] += 1
            if s.on_conflict == "return":
                return held_by, True, None
            gone = self.tasks.get(held_by)
            if s.on_conflict == "raise" or (gone is not None and gone.state == "leased"):
                raise RefusedError("DuplicateTaskError")
        if checked and (gone is None or gone.state == "dead"):
            self.check_pending(s.queue, s.tenant)
        if gone is not None:
            self.end(gone, None if gone.state == "dead" else "cancelled", ("replaced by", s.n))
        due = self.ms + s.delay
        task = Task(s, self.wall, due + s.ttl if s.ttl is not None else 0)
        self.tasks[s.n] = task
        self.tail(task, s.delay)
        if s.key is not None:
            self.keys[s.key] = (s.n, 0 if s.window is None else self.ms + s.window)
        self.totals["enqueued"] += 1
        return s.n, False, gone.spec.n if gone is not None else None

    def takes_room(self, s):
        """A duplicate takes none, nor what takes the place of a pending task."""
        held_by = self.holder(s.key)
        if held_by is None:
            return True
        gone = self.tasks.get(held_by)
        return s.on_conflict == "replace" and (gone is None or gone.state == "dead")

    def check_room(self, specs):
        """All fit, or none is taken."""
        wanted, seen = Counter(), set()
        for s in specs:
            if s.key is None or (s.key not in seen and self.takes_room(s)):
                seen.add(s.key)
                wanted[s.queue, s.tenant] += 1
        for (queue, tenant), more in wanted.items():
            self.check_pending(queue, tenant, more)

    def enqueue_many(self, specs, *, atomic=False):
        """What became of each; a refusal of one leaves the others, unless it is atomic."""
        self.check_room(specs)
        if atomic:
            deepcopy(self).enqueue_many(specs)
        refusal, out = None, []
        for s in specs:
            try:
                out.append(self.enqueue(s))
            except RefusedError as error:
                refusal = refusal or error.args[0]
                out.append(None)
        if refusal is not None:
            raise RefusedError(refusal, out)
        return out

    # -- out -----------------------------------------------------------------------------

    def limit(self, queue, n, period, concurrency):
        """``None`` for no limit. What a rate still counts, the next one counts."""
        if self.limits.get(queue, (None,))[0] is not None:
            self.starts[queue] = self.recent(queue)
        self.limits[queue] = (n, period, concurrency)
        if n is None:
            self.starts.pop(queue, None)

    def recent(self, queue):
        """The starts that a rate still counts."""
        after = self.mono - self.limits[queue][1]
        return [at for at in self.starts.get(queue, ()) if at > after]

    def has_room(self, queue):
        """Whether the limits of a queue let another task start now."""
        n, _, concurrency = self.limits.get(queue, (None, None, None))
        picked = len(self.of(queue, None, "picked"))
        if n is not None and len(self.recent(queue)) + picked >= n:
            return False
        leased = sum(not t.is_borrowed for t in self.of(queue, None, "leased"))
        return concurrency is None or leased + picked < concurrency

    def heads(self, queue, tenant):
        """The first of each tenant queue a claim may serve."""
        best = {}
        if not self.has_room(queue):
            return best
        for t in sorted(self.of(queue, tenant, "ready"), key=lambda t: t.order):
            tenant_queue = (queue, t.spec.tenant)
            if (queue, None) not in self.paused and tenant_queue not in self.paused:
                best.setdefault(tenant_queue, t)
        return best

    def turn(self, tenant_queue):
        """A claim of all tenants serves ``tenant_queue``: nobody twice while another waits."""
        waiting = self.heads(tenant_queue[0], None)
        for other in waiting:
            if other != tenant_queue and tenant_queue in self.passed[other]:
                raise AssertionError(f"{tenant_queue} was served twice while {other} waited")
        for other, served in self.passed.items():
            if other in waiting:
                served.add(tenant_queue)
            elif other[0] == tenant_queue[0]:
                served.clear()

    def overdue(self, keys, starvation):
        """The oldest task that has been ready for so long, of tenant queues that are not paused."""
        tasks = [
            t
            for queue, tenant in keys
            if self.heads(queue, tenant)
            for t in self.of(queue, tenant, "ready")
            if t.seq <= self.wall - starvation
        ]
        return min(tasks, key=lambda t: t.seq, default=None)

    def pick(self, keys, limit, seen, starvation=None):
        """One round of a claim over (queue, tenant) pairs. ``seen``: whom the turns chose."""
        out, whose = [], keys[0] if len(keys) == 1 else "several"
        while len(out) < limit:
            if starvation is not None and self.counts[whose] % 8 == 7:
                task = self.overdue(keys, starvation)
                if task is not None:
                    self.counts[whose] += 1
                    task.state = "picked"
                    out.append(task)
                    continue
            named = [
                t
                for q, tenant in keys
                if tenant is not None
                for t in self.heads(q, tenant).values()
            ]
            turns = {
                t.spec.n: t
                for q, tenant in keys
                if tenant is None
                for t in self.heads(q, None).values()
            }
            task = min(named, key=lambda t: t.order, default=None)
            if turns and len(out) < len(seen) and (task is None or seen[len(out)] != task.spec.n):
                chosen = turns[seen[len(out)]]  # KeyError: not the first of its tenant queue
                assert task is None or chosen.order <= task.order
                self.turn((chosen.spec.queue, chosen.spec.tenant))
                task = chosen
            if task is None:
                assert not turns, "something was left, though there was room"
                break
            self.passed[task.spec.queue, task.spec.tenant] = set()
            self.counts[whose] += starvation is not None
            task.state = "picked"
            out.append(task)
        return out

    def claim(self, keys, limit, length, worker="", exported=False, seen=(), starvation=None):
        """The tasks, in order. What has outlived its TTL takes up room, and ends.

        With ``starvation`` (µs) every eighth task granted is the oldest overdue one.
        """
        keys = list(dict.fromkeys(keys))
        while True:
            picked = self.pick(keys, limit, seen, starvation)
            good = [t for t in picked if not t.expires or t.expires > self.ms]
            for t in picked:
                if t not in good:
                    self.is_over(t)
                    self.counts[keys[0] if len(keys) == 1 else "several"] -= starvation is not None
            if good or not picked:
                break
        for t in good:
            self.grant(t, length, worker, exported)
        return good

    def grant(self, t, length, worker, exported):
        t.state, t.attempts = "leased", t.attempts + 1
        if self.limits.get(t.spec.queue, (None,))[0] is not None:
            self.starts[t.spec.queue] = [*self.recent(t.spec.queue), self.mono]
        t.lease = Lease(self.wall, length, self.mono + length, worker, exported)
        self.totals["claimed"] += 1

    def claim_dead(self, queue, tenant, limit, length, worker, exported, seen):
        """The dead letters that died first; of one millisecond in any order."""
        dead = sorted(self.of(queue, tenant, "dead"), key=lambda t: t.died)
        good = [self.tasks[n] for n in seen]
        assert [t.died for t in good] == [t.died for t in dead[:limit]]
        assert all(t in dead for t in good)
        for t in good:
            t.state = "leased"
            t.lease = Lease(self.wall, length, self.mono + length, worker, exported, dead=True)
        self.totals["claimed"] += len(good)
        return good

    # -- back ----------------------------------------------------------------------------

    def check(self, task, lease):
        if task.lease is not lease or lease is None:
            raise RefusedError("LeaseLostError")

    def heartbeat(self, task, lease, length):
        self.check(task, lease)
        lease.is_restarted = False
        lease.deadline = self.mono + (lease.length if length is None else length)
        return self.wall + lease.deadline - self.mono

    def complete(self, task, lease, value=None, keep=True, then=()):
        if task.lease is not lease:
            result = self.result(task.spec.n)
            if result is None or result.status != "completed" or result.by is not lease:
                raise RefusedError("LeaseLostError")
            return
        self.end(task, "completed", "", value, keep)
        self.totals["completed"] += 1
        for s in then:
            self.enqueue(s, checked=False)

    def back(self, task, *, delay=0, reason="", counted=True):
        if task.is_borrowed:
            self.lay_back(task)
            return
        if self.is_over(task):
            return
        task.lease, task.reason = None, reason
        task.attempts -= not counted
        if counted or delay:
            self.tail(task, delay)
        else:
            self.ready(task)

    def nack(self, task, lease, delay, reason):
        self.check_delay(lease, delay)
        self.check(task, lease)
        self.totals["nacked"] += 1
        if task.attempts >= task.spec.policy.attempts:
            if not self.is_over(task):
                self.die(task, reason or "nacked")
            return
        self.back(task, delay=task.spec.policy.backoff if delay is None else delay, reason=reason)

    def check_delay(self, lease, delay):
        if lease.dead and delay:
            raise RefusedError("UsageError")

    def redrive_lease(self, task, lease):
        if not lease.dead:
            raise RefusedError("UsageError")
        self.check(task, lease)
        if self.redrive([task])[1]:
            raise RefusedError("DuplicateTaskError")

    def release(self, task, lease, delay):
        self.check_delay(lease, delay)
        self.check(task, lease)
        self.back(task, delay=delay or 0, counted=False)

    def bury(self, task, lease, reason):
        self.check(task, lease)
        self.die(task, reason or "buried")

    def cancel_lease(self, task, lease):
        self.check(task, lease)
        self.end(task, "cancelled", "cancelled")

    def reap(self, tasks, reason):
        """Back to the tail, in any order, or dead with the last attempt."""
        self.back_at_once(tasks, lambda t: reason, {})

    def back_at_once(self, tasks, reason, rank):
        start = len(self.tails)
        for t in tasks:
            if t.attempts < t.spec.policy.attempts:
                self.back(t, reason=reason(t))
            elif not self.is_over(t):
                self.die(t, reason(t))
        self.tie(start, rank)

    # -- operators -----------------------------------------------------------------------

    def may_cancel(self, n):
        """A dead letter only where somebody has it."""
        return n in self.tasks and self.tasks[n].state != "dead"

    def cancel(self, n):
        if not self.may_cancel(n):
            return False
        self.end(self.tasks[n], "cancelled", "cancelled")
        return True

    def redrive(self, tasks):
        """How many; those whose key has another holder stay, and are named."""
        held, start, rank = [], len(self.tails), {t.spec.n: t.died for t in tasks}
        for t in tasks:
            if t.spec.key is not None and self.holder(t.spec.key) not in (None, t.spec.n):
                held.append(t.spec.n)
                continue
            if t.spec.key is not None:
                window = t.spec.window
                until = 0 if window is None else t.created // 1000 + window
                self.keys[t.spec.key] = (t.spec.n, until)
            self.results.pop(t.spec.n, None)
            t.attempts, t.expires, t.forget, t.reason, t.lease = 0, 0, 0, "", None
            self.tail(t)
        self.tie(start, rank)
        return len(tasks) - len(held), held

    def purge(self, queue, tenant, *states):
        tasks = self.of(queue, tenant, *states)
        for t in tasks:
            self.end(t, None if t.state == "dead" else "cancelled", "purged")
        return len(tasks)

    def reprioritise(self, tasks, priority):
        """The same place among those of that priority; what is leased or dead stays as it is."""
        tasks = [t for t in tasks if t.state in PENDING and t.spec.priority != priority]
        for t in tasks:
            t.spec = t.spec._replace(priority=priority)
        return len(tasks)

    def delete(self, numbers):
        """What is over goes without a trace but its window, in which its key is still held."""
        gone = 0
        for n in numbers:
            task = self.tasks.get(n)
            if task is not None and task.state != "dead":
                continue
            if task is not None:
                self.end(task, None)
            if self.results.pop(n, None) is not None or task is not None:
                gone += 1
        return gone

    # -- time ----------------------------------------------------------------------------

    def do_due(self):
        """What an engine does in one moment: leases, then delayed tasks, then what is over."""
        expired = [t for t in self.tasks.values() if t.lease and t.lease.deadline <= self.mono]
        self.totals["reaped"] += len(expired)
        self.reap(expired, "lease expired")
        due = [t for t in self.tasks.values() if t.state == "delayed" and t.due <= self.ms]
        start, rank = len(self.tails), {t.spec.n: (t.due, t.seq) for t in due}
        for t in sorted(due, key=lambda t: rank[t.spec.n]):
            self.tail(t)
        self.tie(start, rank)
        for t in sorted(self.tasks.values(), key=lambda t: second(t.forget or t.expires)):
            if self.tasks.get(t.spec.n) is not t:
                continue  # an end before it has ended it as well
            if t.state == "dead" and second(t.forget) <= self.ms:
                self.end(t, None)
            elif t.state in PENDING and t.expires and second(t.expires) <= self.ms:
                self.is_over(t)
        for n, r in list(self.results.items()):
            if self.kept_until(r) <= self.ms and self.is_pinned(n):
                self.keep_longer(r)
            if self.kept_until(r) <= self.ms and r.value is not None and r.retention < r.history:
                r.value, r.retention = None, 0  # its value goes first
            if self.kept_until(r) <= self.ms:
                del self.results[n]
        for key, (n, until) in list(self.keys.items()):
            if until and second(until) <= self.ms and not self.is_alive(n):
                del self.keys[key]

    def next_mono(self):
        """When something is due next."""
        walls = [t.due for t in self.tasks.values() if t.state == "delayed"]
        walls += [second(t.expires) for t in self.tasks.values() if t.expires]
        walls += [second(t.forget) for t in self.tasks.values() if t.state == "dead"]
        walls += [self.kept_until(r) for r in self.results.values()]
        walls += [second(until) for _, until in self.keys.values() if until]
        monos = [self.mono + ms * 1000 - self.wall for ms in walls]
        monos += [t.lease.deadline for t in self.tasks.values() if t.lease]
        return min((at for at in monos if at > self.mono), default=1 << 62)

    def move(self, mono):
        self.step(mono - self.mono)
        self.mono = mono

    def step(self, us):
        self.latest = max(self.latest, self.wall, self.wall + us)
        self.wall += us

    def advance(self, us):
        until = self.mono + us
        self.do_due()
        while (at := self.next_mono()) <= until:
            self.move(at)
            self.do_due()
        self.move(until)

    def reopen(self, *, is_closed=False):
        """Leases of this process go back with their attempts, in the order of their seq.

        Exported ones go on until their end; in full, once, if nobody has closed the store.
        """
        for queue, (n, period, _) in self.limits.items():
            if n is not None and not is_closed:  # full, but for what leases say of their starts
                leases = [t.lease for t in self.of(queue, None, "leased") if not t.is_borrowed]
                known = [self.mono - max(0, self.wall - lease.leased) for lease in leases]
                known = [at for at in known if at > self.mono - period]
                self.starts[queue] = [*known, *[self.mono] * (n - len(known))]
        self.totals, self.passed = Counter(), {tenant_queue: set() for tenant_queue in self.passed}
        self.counts = Counter()
        back = {}
        for t in self.tasks.values():
            if t.lease is not None and not t.lease.exported:
                back[t.spec.n] = "process died"
            elif t.lease is not None and not self.goes_on(t, is_closed=is_closed):
                back[t.spec.n] = "lease expired"
        tasks = [self.tasks[n] for n in back]
        self.back_at_once(tasks, lambda t: back[t.spec.n], {t.spec.n: t.seq for t in tasks})

    def goes_on(self, task, *, is_closed):
        """Whether an exported lease outlives the process, and until when."""
        lease = task.lease = replace(task.lease)
        if is_closed:
            lease.ends = self.wall + lease.deadline - self.mono
        elif not lease.is_restarted:
            lease.is_restarted, lease.ends = True, self.wall + lease.length
        left = min(lease.ends - self.wall, lease.length)
        lease.deadline = self.mono + left
        return left > 0
