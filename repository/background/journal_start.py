"""Where the lifecycle journal of a replica goes on, and what it may have missed.

Events travel in the entries, and each replica moves those that it applies to a journal of its own.
A replica that was copied from another one's checkpoint has not applied what came before it: those
events are in other journals only. So each journal has an identity, a file in its folder, and each
shard's store a row (``m/journal``) with that of the journal it moves events to. Where the two are
not the same, the rows are another replica's, or new, and the journal gets a mark: how far its
events may have a gap. Then the row is written. A crash in between repeats the mark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...engine.files.disk_errors import disk_error
from ...engine.files.durable_files import replace_file
from ...engine.files.paths import fsync_dir
from ...engine.records.events import encode_begin_row
from ...engine.records.frame import attempt
from ...engine.records.keyspace import APPLIED, EVENTS, EVENTS_END, JOURNAL, decode_events_key
from ...engine.records.rows import decode_journal, encode_journal
from ..state.queue_state import Shard

__all__ = ["begin_mark", "identity_of", "is_joined", "join", "leave"]

IDENTITY = "identity"
_BYTES = 16


def identity_of(folder: str, fresh: bytes) -> bytes:
    """The identity of the journal in ``folder``, which becomes ``fresh`` if it has none. Blocks.

    Raises:
        StorageError: it cannot be read or written.
    """
    path = os.path.join(folder, IDENTITY)
    try:
        with open(path, "rb") as file:
            found = file.read(_BYTES + 1)
        if len(found) == _BYTES:
            return found
    except FileNotFoundError:
        pass
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        replace_file(path, fresh)
        fsync_dir(folder)
    except OSError as error:
        raise disk_error(error, path) from error
    return fresh


def is_joined(shard: Shard, identity: bytes) -> bool:
    """Whether all events of the shard that have no row any more are in this journal."""
    return attempt(decode_journal, shard.store.get(JOURNAL)) == identity


def begin_mark(shard: Shard) -> bytes | None:
    """The journal's record for a shard that is not joined yet; None: nothing can be missing."""
    rows: Sequence[tuple[bytes, bytes]] = shard.store.scan(EVENTS, EVENTS_END, 1)
    if rows:
        last = decode_events_key(rows[0][0]) - 1
    elif shard.store.get(APPLIED) is None:
        return None
    else:
        last = shard.coalescer.applied_number
    return encode_begin_row(shard.index, last)


def join(shard: Shard, identity: bytes) -> None:
    """Say in the store that its events go to this journal, from its mark on."""
    group = shard.coalescer.begin_local()
    group.ops.append((JOURNAL, encode_journal(identity)))
    shard.coalescer.commit_local(group)


def leave(shard: Shard) -> None:
    """Say in the store of a replica that is opened without a journal that it keeps no events."""
    if shard.store.get(JOURNAL) is not None:
        group = shard.coalescer.begin_local()
        group.ops.append((JOURNAL, None))
        shard.coalescer.commit_local(group)
