# Generated from client/cluster/claims.py by make twins; do not edit.
"""Claims from a queue whose tasks several nodes have.

A claim asks the leaders in turn, a different one first each time, and takes what each has until it
has enough: so no more leases are out than it may have. Only when nobody has anything does it wait,
on all of them at once, until one says that there is something; nothing is leased by that.

A node that is lost may have granted what nobody has heard of: the claim is taken back there, if it
answers, and goes on with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ....engine.runtime.ids import SystemRng
from ....errors import LodeqError, NotLeaderError, UnreachableError
from ... import calls
from ...calls import CANCEL_CLAIM_S, CLAIM_ID_BYTES, Call
from ...cluster.target import Patience
from .nodes import STALE_S, SyncNodes
from .together import Take, at_last, first_true, pause

__all__ = ["claim", "claim_in_turn", "take_back"]

_rng: Final = SystemRng()
DEAD_LOOK_S: Final = 1.0  # between two looks of a claim that waits for dead letters


def claim(nodes: SyncNodes, call: Call) -> Any:
    """Claim up to ``limit`` tasks, and wait once where there are none.

    The wait is short enough to meet a new leader soon; who wants more asks again.

    Raises:
        LodeqError: what a leader refused, if nothing was claimed; or that none answers.
    """
    # A look at several leaders tells of any task, and an older node knows no such member.
    given = {name: value for name, value in call.doc.items() if name != "skip_functions"}

    def take(node: str, limit: int, wait_s: float) -> list[Any]:
        doc = {**given, "wait": wait_s, "limit": limit}
        try:
            answer = nodes.ask(node, call._replace(doc=doc, wait_s=wait_s))
        except UnreachableError:
            take_back(nodes, node, call.doc.get("claim_id"))
            raise
        leases: list[Any] = answer["leases"]
        return leases

    return {"leases": claim_in_turn(nodes, call.doc, take)}


def claim_in_turn(nodes: SyncNodes, doc: Mapping[str, Any], take: Take) -> list[Any]:
    """The leases of a claim, whichever way each node is asked.

    Args:
        nodes: of the cluster.
        doc: the claim, as ``POST /leases/claim`` takes it.
        take: claims at one node, and takes back what was lost on the way.

    Raises:
        LodeqError: what a leader refused, if nothing was claimed; or that none answers.
    """
    wait_s = min(doc["wait"], STALE_S)
    order = nodes.leaders()
    if len(order) == 1:
        try:
            return take(order[0], doc["limit"], wait_s)
        except (NotLeaderError, UnreachableError):
            order = nodes.leaders()
    patience = Patience(nodes.patience_s)
    while True:
        try:
            leases = _sweep(nodes, doc["limit"], take, order)
            break
        except (NotLeaderError, UnreachableError):  # nobody has answered: an election, it may be
            if patience.is_over:
                raise
            nodes.topology.is_stale = True
            pause(patience.next_s())
            order = nodes.leaders()
    order = nodes.topology.leading() or order
    if not leases and wait_s > 0 and doc.get("dead"):  # nobody is told when a task dies elsewhere
        pause(min(wait_s, DEAD_LOOK_S))
        return _sweep(nodes, doc["limit"], take, nodes.leaders())
    if not leases and wait_s > 0:
        ready = _wait(nodes, doc, order, wait_s)
        if ready is not None:
            order = sorted(nodes.leaders(), key=lambda node: node != ready)
            leases = _sweep(nodes, doc["limit"], take, order)
    return leases


def _sweep(nodes: SyncNodes, limit: int, take: Take, order: list[str]) -> list[Any]:
    """Claim at one leader after another, without waiting; then at who leads instead of one."""
    leases: list[Any] = []
    failure: LodeqError | None = None
    n_answers, asked = 0, set(order)
    while order:
        is_moved = False
        for node in order:
            try:
                leases += take(node, limit - len(leases), 0.0)
            except (NotLeaderError, UnreachableError) as error:
                failure = failure or error
                is_moved = True
                continue
            except LodeqError:
                if not leases:
                    raise
                return leases  # those that are granted are somebody's
            n_answers += 1
            if len(leases) >= limit:
                return leases
        if is_moved:
            try:
                nodes.refresh()
            except LodeqError:
                if not leases:
                    raise
                return leases
        order = [one for one in nodes.topology.leading() if one not in asked] if is_moved else []
        asked.update(order)
    if failure is not None and not n_answers:
        raise failure
    return leases


def take_back(nodes: SyncNodes, node: str, claim_id: bytes | None) -> None:
    """A claim whose answer was lost must not hold tasks that nobody works on.

    Nothing is asked of a node that is silent: others lead what it led, and its connection is cut.
    """
    if claim_id is not None and not nodes.topology.is_doubted(node):
        at_last(partial(nodes.ask, node, calls.cancel_claim(claim_id)), CANCEL_CLAIM_S)


def _wait(nodes: SyncNodes, doc: Mapping[str, Any], order: list[str], wait_s: float) -> str | None:
    """The first leader that has something; nothing is taken. None: none has within the time."""
    ids = [_rng.bytes(CLAIM_ID_BYTES) for _ in order]

    def ready(n: int) -> bool:
        asked = {"queues": doc["queues"], "wait": wait_s, "claim_id": ids[n]}
        if "skip_tenants" in doc:
            asked["skip_tenants"] = doc["skip_tenants"]
        call = Call("POST", "/leases/ready", asked, wait_s=wait_s, is_repeatable=True)
        is_ready: bool = (nodes.ask(order[n], call))["ready"]
        return is_ready

    def stop(n: int) -> None:
        nodes.ask(order[n], calls.cancel_claim(ids[n]))

    first = first_true([partial(ready, n) for n in range(len(order))], stop)
    return None if first is None else order[first]
