"""``LogReplicator``: the replication layer of one node, over any ``SharedLog``.

One object a store, given to ``lodeq.open(replicator=…)``. It has a session in the log, and for each
shard a ``ShardReplica`` that follows, campaigns and leads. Beside them run

- the *session*: joins, and when the session is over deposes every shard at once and joins again;
- the *watch*: wakes the shard that a hint names, or whoever looks at the *members*;
- the *poll*: looks at all shards and members, for hints that were lost;
- the *report*: publishes this node's positions and clock, and gives up shards when its disk has
  failed or its clock is off;
- the *upkeep*: truncates what nobody needs, and hands a shard to a node that is placed better.

docs/replication.md has the protocol and what holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from anyio import Lock

from ..coalescer.replicator import Done, Replica
from ..engine.files.paths import make_root, normal_path
from ..engine.runtime.clock import Clock, SystemClock
from ..engine.runtime.current_loop import current_spawner
from ..engine.runtime.event_loop import Spawner, TaskHandle
from ..engine.runtime.ids import Rng, SystemRng
from ..engine.store.port import Op
from ..errors import (
    ClosedError,
    FormatTooNewError,
    LodeqError,
    LogRolledBackError,
    NotLeaderError,
    ShardCountError,
    UsageError,
)
from .bootstrap import CheckpointSource, LocalCheckpoints, bootstrap
from .fragments import ENTRY_BYTES_MAX
from .groups import check_groups, groups_of
from .members import Members
from .node import Node
from .options import LogOptions
from .placement.balancer import HOME, Balancer
from .placement.copies import Copies
from .placement.shard_files import DiskShards, NoFiles, ShardFiles, fetch_copy
from .placement.wishes import Wishes
from .port import (
    FORMAT,
    PLACEMENTS,
    Checkpoint,
    Genesis,
    LogUnavailableError,
    Member,
    NameTakenError,
    Position,
    SessionLostError,
    SharedLog,
    check_node,
    index_of,
)
from .probe import Connector, Probe
from .record import LEVEL
from .replica_note import ReplicaNote, read_note, write_note
from .report import (
    failures_of,
    member_of,
    no_session,
    problems_of,
    session_key,
    status_of,
)
from .shard_replica import Role, ShardReplica
from .status import ClusterStatus
from .upkeep import Upkeep
from .waiting import Signal, Waiting

__all__ = ["LogReplicator"]

NONCE_BYTES = 16
SESSION_LOOK_S = 0.1
HINT_PAUSE_S = 0.1  # between two looks at the members because of hints
NAME_S = 0.25  # until a name is asked for again that a session of before has
NOTE_S = 10.0
WRONG_CLOCKS = 3  # looks in a row until a leader whose clock is off gives its shards up


class LogReplicator:
    """The replication layer of one node. Implements ``lodeq.Replicator``.

    Args:
        log: this node's connection to the log service; closed with the store.
        node: its name, unique in the cluster, 1 to 64 characters.
        url: where clients reach this node; empty: nowhere.
        zone: its failure domain.
        cluster: name of the cluster.
        shards: how many shards a new cluster has, 1 to 4,096; one that is there keeps its own.
        copies: of each shard, in a new cluster; None: one on every node. One that is there keeps
            its own number.
        options: see ``LogOptions``.
        source: where checkpoints of other nodes are read from; None: ``file:`` addresses.
        connector: tells whether a leader's process is gone, so that it is replaced before its
            session ends (see ``probe``); None: nobody probes here.
        clock: the one of ``log`` and of the engine; None: the machine's.
        rng: draws nonces; None: the system's.
        files: the files of single shards; None: those in the store's folder.
    """

    def __init__(
        self,
        log: SharedLog,
        *,
        node: str,
        url: str = "",
        zone: str = "",
        cluster: str = "lodeq",
        shards: int = 1,
        copies: int | None = None,
        options: LogOptions | None = None,
        source: CheckpointSource | None = None,
        connector: Connector | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        files: ShardFiles | None = None,
    ) -> None:
        check_node(node)
        self.log = log
        self.options = options if options is not None else LogOptions()
        self.entry_bytes_max = ENTRY_BYTES_MAX
        self.definite_s = self.options.answer_s
        self.refusal: UsageError | None = None  # why this node can never join; None: it may
        self._name = node
        self._url = url
        self._zone = zone
        self._cluster = cluster
        self._shard_count = shards
        self._copy_count = copies
        self._files = files
        self._hosted: set[int] | None = None  # None: every shard
        self._copies: Copies | None = None
        self._balancer: Balancer | None = None
        self._source = source if source is not None else LocalCheckpoints()
        self._connector = connector
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._rng: Rng = rng if rng is not None else SystemRng()
        self._path: str | None = None
        self._note: ReplicaNote | None = None
        self._genesis: Genesis | None = None
        self._node: Node | None = None
        self._shards: list[ShardReplica] = []
        self._tasks: list[TaskHandle] = []
        self._upkeep: Upkeep
        self._members_changed: Signal
        self._noting: Lock

    # -- opening -----------------------------------------------------------------------

    async def prepare(self, path: str | None) -> None:
        """See ``Replicator.prepare``.

        Raises:
            LogRolledBackError: the log is another one than the store's, or older.
            LogUnavailableError: it has not answered within ``LogOptions.connect_s``.
            FormatTooNewError: the cluster is at a feature level that this release does not know.
            ShardCountError: the cluster has another number of shards.
            OpenError: a checkpoint is needed, and none can be used.
            UsageError: the store is new, and another live node has the name of this one and keeps
                it; nothing was written.
        """
        waiting = Waiting(current_spawner(), self._clock)
        try:
            self._path = None if path is None else normal_path(path)
            if self._path is not None:
                self._note = await waiting.spawner.run_in_thread(partial(read_note, self._path))
                self._check_named(self._path)
            genesis = self._genesis = await self._connect(waiting)
            _check_level(genesis)
            self._check_note(genesis)
            if self._path is not None and self._note is None:
                await self._check_free(waiting)
            if genesis.copies:
                await self._prepare_copies(waiting.spawner)
            elif self._path is not None:
                await bootstrap(
                    self.log,
                    self._source,
                    self._path,
                    waiting.spawner,
                    is_known=self._note is not None,
                )
        finally:
            await waiting.spawner.aclose()

    async def _prepare_copies(self, spawner: Spawner) -> None:
        """Find out which copies are here; the home shard, which every node has, is made ready."""
        if self._files is None:
            path = self._path
            self._files = NoFiles() if path is None else DiskShards(path, self._source)
        files, note = self._files, self._note
        hosted = await files.settle(None if note is None else note.hosted, spawner)
        if note is None and self._path is not None and self._genesis is not None:
            await spawner.run_in_thread(partial(make_root, self._path))
            await self._write_note_to(self._path, self._genesis, spawner)
        self._hosted = hosted | {HOME}
        state = await self.log.state(HOME)
        reached = await files.position(HOME, spawner) if HOME in hosted else 0
        if HOME not in hosted or reached + 1 < state.floor:
            await fetch_copy(self.log, files, state, spawner, _no_pin)

    async def _connect(self, waiting: Waiting) -> Genesis:
        note, later = self._note, groups_of(self.log)[1:]
        if note is not None:
            self.log.check_position(Position(note.service_id, note.revision))
            for log, noted in zip(later, note.later, strict=False):
                log.check_position(Position(*noted))
        nonce, copies = self._rng.bytes(NONCE_BYTES), self._copy_count or 0
        ours = Genesis(self._cluster, self._shard_count, nonce, copies=copies, level=LEVEL)
        give_up = self._clock.mono() + self.options.connect_s
        while True:
            try:
                if note is not None:
                    await self._check_begun(note)
                return await self.log.connect(ours)
            except LogUnavailableError:
                if self._clock.mono() >= give_up:
                    raise
            await waiting.pause(self.options.retry_s)

    async def _check_free(self, waiting: Waiting) -> None:
        """Wait until no live node has this name, for as long as one that died may seem to live.

        A folder in which anything was written is noted as this node's, and of use to no other.
        """
        give_up = self._clock.mono() + 2 * self.log.session_s + self.options.name_s
        while True:
            try:
                found = [one for one in await self.log.members() if one.node == self._name]
                if not found:
                    return
                if self._clock.mono() >= give_up:
                    raise self._name_is_taken(f"it is at {found[0].url or 'no address'}")
            except LogUnavailableError:
                if self._clock.mono() >= give_up:
                    raise
            await waiting.pause(min(self.options.report_s, NAME_S))

    async def _check_begun(self, note: ReplicaNote) -> None:
        """Raise if a log of a cluster that is known here holds nothing: it is not begun here."""
        logs = groups_of(self.log)
        for number, log in enumerate(logs):
            if await log.look() is None:
                which = f"log group {number}" if len(logs) > 1 else "the log"
                raise LogRolledBackError(
                    f"{which} is empty, and this store is a replica of the cluster "
                    f"{note.cluster!r} of nonce {note.nonce.hex()}, which has its logs there: it "
                    "was set up anew, or another service was named. If 'lodeq cluster begin' was "
                    "stopped before it was done, repeat it"
                )

    def _check_named(self, path: str) -> None:
        """Raise if the store is of a cluster or a node of another name."""
        note = self._note
        if note is not None and note.cluster != self._cluster:
            raise UsageError(
                f"{path} is a replica of the cluster {note.cluster!r}, not of {self._cluster!r}: "
                "name its own, or give this node another folder"
            )
        if note is not None and note.node != self._name:
            raise UsageError(
                f"{path} is the replica of node {note.node!r}: give that name, not "
                f"{self._name!r}, or another folder"
            )

    def _check_note(self, genesis: Genesis) -> None:
        note = self._note
        if genesis.cluster != self._cluster:
            raise UsageError(
                f"the log holds the cluster {genesis.cluster!r}, not {self._cluster!r}"
            )
        check_groups(self.log, genesis)
        if self._copy_count is not None and self._copy_count != genesis.copies:
            raise UsageError(
                f"this cluster was begun with {genesis.copies or 'no number of'} copies of each "
                f"shard, and that stays so: leave out copies={self._copy_count}"
            )
        if note is None:
            return
        if note.nonce != genesis.nonce:
            raise LogRolledBackError(
                f"this store belongs to a cluster {note.cluster!r} of nonce {note.nonce.hex()}, "
                f"and the log holds {genesis.cluster!r} of {genesis.nonce.hex()}: the log was set "
                "up anew under the name; begin a cluster of another name from this copy"
            )

    async def start(self, replica: Replica, spawner: Spawner, clock: Clock) -> None:
        """See ``Replicator.start``."""
        genesis = self._genesis
        if genesis is None:
            raise UsageError("a LogReplicator is prepared before it is started")
        _check_shards(replica, genesis.shards)
        self._clock = clock
        waiting = Waiting(spawner, clock)
        node = self._node = Node(
            self._name,
            self.log,
            replica,
            waiting,
            self.options,
            self._rng,
            Members(self._name, clock),
            self._stop,
            hosted=self._hosted,
            groups=groups_of(self.log),
            level=genesis.level,
        )
        if genesis.copies:
            node.members.placements = {}
        self._noting = Lock()
        await self._write_note()
        self._shards = [ShardReplica(node, shard) for shard in range(genesis.shards)]
        self._members_changed = Signal(waiting)
        self._upkeep = Upkeep(node, self._shards, self._stop, genesis.copies)
        if genesis.copies and self._files is not None:
            self._copies = Copies(node, self._shards, self._files, self._write_note, self._tell)
            self._balancer = Balancer(node, genesis.shards, genesis.copies)
            self._spawn("placements", self._copies.see)
            self._spawn("copies", self._copies.work)
            self._spawn("balancer", self._balancer.run)
        for group in range(len(node.groups)):
            self._spawn(f"watch-{group}", partial(self._watch, group))
            self._spawn(f"session-{group}", partial(self._keep_session, group))
            self._spawn(f"poll-{group}", partial(self._poll, group))
        self._spawn("members", self._keep_members)
        self._spawn("report", self._report)
        self._spawn("upkeep", self._upkeep.run)
        if self._connector is not None:
            probe = Probe(node, self._shards, self._connector, self._tell)
            self._spawn("probe", probe.run)
        for shard in self._shards:
            self._spawn(f"shard-{shard.shard}", shard.run)

    def _spawn(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(self._at.waiting.spawner.spawn(main, f"lodeq-log-{name}"))

    @property
    def _at(self) -> Node:
        if self._node is None:
            raise UsageError("this LogReplicator has not been started: give it to lodeq.open")
        return self._node

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._name

    # -- what the engine asks ----------------------------------------------------------

    def is_leader(self, shard: int) -> bool:
        """See ``Replicator.is_leader``."""
        return bool(self._shards) and self._shards[shard].takes_proposals

    def holds_session(self, shard: int) -> bool:
        """See ``Replicator.holds_session``."""
        one = self._shards[shard] if self._shards else None
        return one is not None and one.holds_term and self._at.has_session(shard)

    def hosts(self, shard: int) -> bool:
        """See ``Hosting.hosts``."""
        return self._hosted is None or shard in self._hosted

    def leader(self, shard: int) -> str | None:
        """See ``Replicator.leader``."""
        if not self._shards:
            return None
        one = self._shards[shard]
        if one.holds_term:
            return self._url or None
        return None if one.seen.leader is None else self._at.members.url(one.seen.leader)

    def inherits_at(self, shard: int) -> float:
        """See ``InheritanceDelay.inherits_at``."""
        return self._shards[shard].inherits_mono if self._shards else 0.0

    def why_not(self, shard: int) -> str | None:
        """See ``KnowsWhy.why_not``."""
        if self._node is None or not self._shards:
            return None
        if self._node.stopped is not None:
            stopped = self._node.stopped
            return f"{type(stopped).__name__}: {stopped}"
        if self._node.is_log_full:
            return self._node.problems.get("space")
        return self._shards[shard].problem

    def failures(self) -> tuple[str, ...]:
        """See ``KnowsWhy.failures``."""
        return () if self._node is None else failures_of(self._node, self._shards)

    def propose(self, shard: int, commit_seq: int, ops: tuple[Op, ...], done: Done) -> None:
        """See ``Replicator.propose``.

        Args:
            shard: its index.
            commit_seq: number of the batch.
            ops: the batch.
            done: called with the outcome, in a later turn of the loop.
        """
        if not self._shards:
            raise NotLeaderError("this node has not joined its cluster yet: retry")
        self._shards[shard].propose(commit_seq, ops, done)

    # -- loops -------------------------------------------------------------------------

    def _stop(self, error: BaseException) -> None:
        """Follow this log no more: nothing is served, and what there is stays as it is."""
        node = self._at
        if node.stopped is None:
            node.stopped = error
            node.problems["log"] = str(error)
            for shard in self._shards:
                shard.stop(str(error))

    def _of_group(self, group: int) -> list[ShardReplica]:
        """The shards whose log is in a group."""
        return self._shards[group :: len(self._at.groups)]

    async def _keep_session(self, group: int) -> None:
        node, options, log = self._at, self.options, self._at.groups[group]
        name = session_key(group)
        refused_at: float | None = None
        while not node.is_closing and node.stopped is None:
            try:
                await log.join(self._member())
            except NameTakenError as error:
                refused_at = node.mono() if refused_at is None else refused_at
                if node.mono() - refused_at > 2 * log.session_s + options.name_s:
                    node.problems.pop(name, None)
                    self.refusal = self._name_is_taken(str(error))
                    self._stop(self.refusal)
                    return
                node.problems[name] = (
                    f"no session: another live node has the name {self._name!r}, or this one died "
                    f"less than {log.session_s:g} s ago; it is tried again ({error})"
                )
                await node.waiting.pause(min(options.report_s, NAME_S))
                continue
            except LogRolledBackError as error:
                self._stop(error)
                return
            except ClosedError:
                return
            except LodeqError as error:
                refused_at = None  # who is refused without a break has another one before it
                node.problems[name] = f"{no_session(node, group)}: {error}"
                await node.waiting.pause(options.retry_s)
                continue
            refused_at = None
            node.problems.pop(name, None)
            node.joined.add(group)
            for shard in self._of_group(group):
                shard.wake.set()
            if self._copies is not None:
                self._copies.wake.set()
            await self._watch_session(log)
            node.joined.discard(group)
            for shard in self._of_group(group):
                shard.session_lost()

    def _name_is_taken(self, why: str) -> UsageError:
        """Make the error that ends this node: a session of before would be over by now."""
        return UsageError(
            f"another live node of the cluster {self._cluster!r} has the name {self._name!r} and "
            f"keeps it: end that one, or give this one a name and a folder of its own ({why})"
        )

    async def _watch_session(self, log: SharedLog) -> None:
        """Return when the session is over."""
        node = self._at
        while (left_s := log.session_until() - node.mono()) > 0:
            await node.waiting.pause(min(left_s, SESSION_LOOK_S))

    async def _watch(self, group: int) -> None:
        node = self._at
        while node.stopped is None:
            try:
                await self._hear(group)
            except LogRolledBackError as error:
                self._stop(error)
                return
            except ClosedError:
                return
            except LodeqError:
                pass  # begun anew; the poll sees what is missed meanwhile
            await node.waiting.pause(self.options.retry_s)

    async def _hear(self, group: int) -> None:
        """Act on hints of a group until they end."""
        groups = self._at.groups
        async for change in groups[group].watch():
            if 0 <= change.shard < len(self._shards):
                if change.shard % len(groups) != group:
                    continue
                shard = self._shards[change.shard]
                # A leader knows what it appends; the poll tells enough of shards elsewhere.
                if shard.role in (Role.FOLLOWING, Role.LEAVING):
                    shard.hear(change.last)
            elif group:
                continue  # members and placements are those of the first one
            elif change.shard == PLACEMENTS:
                if self._copies is not None:
                    self._copies.wake.set()
            elif change.shard < 0:
                self._members_changed.set()

    async def _keep_members(self) -> None:
        """Look at the members soon after every hint, so that their clocks are seen in time."""
        node = self._at
        while node.stopped is None:
            await self._members_changed.wait()
            try:
                await self._see_members()
            except LogRolledBackError as error:
                self._stop(error)
                return
            except ClosedError:
                return
            except LodeqError:
                pass  # the poll looks as well
            await node.waiting.pause(HINT_PAUSE_S)

    async def _poll(self, group: int) -> None:
        node, shards = self._at, self._of_group(group)
        while node.stopped is None:
            before = [(shard.changes, shard.delivered) for shard in shards]
            try:
                states = (await node.groups[group].states())[group :: len(node.groups)]
                if not group:
                    await self._see_members()
            except LogRolledBackError as error:
                self._stop(error)
                return
            except ClosedError:
                return
            except LodeqError:
                states = []
            for shard, state, (changes, delivered) in zip(shards, states, before, strict=False):
                shard.see(state, changes, delivered)
            await node.waiting.pause(self.options.poll_s)

    async def _see_members(self) -> None:
        try:
            self._at.members.see(await self.log.members())
        except LogUnavailableError:
            pass

    def _member(self) -> Member:
        return member_of(self._at, self._shards, url=self._url, zone=self._zone)

    async def _tell(self) -> None:
        """Report at once."""
        await self.log.report(self._member())

    async def _report(self) -> None:
        node, note_at, wrong_clocks = self._at, 0.0, 0
        while node.stopped is None:
            await node.waiting.pause(self.options.report_s)
            try:
                for shard in self._shards:
                    shard.check_store()
                    if shard.role is Role.LEADING:
                        await shard.check_lead()
                wrong_clocks = 0 if node.check_clock() else wrong_clocks + 1
                if wrong_clocks >= WRONG_CLOCKS:
                    for shard in self._shards:
                        await shard.hand_over()
                if node.has_session():
                    await self._tell()
                if node.mono() >= note_at + NOTE_S:
                    note_at = node.mono()
                    await self._write_note()
                node.problems.pop("report", None)
            except LogRolledBackError as error:
                self._stop(error)
            except (LogUnavailableError, SessionLostError):
                continue
            except ClosedError:
                return
            except LodeqError as error:
                node.problems["report"] = str(error)
        with suppress(LodeqError):  # the others hear that it leads nothing any more
            if node.has_session():
                await self._tell()

    async def _write_note(self) -> None:
        """Keep in the store what it knows of the log."""
        if self._path is None or self._genesis is None:
            return
        async with self._noting:
            await self._write_note_to(self._path, self._genesis, self._at.waiting.spawner)

    async def _write_note_to(self, path: str, genesis: Genesis, spawner: Spawner) -> None:
        old, (service_id, revision) = self._note, self.log.position()
        later = [log.position() for log in groups_of(self.log)[1:]]
        if old is not None:
            revision = max(old.revision, revision)
            for at, (_, reached) in enumerate(old.later[: len(later)]):
                later[at] = later[at]._replace(revision=max(reached, later[at].revision))
        note = ReplicaNote(
            genesis.cluster,
            self._name,
            genesis.shards,
            genesis.nonce,
            revision,
            service_id,
            () if self._hosted is None else tuple(sorted(self._hosted)),
            tuple((one.service_id, one.revision) for one in later),
        )
        if note != old:
            await spawner.run_in_thread(partial(write_note, path, note))
            self._note = note

    # -- what operators ask for --------------------------------------------------------

    async def truncate(self) -> None:
        """Remove from the logs of the shards led here what nobody needs any more.

        Raises:
            LogUnavailableError: this node has no session in any log, so it leads nothing.
        """
        node = self._at
        if not any(map(node.has_session, range(len(node.groups)))):
            why = "; ".join(failures_of(node, self._shards))
            raise LogUnavailableError(why or no_session(node, 0))
        await self._upkeep.truncate()

    async def hand_over(self, shard: int) -> None:
        """Give up the leadership of a shard, so that another node takes it."""
        await self._shards[shard].hand_over()

    async def drain(self, *, is_on: bool) -> list[int]:
        """Lead nothing any more, or again. Returns the shards that this node still leads.

        What is under way is answered first; other nodes take over one shard after the other. It
        holds until the node is drained no more, or starts again.
        """
        node = self._at
        node.is_drained = is_on
        with suppress(LodeqError):  # the next report says it, should this one fail
            await self._tell()  # first: the others give it nothing meanwhile
        for shard in self._shards if is_on else ():
            await shard.hand_over()
        for shard in self._shards:
            shard.wake.set()
        return [shard.shard for shard in self._shards if shard.holds_term]

    @property
    def wishes(self) -> Wishes:
        """What operators may want of placements."""
        return Wishes(self.log, self._copy_target)

    def lacks_checkpoint(self, last: Checkpoint | None) -> bool:
        """Whether nobody could start a copy of a shard that is here from this node's last one."""
        is_begun_with_a_store = self._genesis is not None and self._genesis.base > 0
        if self._hosted is None and not is_begun_with_a_store:
            return False
        for shard in range(len(self._shards)) if self._hosted is None else self._hosted:
            floor = self._shards[shard].seen.floor
            if floor > 1 and (last is None or index_of(last.applied, shard) + 1 < floor):
                return True
        return False

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Tell the others of a checkpoint of this node."""
        await self.log.publish(checkpoint)

    async def own_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of this node that the log names; None: there is none."""
        found = (one for one in await self.log.checkpoints() if one.node == self._name)
        return next(found, None)

    # -- looking -----------------------------------------------------------------------

    def problems(self) -> tuple[str, ...]:
        """What is wrong, in words for an operator; empty: nothing."""
        return problems_of(self._at, self._shards, self._copy_target)

    def member_urls(self) -> list[str]:
        """Where clients reach the live nodes; of those that say it."""
        members = self._at.members.by_name.values()
        return sorted({one.url for one in members if one.url} | ({self._url} - {""}))

    def status(self) -> ClusterStatus:
        """The cluster as this node sees it."""
        is_balancer = self._balancer is not None and self._balancer.is_balancer
        return status_of(
            self._at, self._shards, self._cluster, self._copy_target, is_balancer=is_balancer
        )

    @property
    def _copy_target(self) -> int:
        """Copies that each shard is to have; 0: one on every node."""
        return 0 if self._genesis is None else self._genesis.copies

    # -- closing -----------------------------------------------------------------------

    async def closing(self) -> None:
        """See ``Replicator.closing``."""
        if self._node is None:
            return
        node = self._node
        node.is_closing = True
        self.definite_s = 0.0
        node.waiting.clock.call_at(
            node.waiting.spawner, node.mono() + self.options.close_s, self._lose_all
        )

    def _lose_all(self) -> None:
        for shard in self._shards:
            shard.lose()

    async def closed(self) -> None:
        """See ``Replicator.closed``."""
        node = self._node
        if node is None:
            await self.log.close()
            return
        node.is_closing = True
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await task.join()
        self._tasks.clear()
        closing = [
            node.waiting.spawner.spawn(partial(self._close_group, log), "lodeq-log-closing")
            for log in node.groups
        ]
        for task in closing:
            await task.join()
        for shard in self._shards:
            await shard.proposals.close()
        await self._write_note()

    async def _close_group(self, log: SharedLog) -> None:
        await self._at.waiting.at_most(self.options.close_s, log.close, "lodeq-log-close")


async def _no_pin(index: int) -> None:
    """Nothing is reported before the store is open."""


def _check_level(genesis: Genesis) -> None:
    """Raise unless this release reads what the nodes of the cluster write."""
    if genesis.level > LEVEL or genesis.format > FORMAT:
        raise FormatTooNewError(
            f"the cluster {genesis.cluster!r} is at feature level {genesis.level} (format "
            f"{genesis.format}), and this release knows levels up to {LEVEL} (format {FORMAT}): "
            "upgrade lodeq on this node"
        )


def _check_shards(replica: Replica, shards: int) -> None:
    """Raise unless the store has as many shards as the cluster."""
    for shard, is_there in ((shards - 1, True), (shards, False)):
        try:
            with suppress(NotLeaderError):  # it is there, and not hosted here
                replica.applied(shard)
        except UsageError:
            if is_there:
                raise ShardCountError(
                    f"the cluster has {shards} shards, and this store has fewer: open it with "
                    f"shards={shards}",
                    requested=shards,
                ) from None
        else:
            if not is_there:
                raise ShardCountError(
                    f"the cluster has {shards} shards, and this store has more: open it with "
                    f"shards={shards}",
                    requested=shards,
                )
