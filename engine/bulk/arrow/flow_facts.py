"""Rows of workflows as arrays, for an audit: joins, parts, edges, outbox rows.

Half of what ties them together are pairs: this task and that join. Such a pair is one hash here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from xxhash import xxh3_128_digest

from ....errors import RecordCorruptError
from ...records import keyspace as ks
from ...records.workflow import (
    EDGES,
    FLOW_ID,
    JOIN,
    NO_ID,
    OUTBOX_JOIN,
    OUTBOX_SOURCE,
    PART,
    PART_JOIN,
    PART_NUMBER,
    TARGET_ROLE,
    decode_edges,
    decode_join,
    decode_outbox,
    decode_part,
    flow_slot_id,
)
from .facts import Facts, Keys, Table
from .page import Numbers

__all__ = ["FlowFacts", "read_flows"]


class FlowFacts(NamedTuple):
    """Rows of ``w/`` and ``u/`` of one shard.

    - ``routed``: ids whose slots say where each row belongs
    - ``joins``: by their ids, with the fields of their records; ``targets`` are their targets
    - ``parts``: by the tasks they are about; ``joins_of_parts``, and ``pairs_of_parts``
    - ``edges``: one row for each task, by its id; ``part_edges`` are pairs, ``targets_of`` the
      tasks that have an edge as a target, ``target_joins`` the joins that these edges name
    - ``sent``: outbox rows by the task that has ended; ``joins_of_sent``, and their pairs
    """

    routed: dict[str, Keys]
    joins: Table
    targets: Keys
    parts: Table
    joins_of_parts: Keys
    pairs_of_parts: Keys
    edges: Keys
    part_edges: Keys
    targets_of: Keys
    target_joins: Keys
    sent: Keys
    joins_of_sent: Keys
    pairs_of_sent: Keys
    lines_of_sent: Keys


def _pair(task_id: bytes, number: int, join: bytes) -> bytes:
    return xxh3_128_digest(b"%b%b%d" % (task_id, join, number))


def _line(task_id: bytes, join: bytes) -> bytes:
    return xxh3_128_digest(b"%b%b" % (task_id, join))


def _numbers(rows: list[tuple[int, ...]], width: int) -> Numbers:
    return np.array(rows, np.int64).reshape(len(rows), width)


def read_flows(facts: Facts) -> FlowFacts:
    """Read all rows of workflows. Those that do not decode are reported, and left out."""
    joins: list[bytes] = []
    targets: list[bytes] = []
    records: list[tuple[int, ...]] = []
    sources: list[bytes] = []
    joins_of: list[bytes] = []
    pairs: list[bytes] = []
    ends: list[tuple[int, ...]] = []
    edged: list[bytes] = []
    part_edges: list[bytes] = []
    targets_of: list[bytes] = []
    target_joins: list[bytes] = []
    routed: dict[str, list[bytes]] = {"w/": [], "u/": []}
    for rows in facts.sound_rows(ks.FLOWS, ks.FLOWS_END):
        for key, value in rows:
            routed["w/"].append(flow_slot_id(key, value))
            if key.startswith(JOIN):
                join = decode_join(value)
                joins.append(key[FLOW_ID])
                targets.append(join.target)
                numbers = join.parts, join.ended, join.failed
                head = join.state, join.on_failure, join.flags, join.workflow != NO_ID
                records.append((*head, *numbers))
            elif key.startswith(PART):
                part, number = decode_part(value), int.from_bytes(key[PART_NUMBER], "big")
                sources.append(part.source)
                joins_of.append(key[PART_JOIN])
                pairs.append(_pair(part.source, number, key[PART_JOIN]))
                ends.append((part.status, number))
            elif key.startswith(EDGES):
                edged.append(key[FLOW_ID])
                for edge in decode_edges(value):
                    if edge.role == TARGET_ROLE:
                        targets_of.append(key[FLOW_ID])
                        target_joins.append(edge.join)
                    else:
                        part_edges.append(_pair(key[FLOW_ID], edge.number, edge.join))
    sent: list[bytes] = []
    joins_of_sent: list[bytes] = []
    pairs_of_sent: list[bytes] = []
    lines: list[bytes] = []
    for rows in facts.sound_rows(ks.OUTBOX, ks.OUTBOX_END):
        for key, value in rows:
            source, named = key[OUTBOX_SOURCE], key[OUTBOX_JOIN]
            routed["u/"].append(source)
            sent.append(source)
            joins_of_sent.append(named)
            pairs_of_sent.append(_pair(source, decode_outbox(value).number, named))
            lines.append(_line(source, named))
    names = ("state", "on_failure", "flags", "in_workflow", "parts", "ended", "failed")
    table = _numbers(records, len(names))
    part_table = _numbers(ends, 2)
    lines_of_parts = [_line(*one) for one in zip(sources, joins_of, strict=True)]
    line_keys = _keys(lines)
    was_sent = line_keys.find(_keys(lines_of_parts)) >= 0
    return FlowFacts(
        {family: _keys(ids) for family, ids in routed.items()},
        Table(_keys(joins), {name: table[:, i] for i, name in enumerate(names)}),
        _keys(targets),
        Table(
            _keys(sources),
            {"status": part_table[:, 0], "number": part_table[:, 1], "was_sent": was_sent},
        ),
        _keys(joins_of),
        _keys(pairs),
        _keys(edged),
        _keys(part_edges),
        _keys(targets_of),
        _keys(target_joins),
        _keys(sent),
        _keys(joins_of_sent),
        _keys(pairs_of_sent),
        line_keys,
    )


def _keys(ids: list[bytes]) -> Keys:
    if any(len(one) != 16 for one in ids):
        raise RecordCorruptError("a row of a workflow names no id")
    return Keys(b"".join(ids))
