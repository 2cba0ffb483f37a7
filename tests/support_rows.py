"""Rows of a shard, put together by hand: what the engine would write, and what damage leaves.

``Life`` keeps one consistent shard in step with a store: each method is one commit, with its ring
row, its counters and its expiry row, exactly as the commit loop would write it. A commit can be
built and *not* written (``lost=True``): that is a hole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.lease import DEAD_LEASE, MOVED_FLAG, LeaseRecord, encode_lease
from lodeq.engine.records.policy import Policy, encode_policy
from lodeq.engine.records.result import ResultRecord, Status, encode_result
from lodeq.engine.records.rows import Ghost, IndexRow, Moved
from lodeq.engine.records.task import NO_GHOST, TaskRecord, encode_task
from lodeq.engine.recovery.row_checks.first_keys import first_key
from lodeq.engine.recovery.verify import bucket_of
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.engine.store.port import Op, Rows, Store, StoreView

NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1000
HOUR_MS = 3_600_000
POLICY = encode_policy(Policy(3, 0, 1.0, 1000, 60_000, HOUR_MS, 24 * HOUR_MS))
TOKEN = bytes(range(16))

__all__ = ["HOUR_MS", "NOW_MS", "NOW_US", "POLICY", "FixedClock", "Life", "Task", "busy", "dump"]


class FixedClock:
    """A clock that stands at ``NOW_US`` and takes no timers: opening a store sets none."""

    def wall_us(self):
        return NOW_US

    def mono(self):
        return 0.0

    def call_at(self, timers, when_mono, fn):
        raise AssertionError("opening a store sets no timer")


def dump(view: StoreView) -> Rows:
    """Every row."""
    return view.scan(b"", b"\xff", 1 << 30)


@dataclass
class Task:
    """A task of a ``Life``, and where it is."""

    id: bytes
    record: TaskRecord
    key: bytes = b""  # current index key; of a leased task the one it was claimed from
    attempts: int = 0
    is_leased: bool = False
    is_dead: bool = False

    @property
    def first(self) -> bytes:
        return first_key(self.id, self.record)

    @property
    def is_moved(self) -> bool:
        return self.key != self.first

    @property
    def size(self) -> int:
        return len(encode_task(self.record))


@dataclass
class Life:
    """One shard's history. ``n`` numbers its commits within ``incarnation``."""

    store: Store
    incarnation: int = 1
    n: int = 0
    us: int = NOW_US
    shard: int = 0
    shards: int = 1
    counts: dict[tuple[bytes, bytes], list[int]] = field(default_factory=dict)
    ids: IdSource = field(default_factory=lambda: IdSource(SeededRng(7)))

    def tick(self) -> int:
        self.us += 1000
        return self.us

    def commit(self, ops: Iterable[Op], *, lost: bool = False) -> int:
        """Write ``ops`` with all that rides along; returns the commit number."""
        self.n += 1
        number = self.incarnation << 40 | self.n
        batch = list(ops)
        for key in sorted(self.counts):
            counts = self.counts[key]
            row = small.encode_counters(*counts) if any(counts) else None
            batch.append((ks.counters_key(*key), row))
        batch.append((ks.ring_key(number), small.encode_ring(number, self.us)))
        if not lost:
            self.store.write(batch)
        return self.n

    def count(self, task: Task, **deltas: int) -> None:
        counts = self.counts.setdefault((task.record.queue, task.record.tenant), [0] * 6)
        for name, delta in deltas.items():
            counts[("ready", "delayed", "leased", "dead", "results").index(name)] += delta

    def expiry(self, kind: bytes, key: bytes, due_ms: int) -> Op:
        number = self.incarnation << 40 | self.n + 1
        return ks.expiry_key(bucket_of(due_ms), number), small.encode_expiry([kind + key])

    def enqueue(
        self,
        queue: bytes = b"mail",
        tenant: bytes = b"",
        *,
        priority: int = 5,
        due_ms: int = 0,
        ghost: bytes = NO_GHOST,
        ghost_expires_ms: int = 0,
        expires_ms: int = 0,
        lost: bool = False,
    ) -> Task:
        seq = self.tick()
        slot = self.shard * 4096 // self.shards
        task_id = self.ids.new(seq // 1000, slot)
        record = TaskRecord(
            0,
            priority,
            ord("d" if due_ms else "r"),
            seq,
            seq,
            due_ms,
            expires_ms,
            POLICY,
            ghost,
            ghost_expires_ms,
            4,
            queue,
            tenant,
            b"",
            b"body",
        )
        task = Task(task_id, record)
        task.key = task.first
        ops: list[Op] = [(ks.TASK + task_id, encode_task(record)), (task.key, self.row(task))]
        if ghost != NO_GHOST:
            ops.append((ks.GHOST + ghost, small.encode_ghost(Ghost(task_id, ghost_expires_ms))))
            if ghost_expires_ms:
                ops.append(self.expiry(b"g", ghost, ghost_expires_ms))
        if expires_ms:
            ops.append(self.expiry(b"t", task_id, expires_ms))
        if due_ms:
            self.count(task, delayed=1)
        else:
            self.count(task, ready=1)
        self.commit(ops, lost=lost)
        return task

    def row(self, task: Task, expires_ms: int | None = None) -> bytes:
        ttl = task.record.expires_ms if expires_ms is None else expires_ms
        flags = small.MOVED_ROW if task.is_moved else 0
        row = IndexRow(flags, task.record.priority, task.attempts, task.size, ttl, b"")
        return small.encode_index_row(row)

    def lease(self, task: Task) -> LeaseRecord:
        r = task.record
        seq = ks.decode_index_key(task.key).seq
        return LeaseRecord(
            MOVED_FLAG if task.is_moved else 0,
            task.attempts,
            r.priority,
            self.incarnation << 40 | self.n,
            TOKEN,
            self.us,
            30_000,
            task.size,
            r.created_us,
            seq,
            r.expires_ms,
            POLICY,
            r.ghost,
            r.ghost_expires_ms,
            r.queue,
            r.tenant,
            b"worker",
        )

    def promote(self, task: Task, *, lost: bool = False) -> None:
        seq, old = self.tick(), task.key
        task.key = ks.ready_key(self._prefix(task), task.record.priority, seq, task.id)
        self.count(task, delayed=-1, ready=1)
        ops = [(old, None), (task.key, self.row(task)), self.moved(task)]
        self.commit(ops, lost=lost)

    def claim(self, task: Task, *, lost: bool = False) -> None:
        if ks.decode_index_key(task.key).kind == ks.DELAYED:
            self.promote(task)
        self.tick()
        task.attempts += 1
        task.is_leased = True
        self.count(task, ready=-1, leased=1)
        lease = encode_lease(self.lease(task))
        self.commit([(task.key, None), (ks.LEASE + task.id, lease)], lost=lost)

    def moved(self, task: Task) -> Op:
        if not task.is_moved:
            return ks.MOVED + task.id, None
        return ks.MOVED + task.id, small.encode_moved(Moved(task.attempts, task.key))

    def _prefix(self, task: Task) -> bytes:
        return ks.shard_queue_prefix(task.record.queue, task.record.tenant)

    def nack(self, task: Task, *, delay_ms: int = 0, lost: bool = False) -> None:
        seq = self.tick()
        task.is_leased = False
        if delay_ms:
            due_ms = seq // 1000 + delay_ms
            task.key = ks.delayed_key(self._prefix(task), due_ms, seq, task.id)
            self.count(task, leased=-1, delayed=1)
        else:
            task.key = ks.ready_key(self._prefix(task), task.record.priority, seq, task.id)
            self.count(task, leased=-1, ready=1)
        ops = [(ks.LEASE + task.id, None), (task.key, self.row(task)), self.moved(task)]
        self.commit(ops, lost=lost)

    def result(self, task: Task, status: Status, retention_ms: int) -> bytes:
        r = task.record
        return encode_result(
            ResultRecord(
                0,
                status,
                r.priority,
                task.attempts,
                0,
                0,
                r.created_us,
                r.seq,
                self.us,
                self.us,
                retention_ms,
                0,
                r.queue,
                r.tenant,
                b"worker",
                b"",
                b"",
            )
        )

    def bury(self, task: Task, *, forget_ms: int = 24 * HOUR_MS, lost: bool = False) -> None:
        died_ms = self.tick() // 1000
        task.is_leased, task.is_dead = False, True
        task.key = ks.dead_key(self._prefix(task), died_ms, task.id)
        self.count(task, leased=-1, dead=1, results=1)
        expires_ms = died_ms + forget_ms
        self.commit(
            [
                (ks.LEASE + task.id, None),
                (task.key, self.row(task, expires_ms)),
                self.moved(task),
                (ks.RESULT + task.id, self.result(task, Status.DEAD, 0)),
                self.expiry(b"x", task.id, expires_ms),
            ],
            lost=lost,
        )

    def claim_dead(self, task: Task, *, lost: bool = False) -> None:
        """A lease of a dead letter: it has the row in it that the task goes back as."""
        self.tick()
        task.is_leased = True
        self.count(task, dead=-1, leased=1)
        died_ms = ks.decode_index_key(task.key).at
        lease = self.lease(task)._replace(
            flags=MOVED_FLAG | DEAD_LEASE,
            seq=died_ms * 1000,
            expires_ms=0,
            ghost=NO_GHOST,
            ghost_expires_ms=0,
            dead_row=self.row(task, died_ms + 24 * HOUR_MS),
        )
        self.commit([(task.key, None), (ks.LEASE + task.id, encode_lease(lease))], lost=lost)

    def complete(self, task: Task, *, retention_ms: int = HOUR_MS, lost: bool = False) -> None:
        self.tick()
        self.count(task, leased=-1, results=1)
        ops: list[Op] = [
            (ks.LEASE + task.id, None),
            (ks.TASK + task.id, None),
            (ks.MOVED + task.id, None),
            (ks.RESULT + task.id, self.result(task, Status.COMPLETED, retention_ms)),
        ]
        if retention_ms:
            ops.append(self.expiry(b"r", task.id, self.us // 1000 + retention_ms))
        if task.record.ghost != NO_GHOST and not task.record.ghost_expires_ms:
            ops.append((ks.GHOST + task.record.ghost, None))
        self.commit(ops, lost=lost)


def busy(life: Life) -> list[Task]:
    """A bit of everything: ready, delayed, moved, leased, dead, completed; two queues; ghosts."""
    tasks = [life.enqueue(priority=n % 10) for n in range(4)]
    tasks += [life.enqueue(b"audit", b"acme", due_ms=NOW_MS + HOUR_MS)]
    tasks += [life.enqueue(ghost=ks.ghost_hash(bytes(32), b"mail\0\0a"))]
    tasks += [
        life.enqueue(
            ghost=ks.ghost_hash(bytes(32), b"mail\0\0b"), ghost_expires_ms=NOW_MS + HOUR_MS
        )
    ]
    tasks += [life.enqueue(expires_ms=NOW_MS + 2 * HOUR_MS)]
    for task in (tasks[0], tasks[1], tasks[2], tasks[5], tasks[6]):
        life.claim(task)
    life.nack(tasks[0])
    life.claim(tasks[0])
    life.nack(tasks[1], delay_ms=5000)
    life.bury(tasks[2])
    life.complete(tasks[6])
    tasks.append(life.enqueue())
    life.claim(tasks[-1])
    life.bury(tasks[-1])
    life.claim_dead(tasks[-1])
    return tasks
