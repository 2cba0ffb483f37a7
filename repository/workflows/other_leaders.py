"""Joins whose members are on shards that other processes lead.

A join lives with the task that waits, and each member with its edges. Where one process leads both
shards the reaper carries ends from one to the other (``joins``). Where two do, they tell each other
in documents, which ``LeaderCalls`` carries; whatever is told may be told again:

- *attach*: before a task that waits is written, each member elsewhere gets its edge, and says how
  it has ended if it has. So no end is missed, however soon it comes. An end that meets no join is
  told again for ``UNBORN_S`` seconds; a task that is not written by then is refused.
- *ends*: rows of an outbox. They are deleted once they are counted, and durable, at the join.
- *asks*: of a join that has not fired, after its shard has a new leader, as a process does after an
  open. What had ended unheard gets an outbox row there.
- *redrive*: a redrive of a task that waits redrives what is dead of the tasks that it waits for.

Whoever leads a shard anew finds its joins and outbox rows, so that a kill of either side ends
nothing for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

from ...coalescer.group import Group
from ...coalescer.replicated import ReplicatedCoalescer
from ...engine.records.keyspace import DEAD, RESULT, TASK
from ...engine.records.result import Status
from ...engine.records.workflow import OUTBOX_JOIN, OUTBOX_SOURCE, Edge, OutboxRecord, PartRecord
from ...engine.runtime.event_loop import TaskHandle
from ...engine.runtime.task_id import TaskId
from ...errors import (
    LimitError,
    LodeqError,
    NotLeaderError,
    UnknownDependencyError,
    UnreachableError,
    UsageError,
)
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.rows.task_location import TaskLocation, task_location
from ..tasks.operators.admin import redrive_one
from .dependencies import end_of, unknown
from .edges import join_of
from .joins import SLICE, UNBORN_S, Joins

__all__ = ["LeaderCalls", "OtherLeaders"]

LATER_S: Final = 0.02  # until an end is told again that was too early
YOUNG_S: Final = 2.0  # ends of so long ago wait for the next pass of the reaper
UNDER_WAY, UNKNOWN, FULL = 0, -1, -2  # answers to an attach, beside how the task has ended
ITEMS_MAX: Final = 4 * SLICE  # of one document
Document = Mapping[str, Any]
Row = tuple[Shard, bytes, OutboxRecord]  # of an outbox: its shard, as it was read


class LeaderCalls(Protocol):
    """Carries documents to other leaders, and their answers back."""

    async def tell_joins(self, url: str, document: Document) -> Document:
        """Have the process at an address ``take`` a document.

        Raises:
            LodeqError: it does not answer, or refuses. It may have been taken.
        """


class OtherLeaders:
    """Tells other leaders of this engine's joins, and takes what they tell."""

    def __init__(self, state: EngineState, joins: Joins) -> None:
        self._state = state
        self._joins = joins
        self.calls: LeaderCalls | None = None
        joins.tell, joins.attach_elsewhere = self.kick, self.attach
        joins.redrive_elsewhere = self.redrive
        self._tasks: dict[Shard, TaskHandle] = {}

    # -- telling -----------------------------------------------------------------------

    async def _tell(self, home: Shard, **items: Sequence[Any]) -> Document:
        """Tell the leader of a shard. Raises ``LodeqError``."""
        if home.coalescer.takes_writes:
            raise NotLeaderError(f"shard {home.index} has come to be led here: try again")
        refusal = home.coalescer.refusal()
        url = refusal.leader if isinstance(refusal, NotLeaderError) else None
        if self.calls is None or url is None:
            raise refusal
        return await self.calls.tell_joins(url, {"shard": home.index, **items})

    def kick(self) -> None:
        """Tell what there is to tell; the reaper calls it in each pass."""
        joins = self._joins
        if self.calls is None or self._state.is_closed:
            return
        for home in {*joins.asks_elsewhere, *joins.ends_elsewhere}:
            if home not in self._tasks:
                task = self._state.spawner.spawn(partial(self._tell_all, home), "lodeq-joins")
                self._tasks[home] = task

    async def _tell_all(self, home: Shard) -> None:
        try:
            while await self._tell_some(home):
                pass
        except LodeqError:
            pass  # the next pass of the reaper tries again
        finally:
            self._tasks.pop(home, None)

    async def _tell_some(self, home: Shard) -> bool:
        """Tell the leader of a shard some asks and ends. Whether to go on."""
        joins = self._joins
        asks = list(islice(joins.asks_elsewhere.get(home, {}).items(), SLICE))
        ends = list(islice(joins.ends_elsewhere.get(home, {}).items(), SLICE))
        if home.coalescer.is_tended:  # it has come here: rows and joins are all there is to it
            waiting = joins.asks_elsewhere.pop(home, {})  # more than one slice, maybe
            joins.ends_elsewhere.pop(home, None)
            for shard in {shard for shard, _ in waiting.values()}:
                joins.ask_again(shard)
            return False
        for sender in {sender for _, (sender, _, _) in ends if sender.coalescer.is_tended}:
            # Nothing else is true yet.
            await self._state.commit_barrier(sender, is_durable=_must_sync(sender))
        ends = self._true(home, ends)
        if not asks and not ends:
            for todo in (joins.asks_elsewhere, joins.ends_elsewhere):
                if not todo.get(home):
                    todo.pop(home, None)
            return False
        answer = await self._tell(
            home,
            asks=[
                [part.source.hex(), join.hex(), number, part.status, part.epoch]
                for (join, number), (_, part) in asks
            ],
            ends=[
                [
                    key[OUTBOX_SOURCE].hex(),
                    key[OUTBOX_JOIN].hex(),
                    one.number,
                    one.status,
                    one.ended_us,
                    one.epoch,
                ]
                for key, (_, _, one) in ends
            ],
        )
        self._state.check()
        for key, told in asks:
            if joins.asks_elsewhere.get(home, {}).get(key) is told:
                del joins.asks_elsewhere[home][key]
        later = set(answer["later"])
        self._forget(home, [one for n, one in enumerate(ends) if n not in later])
        state = self._state
        young_us = state.clock.wall_us() - YOUNG_S * 1e6
        if any(ends[n][1][2].ended_us > young_us for n in later):  # else in the next pass
            state.clock.call_at(state.spawner, state.clock.mono() + LATER_S, self.kick)
        return not later

    def _true(self, home: Shard, ends: Sequence[tuple[bytes, Row]]) -> list[tuple[bytes, Row]]:
        """The ends whose rows are there as they were noted, of shards that are led here."""
        waiting, found = self._joins.ends_elsewhere.get(home, {}), []
        for key, told in ends:
            sender, raw, _ = told
            if sender.coalescer.is_tended and sender.overlay.get(key) == raw:
                found.append((key, told))
            elif waiting.get(key) is told:
                del waiting[key]
        return found

    def _forget(self, home: Shard, ends: Sequence[tuple[bytes, Row]]) -> None:
        """Delete outbox rows whose end is counted, and durable, where it counts."""
        groups: dict[Shard, Group] = {}
        waiting = self._joins.ends_elsewhere.get(home, {})
        for key, told in ends:
            if waiting.get(key) is told:
                del waiting[key]
            sender, raw, _ = told
            # A later end, or a redrive, may have its place.
            if not sender.coalescer.is_tended or sender.overlay.get(key) != raw:
                continue
            if sender not in groups:
                groups[sender] = sender.coalescer.begin(len(ends) * 64)
            groups[sender].ops.append((key, None))

    async def attach(
        self, join: bytes, parts: Sequence[tuple[int, bytes]], is_redrive_awaited: bool
    ) -> dict[bytes, int]:
        """Give members elsewhere their edges to a join that will be written.

        Args:
            join: its id.
            parts: numbers and members, of shards that are led elsewhere.
            is_redrive_awaited: whether a dead member may be redriven for it.

        Returns: how each has ended; 0: it is under way.

        Raises:
            UnknownDependencyError, LimitError: of one of them.
            NotLeaderError: a leader was not reached; nothing is written here.
        """
        state = self._state
        begun = state.clock.mono()
        homes: dict[Shard, list[tuple[int, bytes]]] = {}
        for number, source in parts:
            homes.setdefault(state.shard_of(source), []).append((number, source))
        found: dict[bytes, int] = {}
        for home, some in homes.items():
            items = [[source.hex(), join.hex(), n, is_redrive_awaited] for n, source in some]
            try:
                answer = await self._tell(home, attach=items)
            except (NotLeaderError, UnreachableError) as error:
                raise NotLeaderError(
                    f"a task that this one waits for is on shard {home.index}: {error}"
                ) from error
            for (_, source), status in zip(some, answer["attached"], strict=True):
                if status == UNKNOWN:
                    raise unknown(source)
                if status == FULL:
                    raise LimitError(f"{TaskId(source)} is waited for by too many tasks already")
                found[source] = status
        state.check()
        if state.clock.mono() - begun > UNBORN_S / 2:
            raise NotLeaderError("the leaders of the tasks it waits for took too long: try again")
        return found

    async def redrive(self, sources: Sequence[bytes]) -> int:
        """Have other leaders redrive what is dead of these tasks. Returns how many were.

        Raises:
            NotLeaderError: a leader was not reached; others may have done it. May be repeated.
        """
        state = self._state
        homes: dict[Shard, list[bytes]] = {}
        for source in sources:
            homes.setdefault(state.shard_of(source), []).append(source)
        count = 0
        for home, some in homes.items():
            try:
                answer = await self._tell(home, redrive=[source.hex() for source in some])
                redriven = answer.get("redriven")
                if redriven is None:
                    raise UnreachableError("its leader is of an older release")
            except (NotLeaderError, UnreachableError) as error:
                raise NotLeaderError(
                    f"{len(some)} dead tasks that this one waits for are on shard {home.index}: "
                    f"{error}; retry, or redrive them in their queues"
                ) from error
            count += redriven
        state.check()
        return int(count)

    # -- being told --------------------------------------------------------------------

    async def take(self, document: object) -> Document:
        """Do what another leader says.

        Raises:
            UsageError: it is no such document.
            NotLeaderError: the shard is led elsewhere; nothing is done.
            LodeqError: it cannot be written now; it may be told again.
        """
        state = self._state
        state.check()
        home, attach, redrive, asks, ends = _read(state, document)
        if not home.coalescer.is_tended:
            raise home.coalescer.refusal()
        if not home.coalescer.has_capacity:
            await state.backpressure(home)
        # atomic section
        if not home.coalescer.is_tended:
            raise home.coalescer.refusal()
        # First: reads of other shards may fail, and nothing may fail between two rows.
        later = {n for n, one in enumerate(ends) if self._is_early(home, *one)}
        dead = [one for source in redrive if (one := self._dead(home, source)) is not None]
        groups: dict[Shard, Group] = {home: home.coalescer.begin(SLICE * 256)}
        with groups[home]:
            redriven = sum(redrive_one(state, groups[home], one) is None for one in dead)
            attached = [self._attach(groups[home], home, *one) for one in attach]
            for n, (source, join, end) in enumerate(ends):
                if n in later:
                    continue
                self._joins.count_part(
                    *(groups[home], home, join, end.number, source),
                    *(end.status, end.ended_us, end.epoch),
                )
        for join, number, part in asks:
            try:
                self._joins.ask_part(groups, state.shard_of(join), join, number, part)
            except LimitError as error:
                state.anomaly(f"shard {home.index}: {error}")
        # All futures before the first await: a group is dropped once it is committed.
        for future in [
            one.coalescer.wait(group, None, is_durable=_must_sync(one))
            for one, group in groups.items()
        ]:
            await future
        return {"attached": attached, "later": sorted(later), "redriven": redriven}

    def _dead(self, home: Shard, source: bytes) -> TaskLocation | None:
        """Where a task of a shard that is led here is dead; None: it is not."""
        location = task_location(self._state, home, source)
        return location if location is not None and location.kind == DEAD else None

    def _attach(
        self,
        group: Group,
        home: Shard,
        source: bytes,
        join: bytes,
        number: int,
        is_redrive_awaited: bool,
    ) -> int:
        try:
            status = end_of(self._state, source)
        except UnknownDependencyError:
            return UNKNOWN
        except LimitError:
            return FULL
        is_dead = status == Status.DEAD and is_redrive_awaited
        if status is None or (is_dead and home.overlay.has(TASK + source)):
            self._joins.attach(group, home, source, Edge(0, number, join))
        return UNDER_WAY if status is None else status

    def _is_early(self, home: Shard, source: bytes, join: bytes, end: OutboxRecord) -> bool:
        """Whether an end is to be told again, and is not counted now."""
        state = self._state
        if join_of(home, join) is None:
            age_us = state.clock.wall_us() - end.ended_us
            return age_us <= UNBORN_S * 1e6  # else it was never written, or is forgotten
        there = state.shard_of(source).overlay
        try:  # who reads the parts of the join would not find the result
            return bool(end.status and there.has(TASK + source) and not there.has(RESULT + source))
        except NotLeaderError:  # it is not here: its leader has committed the end, and it counts
            return False

    async def close(self) -> None:
        """Tell no more."""
        self.calls = None
        for task in list(self._tasks.values()):
            task.cancel()
            await task.join()


