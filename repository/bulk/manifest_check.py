"""Checks whether a load was staged for this store as it is now."""

from __future__ import annotations

from typing import Final

from ...engine.bulk.manifest import IDS, KEYS, Manifest
from ...engine.records.keyspace import secret_fingerprint
from ...engine.records.rows import FORMAT_KEYED, FORMAT_VERSION
from ...errors import FormatTooOldError, LodeqError, ShardCountError, UsageError
from ..state.engine_state import EngineState

__all__ = ["RefusedError", "check_manifest"]

SEQ_AHEAD_US_MAX: Final = 24 * 3600 * 1_000_000


class RefusedError(LodeqError):
    """A load is refused, and nothing of it is visible. ``error``: name of the error's class."""

    def __init__(self, message: str, error: type[LodeqError] = UsageError) -> None:
        super().__init__(message)
        self.error = error.__name__


def check_manifest(
    state: EngineState, store_id: bytes, manifest: Manifest, *, is_decided: bool
) -> None:
    """Check that a manifest fits this store.

    Args:
        state: the engine's state.
        store_id: the store's 16 bytes.
        manifest: the load's manifest.
        is_decided: a part of the load is in: its times may be ahead of a clock set back since.

    Raises:
        RefusedError: it does not fit; the message says what to do.
    """
    if manifest.store_id != store_id:
        raise RefusedError(
            f"it was staged for store {manifest.store_id.hex()}, this is {store_id.hex()}: stage "
            "it for this one"
        )
    if manifest.shards != len(state.shards):
        raise RefusedError(
            f"it was staged for {manifest.shards} shards, the store has {len(state.shards)}: "
            "stage it again",
            ShardCountError,
        )
    if manifest.has_keys:
        _check_keyed(state, manifest)
    if _differ(manifest, "g", KEYS):
        raise RefusedError(
            "its dedup entries and its keys files differ in number: stage it again, with a keys "
            "file beside each file of dedup entries"
        )
    if manifest.has_ids and _differ(manifest, "t", IDS):
        raise RefusedError(
            "its tasks and its ids files differ in number: stage it again, with an ids file "
            "beside each file of tasks"
        )
    ahead_us = manifest.seq_max - state.clock.wall_us()
    if ahead_us > SEQ_AHEAD_US_MAX and not is_decided:  # else the clock was set back since
        raise RefusedError(
            f"its tasks are {ahead_us // 3_600_000_000} hours in the future: set the clock where "
            "it is staged, and stage it again"
        )


def _differ(manifest: Manifest, family: str, listing: str) -> bool:
    """Whether any shard has other numbers of these rows and of what lists them."""
    surplus: dict[int, int] = {}
    for mark in manifest.files:
        sign = {family: 1, listing: -1}.get(mark.family, 0)
        surplus[mark.shard] = surplus.get(mark.shard, 0) + sign * mark.rows
    return any(surplus.values())


def _check_keyed(state: EngineState, manifest: Manifest) -> None:
    if manifest.store_format < FORMAT_KEYED:
        raise RefusedError(
            f"its dedup keys were hashed as in format {manifest.store_format}, this store has "
            f"format {FORMAT_VERSION}: stage it again, with this release",
            FormatTooOldError,
        )
    if manifest.secret != secret_fingerprint(b"".join(shard.secret for shard in state.shards)):
        raise RefusedError(
            "its dedup keys were hashed with the secret of another store: stage it again, for "
            "this one"
        )
