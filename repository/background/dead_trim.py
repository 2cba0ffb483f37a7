"""Bounds of dead letters: ``dead_max`` and ``dead_bytes`` of a queue, in all its tenants.

What is too much goes, the oldest of all tenants and shards first, with its attempts; a dead letter
that an unfinished workflow waits for stays. A process with some of the shards keeps their share. To
find the oldest costs a scan for each tenant with dead letters, so up to a 64th more than the bound
is left until there is more.

Bytes are estimated: dead letters times the size of a few that are the next to go.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from ...coalescer.group import Group
from ...engine.records.frame import attempt
from ...engine.records.keyspace import DEAD, ID_AT, TASK, decode_index_key, prefix_end
from ...engine.records.task import decode_task
from ...engine.records.workflow import MEMBER_ROW
from ...errors import LodeqError
from ..state.engine_state import EngineState
from ..state.limits.queue_rules import NOT_SET, QueueRules
from ..state.queue_state import QueueState, Shard, ShardQueue
from ..state.rows.task_location import task_location
from ..tasks.task_end import end_task

__all__ = ["DeadTrim"]

SLICE: Final = 64  # dead letters that go in one slice
PAGE: Final = 16  # rows of one tenant that are read in one go
TENANTS: Final = 1024  # counted in one turn
SLACK: Final = 64
LOOK_S: Final = 1.0  # between two looks: with many tenants each counts all of them
AGAIN_S: Final = 60.0  # where no task has died: dead letters may have been loaded
Slices = Iterator[dict[Shard, Group]]
_Led = tuple[tuple[int, int], ...]
_log: Final = logging.getLogger("lodeq.engine")


class _Head(NamedTuple):
    """The oldest dead letter of a tenant that was not looked at yet, and where to go on."""

    died_ms: int
    nth: int
    keys: list[bytes]  # in memory, the next one last
    resume: bytes | None
    shard_queue: ShardQueue


class DeadTrim:
    """Keeps the dead letters of one engine within the bounds of their queues."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        # By queue: bytes of a record, and how many dead letters there were when it was measured.
        self._sizes: dict[bytes, tuple[int, int]] = {}
        self._stuck: dict[bytes, int] = {}  # how many there were of which too many could not go
        # At the last look: deaths and who came back, changes of rules, shards led.
        self._seen: tuple[int, int, _Led] = (-1, -1, ())
        self._next = self._again = float("-inf")

    def slices(self) -> Slices:
        """Drop what is too much."""
        state, now = self._state, self._state.clock.mono()
        come = state.totals.dead + state.laid_back
        seen = come, state.rules_set, self._led()
        if now < (self._again if seen == self._seen else self._next):
            return
        self._seen, self._next, self._again = seen, now + LOOK_S, now + AGAIN_S
        for queue, rules in list(state.rules.items()):
            queue_state = state.queue_states.get(queue)
            if queue_state is not None and (rules.dead_max, rules.dead_bytes) != (NOT_SET, NOT_SET):
                yield from self._queue(queue_state, rules)

    def _led(self) -> _Led:
        """The shards that are led here, each with the first epoch of that."""
        hosted = self._state.hosted
        return tuple((one.index, one.first_epoch) for one in hosted if one.coalescer.is_tended)

    def _still_leads(self, led: _Led) -> bool:
        """Whether these are still the shards that are led; if not, all is to be counted anew."""
        if self._led() == led:
            return True
        self._again = self._next
        return False

    def _queue(self, queue_state: QueueState, rules: QueueRules) -> Slices:
        """Drop what a queue has too much.

        Nothing more once a shard is lost or gained: what was counted says nothing of the others.
        """
        queue, led = queue_state.queue, self._led()
        total, found = 0, []
        for looked, tenant_queue in enumerate(list(queue_state.tenant_queues.values()), 1):
            for shard_queue in tenant_queue.shard_queues:
                if (
                    shard_queue is not None
                    and shard_queue.dead
                    and shard_queue.shard.coalescer.is_tended
                ):
                    total += shard_queue.dead
                    found.append(shard_queue)
            if looked % TENANTS == 0:
                yield {}
                if not self._still_leads(led):
                    return
        if not total or self._stuck.get(queue) == total:
            return
        if rules.dead_bytes != NOT_SET:
            self._measure(queue, total, found)
        most = self._most(queue, rules)
        if total <= most + most // SLACK:
            return
        heads = []
        for nth, one in enumerate(found):
            head = self._head(one, nth, None)
            if head is not None:
                heads.append(head)
            if nth % PAGE == PAGE - 1:
                yield {}
                if not self._still_leads(led):
                    return
        heapify(heads)
        over, gone = total - most, 0
        while heads and gone < over and self._still_leads(led):
            groups: dict[Shard, Group] = {}
            for _ in range(min(SLICE, over - gone)):
                if not heads:
                    break
                head = heads[0]
                gone += self._drop(groups, head.shard_queue.shard, head.keys.pop())
                following = self._head(head.shard_queue, head.nth, head)
                if following is None:
                    heappop(heads)
                else:
                    heapreplace(heads, following)
            yield groups
        if gone:
            name = queue.decode()
            _log.info(
                "queue %r: %d dead letters beyond dead_max or dead_bytes were deleted",
                name,
                gone,
                extra={"event": "dead_letters_dropped", "queue": name, "n": gone},
            )
        self._stuck.pop(queue, None)
        if gone < over and self._still_leads(led):
            self._stuck[queue] = total - gone

    def _most(self, queue: bytes, rules: QueueRules) -> int:
        """How many may stay on the shards that are here: their share, rounded up."""
        bounds = []
        if rules.dead_max != NOT_SET:
            bounds.append(rules.dead_max)
        if rules.dead_bytes != NOT_SET:
            bounds.append(rules.dead_bytes // self._sizes[queue][0])
        shards = self._state.shards
        here = sum(shard.coalescer.is_tended for shard in self._state.hosted)
        return -(-min(bounds) * here // len(shards))

    @staticmethod
    def _head(shard_queue: ShardQueue, nth: int, before: _Head | None) -> _Head | None:
        """The next dead letter of a tenant on a shard; ``before``: what was looked at, or none."""
        keys: list[bytes] = []
        resume: bytes | None = shard_queue.floor(DEAD)
        if before is not None:
            keys, resume = before.keys, before.resume
        upper = prefix_end(shard_queue.prefix + DEAD)
        while not keys and resume is not None:
            rows, resume = shard_queue.shard.overlay.scan_readable(resume, upper, PAGE)
            keys = [key for key, _ in reversed(rows)]
        if not keys:
            return None
        return _Head(decode_index_key(keys[-1]).at, nth, keys, resume, shard_queue)

    def _measure(self, queue: bytes, total: int, found: list[ShardQueue]) -> None:
        """Look at the size of some that are next to go, where their number has changed."""
        _, measured = self._sizes.get(queue, (0, 0))
        if measured and abs(total - measured) < max(1, measured // 8):
            return
        sizes = []
        for shard_queue in found[:PAGE]:
            head = self._head(shard_queue, 0, None)
            if head is None:
                continue
            overlay = shard_queue.shard.overlay
            raw = overlay.get_sound(TASK + head.keys[-1][ID_AT:]) or b""
            task = attempt(decode_task, raw)
            sizes.append(max(len(raw), task.raw_bytes if task is not None else 0))
        self._sizes[queue] = (max(1, sum(sizes) // max(1, len(sizes))), total)

    def _drop(self, groups: dict[Shard, Group], shard: Shard, key: bytes) -> bool:
        """Delete one dead letter, if it is still one and nobody waits for it."""
        state, task_id = self._state, key[ID_AT:]
        try:
            location = task_location(state, shard, task_id)
            if location is None or location.key != key:
                return False
            if location.row.flags & MEMBER_ROW and state.flows.awaits(shard, task_id):
                return False
            group = groups.get(shard)
            if group is None:
                group = groups[shard] = shard.coalescer.begin(SLICE * 128)
            with group:
                end_task(state, group, location, None, "dead_max")
        except LodeqError as error:
            state.anomaly(f"shard {shard.index}: {task_id.hex()}: {error}")
            return False
        state.totals.dead_dropped += 1
        return True
