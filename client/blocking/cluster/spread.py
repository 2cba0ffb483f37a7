# Generated from client/cluster/spread.py by make twins; do not edit.
"""Calls that concern several shards: sent to their leaders, and put together again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ....errors import (
    ClosedError,
    CommitUnknownError,
    IncompleteError,
    LodeqError,
    NotLeaderError,
    UnreachableError,
    UsageError,
)
from ....repository.model.filters import FILTER_STATES, Cursor, start_of
from ....repository.model.tally import Tally
from ...calls import REDRIVE_ERRORS, Call
from ...cluster.merge import found, n_done, with_done
from ...cluster.target import Patience, scoped, worse
from ...transport.target import Doubt
from .enqueues import is_keyed
from .nodes import MAP, SyncNodes
from .together import gather, pause

__all__ = ["act", "all_nodes", "anywhere", "find", "redrive", "split", "whole"]

Docs = Sequence[Mapping[str, Any]]
_CURSOR: Final = re.compile(r"(\d{1,4}):(.*)", re.DOTALL)
_NO_ANSWER: Final = NotLeaderError, UnreachableError, CommitUnknownError
HEARTBEAT_S: Final = 5.0  # for a leader that does not answer, or is not there


# -- all shards --------------------------------------------------------------------------


def whole(nodes: SyncNodes, call: Call, merge: Callable[[Call, Docs], Any]) -> Any:
    """Ask the leaders of all shards, each about its own.

    Args:
        nodes: of the cluster.
        call: without shards.
        merge: puts the answers together.

    Raises:
        IncompleteError: the leaders of some shards were not found in time.
        LodeqError: what a leader refused, once all others have answered; rather that the outcome
            of one is unknown.
    """
    answers: list[Any] = []
    with Tally() as tally:
        try:
            failure, left, last = _ask_leaders(nodes, call, answers, tally)
            if failure is not None:
                raise failure
            if left and not answers:
                raise last or UnreachableError(
                    f"{nodes.target.url}: no shard of the cluster has a leader"
                )
            if left:
                raise IncompleteError(
                    f"incomplete: shards {sorted(left)} have no leader that answers ({last}); "
                    "'found' is what the others have: repeat the call later",
                    shards=tuple(sorted(left)),
                    found=with_done(call, merge(call, answers), tally.count),
                )
            return with_done(call, merge(call, answers), tally.count)
        except LodeqError:
            tally.count += n_done(call, answers)
            raise


def _ask_leaders(
    nodes: SyncNodes, call: Call, answers: list[Any], tally: Tally
) -> tuple[LodeqError | None, set[int], LodeqError | None]:
    """Ask the leaders of all shards. Returns what one refused, whose is left, and why.

    Args:
        nodes: of the cluster.
        call: without shards.
        answers: gets them.
        tally: gets what was done by those that failed in the middle.
    """
    nodes.refresh()
    left = set(range(nodes.topology.shards))
    failure: LodeqError | None = None
    last: LodeqError | None = None
    patience = Patience(nodes.patience_s)
    while left:
        groups = nodes.topology.by_leader(left)
        asks = [partial(nodes.ask, node, scoped(call, shards)) for node, shards in groups.items()]
        outcomes = gather(asks) if asks else []
        for (node, shards), outcome in zip(groups.items(), outcomes, strict=True):
            if isinstance(outcome, LodeqError):
                tally.take(outcome)
            if isinstance(outcome, NotLeaderError):
                nodes.topology.refused(node, shards, outcome.leader)
                last = outcome
            elif isinstance(outcome, UnreachableError):
                last = outcome
            elif isinstance(outcome, LodeqError):
                failure = worse(failure, outcome)
                left -= set(shards)
            else:
                answers.append(outcome)
                left -= set(shards)
        if not left or patience.is_over:
            break
        nodes.topology.is_stale = True
        pause(patience.next_s())
        nodes.refresh()
    return failure, left, last


def all_nodes(nodes: SyncNodes, call: Call, merge: Callable[[Call, Docs], Any]) -> Any:
    """Ask every node that is known.

    Args:
        nodes: of the cluster.
        call: the same for all.
        merge: puts the answers together.

    Raises:
        LodeqError: the first node that refused or did not answer, once the others have. Asked how
            it is, one that does not answer is part of the answer.
    """
    nodes.refresh()
    known = list(nodes.topology.urls)
    outcomes = gather([partial(nodes.ask, node, call) for node in known])
    answers: list[Any] = []
    failure: LodeqError | None = None
    for node, outcome in zip(known, outcomes, strict=True):
        if not isinstance(outcome, LodeqError):
            answers.append(outcome)
        elif call.path == "/health" and not isinstance(outcome, UsageError | ClosedError):
            url = nodes.topology.urls[node]
            answers.append({"ok": False, "reasons": [f"{url} does not answer: {outcome}"]})
        else:
            failure = failure or outcome
    if failure is not None and (call.path != "/leases/cancel_claim" or not answers):
        raise failure
    return merge(call, answers)


def _begin(nodes: SyncNodes, start: bytes = b"") -> str:
    """The cursor of a search that begins now: the latest moment of all leaders.

    Their clocks and sequence numbers differ. With the latest no task is passed over that is there.

    Args:
        nodes: of the cluster.
        start: of a search that goes the oldest first, as ``Cursor`` has it.
    """
    asks = [partial(nodes.ask, node, MAP) for node in nodes.leaders()]
    maps = [one for one in gather(asks) if not isinstance(one, LodeqError)]
    started_us = max((one["now_us"] for one in maps), default=0)
    seq = max((one["seq"] for one in maps), default=0)
    if not maps:
        raise UnreachableError(f"{nodes.target.url}: no node of the cluster answers")
    return Cursor("", FILTER_STATES[0], b"", started_us, seq, start).text()


def find(nodes: SyncNodes, call: Call) -> Any:
    """A page of a search; every node goes on from the same place."""
    if call.doc["cursor"] is None:
        start = start_of(call.doc.get("after"), call.doc.get("oldest_first", False))
        call = call._replace(doc={**call.doc, "cursor": _begin(nodes, start)})
    return whole(nodes, call, found)


def act(nodes: SyncNodes, call: Call) -> Any:
    """One slice of an act: of one shard; its cursor names the shard where the next begins."""
    nodes.refresh()
    shards = nodes.topology.shards
    cursor = call.doc["cursor"]
    if cursor is None:
        at, inner = 0, _begin(nodes)
    else:
        named = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if named is None or int(named[1]) >= shards:
            raise UsageError(f"cursor {cursor!r:.80} is not one: take it from the page before")
        at, inner = int(named[1]), named[2]
    begin = replace(Cursor.of(inner), queue="", state=FILTER_STATES[0], position=b"").text()
    skipped = 0
    refused: dict[str, str] = {}
    with Tally() as tally:
        while True:
            left = call.doc["limit"] - tally.count - skipped - len(refused)
            doc = {**call.doc, "cursor": inner, "limit": left}
            report = nodes.follow(scoped(call._replace(doc=doc), [at]), at)
            tally.count += report["done"]
            skipped += report["skipped"]
            refused |= report["refused"]
            is_through = report["cursor"] is None
            at, inner = (at + 1, begin) if is_through else (at, report["cursor"])
            more = None if at == shards else f"{at}:{inner}"
            is_full = tally.count + skipped + len(refused) >= call.doc["limit"]
            if more is None or not is_through or is_full:
                return {
                    "done": tally.count,
                    "skipped": skipped,
                    "refused": refused,
                    "cursor": more,
                }


def redrive(nodes: SyncNodes, call: Call) -> Any:
    """Redrive named tasks, each at the leader of its shard."""
    nodes.refresh()
    by_shard: dict[int, list[bytes]] = {}
    for one in call.doc["ids"]:
        by_shard.setdefault(nodes.topology.shard_of(one), []).append(one)
    if not by_shard:
        by_shard[0] = []
    parts = [
        partial(nodes.follow, call._replace(doc={**call.doc, "ids": ids}), shard)
        for shard, ids in by_shard.items()
    ]
    tally = Tally()
    problem: LodeqError | None = None
    for outcome in gather(parts):
        if isinstance(outcome, LodeqError):
            tally.take(outcome)
        if not isinstance(outcome, LodeqError):
            tally.count += outcome["redriven"]
        elif problem is None or isinstance(problem, REDRIVE_ERRORS):
            problem = outcome  # what says more than that one task could not be
        else:
            problem = worse(problem, outcome)
    with tally:
        if problem is not None:
            raise problem
    return {"redriven": tally.count}


# -- many leases -------------------------------------------------------------------------


def split(nodes: SyncNodes, call: Call) -> Any:
    """Heartbeats or ends of many leases, each at the leader of its shard.

    Of heartbeats that reached no leader in time ``unknown`` has the positions: those leases are not
    lost by that.

    Raises:
        LodeqError: of the first part that failed, once all others are answered; rather of one
            whose outcome is unknown.
    """
    nodes.refresh()
    leases = call.doc["leases"]
    is_beat = call.path.endswith("heartbeat_many")
    by_shard: dict[int, list[int]] = {}
    for n, lease in enumerate(leases):
        by_shard.setdefault(nodes.topology.shard_of(lease["task_id"]), []).append(n)
    patience_s = min(nodes.patience_s, HEARTBEAT_S) if is_beat else None
    timeout_s = min(nodes.target.timeout_s, HEARTBEAT_S) if is_beat else call.timeout_s
    parts = [
        partial(
            nodes.follow,
            call._replace(
                doc={**call.doc, "leases": [leases[n] for n in places]}, timeout_s=timeout_s
            ),
            shard,
            patience_s=patience_s,
        )
        for shard, places in by_shard.items()
    ]
    outcomes = gather(parts) if parts else []
    lost: dict[str, str] = {}
    deadlines: list[Any] = [None] * len(leases)
    unknown: list[int] = []
    failure: LodeqError | None = None
    for places, outcome in zip(by_shard.values(), outcomes, strict=True):
        if isinstance(outcome, LodeqError):
            is_unknown = is_beat and isinstance(outcome, _NO_ANSWER)
            unknown += places if is_unknown else ()
            failure = failure if is_unknown else worse(failure, outcome)
            continue
        lost |= {str(places[int(n)]): why for n, why in outcome["lost"].items()}
        unknown += [places[n] for n in outcome.get("unknown", ())]
        for n, deadline in zip(places, outcome.get("deadlines", ()), strict=False):
            deadlines[n] = deadline
    if failure is not None:
        raise failure
    return {"lost": lost, "deadlines": deadlines, "unknown": unknown}


# -- new tasks ---------------------------------------------------------------------------


def anywhere(nodes: SyncNodes, call: Call, first: str | None = None) -> Any:
    """A call that any leader may take; a refusal says who takes it where a key decides.

    Args:
        nodes: of the cluster.
        call: without shards.
        first: the identity of the node to begin with; None: the next in turn.

    Raises:
        NotLeaderError, UnreachableError: nobody took it in time.
        CommitUnknownError: its answer was lost, and it has no key or nobody was found any more.
    """
    is_repeatable = call.is_repeatable or is_keyed(call.doc or {})
    patience = Patience(nodes.patience_s)
    node = first or (nodes.leaders())[0]
    with Doubt() as doubt:
        while True:
            try:
                return nodes.ask(node, call)
            except NotLeaderError as error:
                following, last = nodes.topology.known(error.leader), error
            except UnreachableError as error:
                following, last = None, error  # type: ignore[assignment]
            except CommitUnknownError as error:
                if not is_repeatable:
                    raise
                doubt.of(error)
                following, last = None, error  # type: ignore[assignment]
            if patience.is_over:
                raise last
            pause(patience.next_s())
            if following is None:
                nodes.pass_on()
            node = following or (nodes.leaders())[0]