def _must_sync(shard: Shard) -> bool:
    """Whether a commit has to be synced before others hear of it: a log has made it durable."""
    return not isinstance(shard.coalescer, ReplicatedCoalescer)


# -- documents ---------------------------------------------------------------------------

Attach = tuple[bytes, bytes, int, bool]
Ask = tuple[bytes, int, PartRecord]
End = tuple[bytes, bytes, OutboxRecord]


def _read(
    state: EngineState, document: object
) -> tuple[Shard, list[Attach], list[bytes], list[Ask], list[End]]:
    """A document's shard, and what it says. Raises ``UsageError``."""
    try:
        if not isinstance(document, dict):
            raise TypeError("no object")
        home = state.shards[_number(document["shard"], len(state.shards))]
        attach: list[Attach] = [
            (_id(state, source, home), _id(state, join), _number(number), bool(is_awaited))
            for source, join, number, is_awaited in document.get("attach", ())
        ]
        named = (_id(state, source, home) for source in document.get("redrive", ()))
        redrive = list(dict.fromkeys(named))
        asks: list[Ask] = []
        for source, join, number, status, epoch in document.get("asks", ()):
            part = PartRecord(_status(status), _number(epoch), 0, _id(state, source, home))
            asks.append((_id(state, join), _number(number), part))
        ends: list[End] = []
        for source, join, number, status, ended_us, epoch in document.get("ends", ()):
            record = OutboxRecord(
                _status(status), _number(number), _number(epoch), _number(ended_us, 1 << 63)
            )
            ends.append((_id(state, source), _id(state, join, home), record))
        if len(attach) + len(redrive) + len(asks) + len(ends) > ITEMS_MAX:
            raise ValueError(f"more than {ITEMS_MAX} items")
    except (TypeError, ValueError, KeyError) as exc:
        raise UsageError(f"this is not what leaders tell one another: {exc!r}") from exc
    return home, attach, redrive, asks, ends


def _number(value: object, below: int = 1 << 32) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{value!r:.40} is no number below {below}")
    return value


def _status(value: object) -> int:
    return _number(value, max(Status) + 1)


def _id(state: EngineState, value: object, home: Shard | None = None) -> bytes:
    """The id of a task or workflow, of that shard if one is given."""
    if not isinstance(value, str) or len(value) != 32:
        raise ValueError(f"{value!r:.40} is no id")
    found = bytes.fromhex(value)
    if home is not None and state.shard_of(found) is not home:
        raise ValueError(f"{value} is not of shard {home.index}")
    return found
