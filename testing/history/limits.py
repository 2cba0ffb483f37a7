"""Rule 13: no window has more starts than a queue's rate, no more leases live than it allows.

Only what is certain counts. A start lies between the invocation of its claim and the answer, so
n + 1 starts break a rate of n if even the earliest invocation and the latest answer among them are
less than a period apart. A lease is certainly live from its answer until a call that may end it is
invoked, or until its time may be over. Limits count from the answer of the ``configure`` that sets
them until the next one is invoked. Starts of a process before are compared by the wall clock,
unless that was stepped since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from .rules import broken
from .task_model import Call

__all__ = ["LimitRule"]

_ENDS = frozenset({"complete", "nack", "release", "bury", "cancel_lease", "redrive_lease"})
_NONE: frozenset[str] = frozenset()


class _Limits:
    """The rules of one queue, and what is known to go on in it."""

    __slots__ = ("concurrency", "n", "older", "period_us", "since", "since_us", "starts")

    def __init__(self) -> None:
        self.n = self.period_us = self.concurrency = 0  # 0: no limit
        self.since = 1 << 62  # number of the record that set it
        self.since_us = 0
        # Invocations of the claims that were answered: when, and the number of the record.
        self.starts: deque[tuple[int, int]] = deque()
        self.older: list[int] = []  # those in processes before, by the wall clock


class LimitRule:
    """The limits of all queues of a history."""

    def __init__(self) -> None:
        self._queues: dict[str, _Limits] = {}
        # By task: its queue, and until when its lease certainly lives.
        self._live: dict[int, tuple[str, int]] = {}
        self._ids: dict[str, int] = {}  # numbers of these tasks by id
        self._cancelled: set[str] = set()  # a cancel was invoked, and has not answered False
        self._wall_less_mono_us = 0
        self._key_labels: dict[str, set[str]] = {}  # by queue: what its keys go, or went, by
        self._stepped = 0  # number of the record of the wall clock's last step
        self.checked = 0  # starts of queues with a limit
        self._is_loose = False  # a shard may have failed: its leases do not count any more

    def invoked(self, call: Call) -> None:
        """Note a call that is about to be made."""
        if not self._queues and call.kind != "configure":
            return
        params = call.params
        if call.kind == "configure":
            limits = self._queues.setdefault(params["queue"], _Limits())
            limits.since = 1 << 62
            if "keys" in params:
                self._key_labels.setdefault(params["queue"], set()).add(params["keys"])
        elif call.kind in _ENDS:
            self._end(params["n"])
        elif call.kind == "complete_many":
            for number, _ in params.get("pairs", ()):
                self._end(number)
        elif call.kind == "cancel":
            self._cancelled.add(params["id"])
            self._end(self._ids.get(params["id"], -1))
        elif call.kind == "heartbeat" and params["n"] in self._live:
            queue, until_us = self._live[params["n"]]
            seconds_us = int(params.get("seconds_us") or 0)
            if seconds_us:
                self._live[params["n"]] = queue, min(until_us, call.mono_us + seconds_us - 1000)

    def may_wait(self, queue: str, labels: Collection[str]) -> bool:
        """Return whether a task may be, or have been, set aside because its key was full.

        Args:
            queue: of the task.
            labels: names of its labels.
        """
        return not self._key_labels.get(queue, _NONE).isdisjoint(labels)

    def answered(
        self, call: Call, answer: Any, queues: dict[int, str], at: int, now_us: int
    ) -> None:
        """Check the answer of a call.

        Args:
            call: that was answered.
            answer: as recorded.
            queues: of the tasks of a claim, by their numbers.
            at: number of the record.
            now_us: monotonic clock at the answer.
        """
        if call.kind == "configure":
            self._set(call, at, now_us)
        elif call.kind == "cancel" and not answer:
            self._cancelled.discard(call.params["id"])
        elif call.kind == "claim" and self._queues:
            if call.at > self._stepped:
                self._wall_less_mono_us = call.wall_us - call.mono_us
            self._claimed(call, answer, queues, now_us)

    def _set(self, call: Call, at: int, now_us: int) -> None:
        params = call.params
        limits = self._queues[params["queue"]]
        limits.n, limits.period_us = params.get("rate") or (0, 0)
        limits.concurrency = params.get("concurrency") or 0
        limits.since, limits.since_us = at, now_us
        limits.starts.clear()
        limits.older.clear()

    def _claimed(
        self, call: Call, answer: Sequence[Any], queues: dict[int, str], now_us: int
    ) -> None:
        until_us = call.until_us()
        granted: set[str] = set()
        for number, task_id, *_ in answer:
            queue = queues[number]
            limits = self._queues.get(queue)
            if limits is None:
                continue
            if task_id not in self._cancelled:  # by now it may be over
                self._live[number] = queue, until_us
            self._ids[task_id] = number
            if call.at < limits.since:
                continue
            granted.add(queue)
            self.checked += 1
            if limits.n:
                self._started(queue, limits, call, now_us)
        for queue in granted:
            self._check_live(queue, self._queues[queue], now_us)

    def _started(self, queue: str, limits: _Limits, call: Call, now_us: int) -> None:
        limits.starts.append((call.mono_us, call.at))
        after_us = now_us - limits.period_us
        limits.starts = deque(one for one in limits.starts if after_us < one[0] <= now_us)
        recent = [start for start, _ in limits.starts]
        if limits.older:
            since_us = now_us + self._wall_less_mono_us - limits.period_us
            limits.older = [start for start in limits.older if start > since_us]
            recent += [start - self._wall_less_mono_us for start in limits.older]
        if len(recent) > limits.n:
            raise broken(
                13,
                f"queue {queue!r}: {len(recent)} starts in {now_us - min(recent)} µs, where "
                f"{limits.n} may start in {limits.period_us} µs",
            )

    def _check_live(self, queue: str, limits: _Limits, now_us: int) -> None:
        if not limits.concurrency or self._is_loose:
            return
        live = [
            number
            for number, (where, until_us) in self._live.items()
            if where == queue and until_us > now_us
        ]
        if len(live) > limits.concurrency:
            raise broken(
                13,
                f"queue {queue!r}: tasks {live} are leased at once, where {limits.concurrency} "
                "may be",
            )

    def _end(self, number: int) -> None:
        self._live.pop(number, None)

    def unknown(self) -> None:
        """The outcome of a call is unknown: a shard may have failed."""
        self._is_loose = True

    def died(self) -> None:
        """The process is gone, and its leases with it; exported ones are not counted on."""
        self._live.clear()
        self._ids.clear()
        self._cancelled.clear()
        self._is_loose = False
        for limits in self._queues.values():
            limits.older += [
                start + self._wall_less_mono_us for start, at in limits.starts if at > self._stepped
            ]
            limits.starts.clear()

    def stepped(self, at: int) -> None:
        """The wall clock was stepped: later ones cannot compare by it what was before.

        Args:
            at: number of the record.
        """
        self._stepped = at
        for limits in self._queues.values():
            limits.older.clear()
