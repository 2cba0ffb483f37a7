"""Targets: what loads leave in a store, and the manifest they are published by."""

import json
import random

import xxhash
from fuzz.target import Target, _id, _q

from lodeq.engine.bulk import manifest as mf
from lodeq.engine.records import ingest
from lodeq.engine.records.frame import seal
from lodeq.errors import CorruptionError, FormatTooNewError, RecordCorruptError

__all__ = ["LOADS"]


def _reseal(raw: bytes) -> bytes:
    return seal(raw[:-8]) if len(raw) >= 8 else raw


def _name(rng: random.Random) -> bytes:
    return rng.choice((b"a", b"mail", b"a.b-c_9", b"q" * 64))


def _n(rng: random.Random) -> int:
    return rng.randrange(1, 1 << 62)


def _ingested(rng: random.Random) -> bytes:
    return ingest.encode_ingested(ingest.Ingested(_q(rng), _id(rng), _q(rng), _q(rng), _q(rng)))


def _uncounted(rng: random.Random) -> bytes:
    rows = [
        ingest.LoadedRows(_name(rng), rng.choice((b"", _name(rng))), _q(rng), _q(rng))
        for _ in range(rng.randrange(4))
    ]
    return ingest.encode_uncounted(_q(rng), rows)


def _manifest(rng: random.Random) -> bytes:
    shards = rng.randrange(1, 4)
    files = tuple(
        mf.FileMark(
            shard,
            family,
            f"{family}-{shard}.sst",
            _q(rng),
            _id(rng).hex(),
            _n(rng),
            family.encode() + b"/a",
            family.encode() + b"/b",
        )
        for shard in range(shards)
        for family in ("g", "q", "t")
    )
    shard_queues = tuple(
        mf.ShardQueueRows(
            shard,
            "mail",
            rng.choice(("", "acme")),
            ((5, _n(rng), _n(rng)),),
            *rng.choice(((0, 0), (3, 1_700_000_000_000))),
        )
        for shard in range(shards)
    )
    return mf.encode_manifest(
        mf.Manifest(
            "job-1", _id(rng), shards, "skip", _q(rng), _q(rng), files, shard_queues, ((0, 7),)
        )
    )


def _fix_manifest(raw: bytes) -> bytes:
    try:
        body = json.loads(raw)
        body.pop("xxh3_128", None)
        body["xxh3_128"] = xxhash.xxh3_128_hexdigest(mf._canonical(body))
        return mf._canonical(body)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return raw


def _decode_manifest(raw: bytes) -> mf.Manifest:
    # The digest is that of the bytes, which may have fields of a later minor version.
    return mf.decode_manifest(raw, "a manifest")._replace(digest=b"")


LOADS = {
    "ingested": Target(
        ("engine.records.ingest.decode_ingested",),
        _ingested,
        ingest.decode_ingested,
        ingest.encode_ingested,
        (RecordCorruptError,),
        fix=_reseal,
    ),
    "uncounted": Target(
        ("engine.records.ingest.decode_uncounted",),
        _uncounted,
        ingest.decode_uncounted,
        lambda v: ingest.encode_uncounted(*v),
        (RecordCorruptError,),
        fix=_reseal,
    ),
    "load": Target(
        ("engine.bulk.manifest.decode_manifest",),
        _manifest,
        _decode_manifest,
        mf.encode_manifest,
        (CorruptionError, FormatTooNewError),
        fix=_fix_manifest,
        rate=0.3,
    ),
}
