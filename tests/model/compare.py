"""What of an engine can be seen, against what the reference says it must be."""

from datetime import UTC, datetime

import lodeq

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATES = ("ready", "delayed", "waiting", "leased", "dead")
ENDS = ("completed", "expired", "cancelled")
SLACK_US = 1000  # a place in line tells the time to a millisecond: others draw numbers too
TOTALS = ("enqueued", "claimed", "completed", "nacked", "reaped", "dead", "expired", "duplicates")


def us(when):
    return (when - EPOCH) // datetime.resolution if when is not None else None


def payload(n):
    return n if n % 2 else b"%d" % n


def shown(t):
    """A ``lodeq.Task`` as a tuple."""
    return (
        t.id,
        t.state,
        t.queue,
        t.tenant,
        t.priority,
        t.attempts,
        us(t.enqueued_at),
        t.payload,
        dict(t.headers),
        us(t.due_at),
        us(t.expires_at),
        us(t.finished_at),
        t.max_attempts,
        t.worker,
        t.reason,
    )


class Compare:
    def __init__(self, model):
        self.model = model
        self.engine, self.ref, self.ids = model.engine, model.ref, model.ids
        self.queues, self.shards, self.touched = model.queues, model.shards, model.touched

    async def all(self, touched):
        """Everything observable; results of what the step touched."""
        await self.lists()
        await self.stats()
        await self.history()
        for n in sorted(touched):
            await self.one(n)

    def text(self, error):
        return error if isinstance(error, str) else f"{error[0]} {self.ids[error[1]]}"

    def task(self, t):
        """What the engine should show of a task."""
        s, lease = t.spec, t.lease
        until = t.forget if t.state == "dead" else 0 if t.is_borrowed else t.expires
        return (
            self.ids[s.n],
            t.state,
            s.queue,
            s.tenant,
            s.priority,
            t.attempts,
            t.created,
            payload(self.ref.says.get(s.n, s.n)),
            s.headers or {},
            t.due * 1000 if t.state == "delayed" else None,
            until * 1000 if until else None,
            t.died * 1000 if t.state == "dead" else None,
            s.policy.attempts,
            lease.worker if lease else "",
            "" if lease else t.reason,
        )

    def ended(self, n, r):
        """What it should show of one that is over."""
        s = r.spec
        return (
            self.ids[n],
            r.status,
            s.queue,
            s.tenant,
            s.priority,
            r.attempts,
            r.created,
            None,
            {},
            None,
            None,
            r.finished,
            None,
            r.by.worker if r.by else "",
            self.text(r.error),
        )

    async def settle(self, tasks):
        """Take over the places in line of what went to the tail in this step."""
        seqs = {t.id: int.from_bytes(t.position[-24:-16], "big") for t in tasks}
        last = 0
        for tie in self.ref.tails:
            last = await self.settle_tie(tie, seqs, last)
        self.ref.seq = max(self.ref.seq, last)
        self.ref.tails.clear()

    async def settle_tie(self, tie, seqs, last):
        """Every one is behind ``last`` and of its own moment; the latest."""
        found, by_tenant_queue = [], {}
        for t, rank, least in tie:
            n, result = t.spec.n, self.ref.results.get(t.spec.n)
            seq = seqs.get(self.ids[n])
            if seq is None and result is not None:  # it has ended in the same step
                seq = result.ready = us((await self.row(n)).ready_at)
            if seq is None:
                continue
            low, high = max(least - len(tie), last), max(least, last, self.ref.latest) + SLACK_US
            assert low < seq < high, (n, low, seq, high, least, last, tie)
            found.append(seq)
            t.seq = seq
            by_tenant_queue.setdefault((t.spec.queue, t.spec.tenant), []).append((seq, rank))
        assert len(set(found)) == len(found)
        for places in by_tenant_queue.values() if self.shards == 1 else ():
            ranks = [rank for _, rank in sorted(places)]
            assert ranks == sorted(ranks), places
        return max(found, default=last)

    async def row(self, n):
        """What the history has of a task."""
        return {one.task_id: one for one in await self.engine.history(limit=1000)}[self.ids[n]]

    async def history(self):
        """Every row, with its value as long as that is kept."""
        ref, found, cursor = self.ref, {}, ""
        while cursor is not None:
            page = await self.engine.history(limit=7, cursor=cursor or None)
            found |= {one.task_id: (one.status, one.value) for one in page}
            cursor = page.cursor
        assert found == {self.ids[n]: (r.status, r.value) for n, r in ref.results.items()}

    async def lists(self):
        """Tasks by state, in their order."""
        found = {
            (name, state): await self.queues[name, None].list(state, limit=10_000)
            for name in ("a", "b")
            for state in (*STATES, *ENDS)
        }
        await self.settle(
            [t for (_, state), ts in found.items() if state in STATES[:3] for t in ts]
        )
        self.look(found)
        orders = {
            "ready": lambda t: (t.spec.tenant, t.order),
            "delayed": lambda t: (t.spec.tenant, t.due, t.seq),
            "waiting": self.order_of_waiting,
            "leased": lambda t: (t.lease.leased, self.ids[t.spec.n]),
            "dead": lambda t: (t.spec.tenant, t.died, self.ids[t.spec.n]),
        }
        for name in ("a", "b"):
            for state, order in orders.items():
                expected = sorted(self.ref.of(name, None, state), key=order)
                assert [shown(t) for t in found[name, state]] == [self.task(t) for t in expected]
            for status in ENDS:
                over = {
                    self.ids[n]: self.ended(n, r)
                    for n, r in self.ref.results.items()
                    if r.spec.queue == name and r.status == status
                }
                listed = [shown(t) for t in found[name, status]]
                assert len(listed) == len(over)
                assert {t[0]: t for t in listed} == over

    def look(self, found):
        """Before they are compared: for what is nobody's promise."""

    def order_of_waiting(self, t):
        return (t.spec.tenant, t.seq)

    async def stats(self):
        ref, total = self.ref, await self.engine.stats()
        assert {name: getattr(total, f"{name}_total") for name in TOTALS} == {
            name: ref.totals[name] for name in TOTALS
        }
        assert not total.anomalies
        assert not total.recoveries
        states = [t.state for t in ref.tasks.values()]
        assert [getattr(total, state) for state in STATES] == [states.count(s) for s in STATES]
        assert total.results == len(ref.results)
        for (queue, tenant), ours in self.queues.items():
            found = await ours.stats()
            mine = {state: ref.of(queue, tenant, state) for state in STATES}
            assert {s: getattr(found, s) for s in STATES} == {s: len(mine[s]) for s in STATES}
            assert found.results == sum(
                r.spec.queue == queue and tenant in (None, r.spec.tenant)
                for r in ref.results.values()
            )
            oldest = min((t.seq for t in mine["ready"]), default=None)
            age = None if oldest is None else max(0.0, (ref.wall - oldest) / 1e6)
            assert found.oldest_ready_age == age, (queue, tenant, found, age)
            if tenant is not None:
                is_paused = (queue, tenant) in ref.paused or (queue, None) in ref.paused
                assert found.is_paused == is_paused

    async def one(self, n):
        """``get`` and ``result`` by id."""
        task_id, ref = self.ids[n], self.ref
        found, r = await self.engine.get(task_id), ref.results.get(n)
        if n in ref.tasks:
            assert shown(found) == self.task(ref.tasks[n])
        else:
            assert (None if found is None else shown(found)) == (
                None if r is None else self.ended(n, r)
            )
        r = ref.result(n)
        try:
            result = await self.engine.result(task_id)
        except lodeq.TaskNotFoundError:
            assert r is None
            assert not ref.is_alive(n)
            return
        if r is None:
            assert result is None
            assert ref.is_alive(n)
            return
        by, s = r.by, r.spec
        assert (
            result.task_id,
            result.status,
            result.value,
            result.error,
            result.attempts,
            result.queue,
            result.tenant,
            result.worker,
            result.priority,
            us(result.enqueued_at),
            us(result.ready_at),
            us(result.leased_at),
            us(result.finished_at),
        ) == (
            task_id,
            r.status,
            r.value,
            self.text(r.error),
            r.attempts,
            s.queue,
            s.tenant,
            by.worker if by else "",
            s.priority,
            r.created,
            r.ready,
            by.leased if by else None,
            r.finished,
        )


async def compare(model):
    """Everything observable; results of what the step touched."""
    await model.comparison(model).all(model.touched)
