"""Whether a load was made for this store, as it is."""

from __future__ import annotations

from typing import Final

from ...engine.bulk.manifest import KEYS, Manifest
from ...engine.records.keyspace import secret_fingerprint
from ...engine.records.rows import FORMAT_VERSION
from ...errors import FormatTooOldError, LodeqError, ShardCountError, UsageError
from ..state.engine_state import EngineState

__all__ = ["RefusedError", "check_manifest"]

SEQ_AHEAD_US_MAX: Final = 24 * 3600 * 1_000_000


class RefusedError(LodeqError):
    """A load will not be taken, and nothing of it is visible. ``error``: the kind of reason."""

    def __init__(self, message: str, error: type[LodeqError] = UsageError) -> None:
        super().__init__(message)
        self.error = error.__name__


def check_manifest(
    core: EngineState, store_id: bytes, manifest: Manifest, *, is_decided: bool
) -> None:
    """Whether a manifest and the store agree. ``is_decided``: a part of the load is in.

    Raises:
        RefusedError: they do not, and it says what to do.
    """
    if manifest.store_id != store_id:
        raise RefusedError(
            f"it was staged for store {manifest.store_id.hex()}, this is {store_id.hex()}: stage "
            "it for this one"
        )
    if manifest.shards != len(core.shards):
        raise RefusedError(
            f"it was staged for {manifest.shards} shards, the store has {len(core.shards)}: "
            "stage it again",
            ShardCountError,
        )
    if manifest.has_keys:
        _check_keyed(core, manifest)
    untold: dict[int, int] = {}
    for mark in manifest.files:
        sign = {"g": 1, KEYS: -1}.get(mark.family, 0)
        untold[mark.shard] = untold.get(mark.shard, 0) + sign * mark.rows
    if any(untold.values()):
        raise RefusedError(
            "its dedup keys and the files that tell of them do not agree: stage it again, with "
            "a keys file beside each of ghosts"
        )
    ahead_us = manifest.seq_max - core.clock.wall_us()
    if ahead_us > SEQ_AHEAD_US_MAX and not is_decided:  # then the clock was set back since
        raise RefusedError(
            f"its tasks are from {ahead_us // 3_600_000_000} hours ahead: set the clock where "
            "it is staged, and stage it again"
        )


def _check_keyed(core: EngineState, manifest: Manifest) -> None:
    if manifest.store_format < FORMAT_VERSION:
        raise RefusedError(
            f"its dedup keys were hashed as in format {manifest.store_format}, this store has "
            f"format {FORMAT_VERSION}: stage it again, with this release",
            FormatTooOldError,
        )
    if manifest.secret != secret_fingerprint(b"".join(shard.secret for shard in core.shards)):
        raise RefusedError(
            "its dedup keys were hashed with the secret of another store: stage it again, for "
            "this one"
        )
