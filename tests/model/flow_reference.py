"""Workflows in the reference: joins, the tasks that wait for them, and what lets these go.

A member's end is counted at once in every join that has it as a part; the engine does so in the
same batch, or, on another slot, by way of the outbox: the machine compares when that is empty.
``slot`` says which tasks lie on one slot: that is drawn, and seen from their ids.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model.facts import RefusedError, second
from model.reference import Reference

PINNED_MS = 3_600_000


@dataclass(eq=False)
class PartOf:
    """One task that a join waits for. ``has_edge``: its end is heard of, and its result kept."""

    n: int
    status: str | None = None
    has_edge: bool = True


@dataclass(eq=False)
class Join:
    """What lets ``target`` go. ``whole``: its workflow; of a workflow itself."""

    target: int | None
    on_failure: str
    parts: list = field(default_factory=list)
    is_sealed: bool = False
    is_cancelled: bool = False
    is_redriving: bool = False
    state: str = "waits"
    generation: int = 0
    whole: Any = None

    @property
    def is_complete(self):
        return self.is_sealed and not self.is_redriving and all(p.status for p in self.parts)

    @property
    def failed(self):
        return sum(p.status not in (None, "completed") for p in self.parts)

    @property
    def shown(self):
        """The state that users see."""
        if self.is_cancelled:
            return "cancelled"
        if self.state != "waits":
            return {"fired": "joined", "over": "over"}[self.state]
        if not self.is_sealed:
            return "open"
        return "waiting" if self.is_complete else "running"


@dataclass
class FlowReference(Reference):
    """The whole queue, with workflows."""

    joins: list = field(default_factory=list)
    slot: Callable = field(default=lambda n: n, compare=False)
    ends: list = field(default_factory=list)
    ends_elsewhere: list = field(default_factory=list)  # of one moment
    is_counting: bool = False
    is_sweeping: bool = False
    has_released: bool = False

    # -- ends --------------------------------------------------------------------------------

    def of(self, queue, tenant, *states):
        if "ready" in states and "delayed" in states:
            states = (*states, "waiting")
        return super().of(queue, tenant, *states)

    def end(self, task, status, error="", value=None, keep=True):
        super().end(task, status, error, value, keep)
        self.ended(task.spec.n, status)

    def die(self, task, reason):
        is_first = not task.is_borrowed
        super().die(task, reason)
        if is_first:
            self.ended(task.spec.n, "dead")

    def take_death_back(self, task):
        super().take_death_back(task)
        self.take_ends_back(task.spec.n)

    def ended(self, n, status):
        """Count it in all joins; what that leads to is counted in turn."""
        self.ends.append((n, status))
        if self.is_counting:
            return
        self.count_ends()

    def count_ends(self):
        self.is_counting = True
        while self.ends:
            n, status = self.ends.pop(0)
            for join in self.joins:
                if join.target == n and status != "dead":
                    join.state = "over"
                if self.is_sweeping and self.is_elsewhere(join, n):
                    self.ends_elsewhere.append((join, n, status))
                else:
                    self.count(join, n, status)
        self.is_counting = False

    def count(self, join, n, status):
        for part in join.parts:
            if part.n == n and part.status is None and status is not None:
                part.status = status
                self.settle(join)

    def is_elsewhere(self, join, n):
        """Whether the end of a task has to be sent to the join."""
        is_alone = join.whole is None and not self.is_flow(join)
        return is_alone and self.slot(join.target) != self.slot(n)

    def settle(self, join):
        """Fire it, if nothing it waits for is left."""
        if join.state != "waits" or not join.is_complete:
            return
        is_cancelled = join.is_cancelled or (join.whole is not None and join.whole.is_cancelled)
        if join.failed and join.on_failure == "wait" and not is_cancelled:
            return
        join.state = "over" if join.target is None else "fired"
        task = self.tasks.get(join.target)
        if task is None or task.state != "waiting":
            return
        if is_cancelled:
            self.end(task, "cancelled", "its workflow was cancelled")
        elif join.failed and join.on_failure == "cancel":
            failed, parts = join.failed, len(join.parts)
            text = f"{failed} of the {parts} tasks it waited for did not complete"
            self.end(task, "cancelled", text)
        else:
            self.let_run(task)

    def let_run(self, task):
        """It goes to the tail of the ready ones, as one of those that were let go at once."""
        self.has_released = True
        self.tails = [kept for tie in self.tails if (kept := [x for x in tie if x[0] is not task])]
        self.tail(task)

    def hold(self, task):
        task.state, task.due = "waiting", 0

    def purge(self, queue, tenant, *states):
        """At once: what waits for one that is purged is not let run before it is purged itself."""
        self.is_counting = True
        gone = super().purge(queue, tenant, *states)
        self.count_ends()
        return gone

    def delete(self, numbers):
        return super().delete([n for n in numbers if not self.is_pinned(n)])

    def is_pinned(self, n):
        return any(
            join.state != "over" and part.n == n and part.has_edge
            for join in self.joins
            for part in join.parts
        )

    def keep_longer(self, r):
        age = max(0, self.ms - r.finished // 1000)
        kept = age + max(PINNED_MS, age // 2)
        if (r.value is not None and r.retention) or not r.history:
            r.retention = kept
        else:
            r.history = -(-kept // 1000) * 1000

    # -- building ----------------------------------------------------------------------------

    def open_flow(self, callback, on_failure):
        if callback is not None:
            self.check_pending(callback.queue, callback.tenant)
        join = Join(None if callback is None else callback.n, on_failure)
        self.joins.append(join)
        if callback is not None:
            self.enqueue(callback, checked=False)
            self.hold(self.tasks[callback.n])
        return join

    def add(self, flow, specs, after=(), *, chain=False):
        """Members, each waiting for ``after``, or for the one before it."""
        if flow.is_cancelled or flow.is_sealed or flow.state != "waits":
            raise RefusedError("UsageError")
        sources = list(dict.fromkeys(after))
        for s in specs:
            self.check_pending(s.queue, s.tenant, len(specs))
        last = None
        for s in specs:
            wanted = [last] if chain and last is not None else sources
            flow.parts.append(PartOf(s.n))
            self.enqueue(s, checked=False)
            if wanted:
                self.hold(self.tasks[s.n])
                own = Join(s.n, flow.on_failure, is_sealed=True, whole=flow)
                own.parts = [PartOf(n, self.status_in(flow, n)) for n in wanted]
                own.generation = flow.generation
                self.joins.append(own)
                self.settle(own)
            last = s.n

    def status_in(self, flow, n):
        """The first end of a member."""
        (part,) = [p for p in flow.parts if p.n == n]
        return part.status

    def seal(self, flow):
        was_open, flow.is_sealed = not flow.is_sealed, True
        if was_open:
            self.settle(flow)
        return was_open

    def enqueue_after(self, s, after, on_failure):
        self.check_pending(s.queue, s.tenant)
        parts = []
        for n in dict.fromkeys(after):
            task = self.tasks.get(n)
            status = None
            if task is None or task.state == "dead" or task.is_borrowed:
                if task is None and n not in self.results:
                    raise RefusedError("UnknownDependencyError")
                status = "dead" if task is not None else self.results[n].status
            is_kept = status == "dead" and task is not None and on_failure == "wait"
            parts.append(PartOf(n, status, status is None or is_kept))
        self.enqueue(s, checked=False)
        self.hold(self.tasks[s.n])
        join = Join(s.n, on_failure, parts, is_sealed=True)
        self.joins.append(join)
        self.settle(join)

    # -- the whole ---------------------------------------------------------------------------

    def cancel_flow(self, flow):
        flow.is_cancelled = flow.is_sealed = True
        under_way = [p.n for p in flow.parts if p.status is None]
        for n in under_way:
            self.cancel_one(n)
        self.settle(flow)
        if flow.target is not None:
            self.cancel_one(flow.target)
        return len(under_way)

    def cancel_one(self, n):
        if self.may_cancel(n):
            self.end(self.tasks[n], "cancelled", "its workflow was cancelled")

    def redrive_flow(self, flow, new):
        """How many; ``new``: the number of a callback that has to be made again."""
        if not flow.is_sealed:
            raise RefusedError("UsageError")
        target = self.tasks.get(flow.target)
        self.check_callback(flow, target)
        is_dead = target is not None and target.state == "dead"
        if not is_dead and all(p.status != "dead" for p in flow.parts):
            return 0
        flow.is_redriving, flow.is_cancelled = True, False
        flow.state, flow.generation = "waits", flow.generation + 1
        if is_dead:
            self.redrive([target])
            self.hold(target)
        elif target is None and flow.target is not None:
            old = self.made[flow.target]
            self.says[new] = self.says.get(old.n, old.n)
            flow.target = new
            spec = self.made[new] = old._replace(n=new, ttl=None)
            self.enqueue(spec, checked=False)
            self.hold(self.tasks[new])
        count = sum(self.redrive_part(flow, p) for p in flow.parts if p.status == "dead")
        flow.is_redriving = False
        self.settle(flow)
        return count

    def check_callback(self, flow, target):
        if flow.target is None or flow.state == "waits":
            return
        if target is not None and target.state != "dead":
            raise RefusedError("UsageError")

    def redrive(self, tasks):
        """Joins that wait for a redrive take the end back; those that have fired do not."""
        count, held = super().redrive(tasks)
        for t in tasks:
            if t.spec.n not in held:
                self.take_ends_back(t.spec.n)
        return count, held

    def take_ends_back(self, n):
        for join in self.joins:
            for part in join.parts:
                if part.n == n and self.awaits(join, part):
                    part.status = None

    def awaits(self, join, part):
        is_cancelled = join.is_cancelled or (join.whole is not None and join.whole.is_cancelled)
        waits = join.state == "waits" and join.on_failure == "wait" and not is_cancelled
        return waits and part.has_edge and part.status is not None

    def is_kept(self, t):
        """Whether a dead letter stays beyond its time."""
        return any(
            part.n == t.spec.n and self.awaits(join, part)
            for join in self.joins
            for part in join.parts
        )

    def do_due(self):
        for t in self.tasks.values():
            if t.state == "dead" and second(t.forget) <= self.ms and self.is_kept(t):
                t.forget = self.ms + PINNED_MS
        self.is_sweeping = True
        super().do_due()
        self.is_sweeping = False
        while self.ends_elsewhere:  # sent once all that is due here has been done
            self.count(*self.ends_elsewhere.pop(0))

    def redrive_awaited(self, join):
        if join.whole is not None or join.state != "waits":
            raise RefusedError("UsageError")
        count = 0
        for part in list(join.parts):
            task = self.tasks.get(part.n)
            if part.status == "dead" and task is not None and task.state == "dead":
                count += self.redrive([task])[0]
        return count

    def take_now(self, part):
        """A dead part whose task was redriven by hand counts by what has become of it."""
        n, status = part.n, None
        if not self.is_alive(n):
            result = self.results.get(n)
            if result is None or result.status == "dead":
                return
            status = result.status
        self.count_again(part.n, status)

    def count_again(self, n, status):
        for join in self.joins:
            if self.is_elsewhere(join, n):
                continue
            for one in join.parts:
                if one.n != n or not one.has_edge:
                    continue
                if join.state == "over" and not self.is_flow(join):
                    continue
                if one.status is not None:
                    one.status, join.state = None, "waits"
                if status is not None:
                    one.status = status
                    self.settle(join)

    def redrive_part(self, flow, part):
        task = self.tasks.get(part.n)
        if task is None or task.state != "dead":
            self.take_now(part)
            return False
        own = next((j for j in self.joins if j.target == part.n), None)
        self.redrive([task])
        if own is not None and own.state == "waits":
            self.hold(task)
        self.count_again(part.n, None)
        return True

    def is_flow(self, join):
        """A workflow, and not a task that waits."""
        return join in self.flows

    made: dict = field(default_factory=dict)  # number of a callback -> what it was enqueued as
    flows: list = field(default_factory=list)
