"""A manifest comes back as it was, and nothing damaged or impossible does."""

import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.bulk.manifest import (
    FileMark,
    Manifest,
    ShardQueueRows,
    check_conflict,
    check_job,
    decode_manifest,
    encode_manifest,
)
from lodeq.engine.records.rows import FORMAT_VERSION
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.errors import CorruptionError, FormatTooNewError, UsageError

FILES = (
    FileMark(0, "t", "a-0-t0000.sst", 100, "0" * 32, 3, b"t/a", b"t/c"),
    FileMark(1, "keys", "a-1-keys", 64, "f" * 32, 1, b"\xff" * 16, b"\xff" * 16),
)
SHARD_QUEUES = (
    ShardQueueRows(0, "mail", "", ((5, 2, 17), (9, 1, 3)), 0, 0),
    ShardQueueRows(1, "mail", "acme", (), 4, 99),
)
MANIFEST = Manifest("job-1", bytes(range(16)), 2, "skip", 5, 17, FILES, SHARD_QUEUES, ((0, 7),))


TASK = IdSource(SeededRng(1)).new(1_700_000_000_000, 0)  # of shard 0
BODY = FileMark(0, "bodies", "a-0.sqs", 4 << 20, "1" * 32, 1, TASK, TASK)


def changed(**fields):
    """Its bytes with some fields changed, the checksum right."""
    body = json.loads(encode_manifest(MANIFEST))
    del body["xxh3_128"]
    body.update(fields)
    raw = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    body["xxh3_128"] = xxhash.xxh3_128_hexdigest(raw)
    return json.dumps(body).encode()


def test_it_comes_back_with_its_digest():
    back = decode_manifest(encode_manifest(MANIFEST), "m")
    assert back._replace(digest=b"") == MANIFEST
    assert len(back.digest) == 16
    assert back.digest != decode_manifest(encode_manifest(MANIFEST._replace(job="k")), "m").digest
    assert (back.tasks, back.size_bytes) == (7, 164)
    assert back.of_shard(1) == ([FILES[1]], [SHARD_QUEUES[1]])


def test_only_one_with_streamed_payloads_needs_this_release():
    assert json.loads(encode_manifest(MANIFEST))["version"] == 2
    with_body = MANIFEST._replace(files=(*FILES, BODY))
    assert json.loads(encode_manifest(with_body))["version"] == 3
    assert decode_manifest(encode_manifest(with_body), "m")._replace(digest=b"") == with_body


@given(st.data())
def test_damage_is_noticed(data):
    raw = bytearray(encode_manifest(MANIFEST))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptionError):
        decode_manifest(bytes(raw), "m")


@given(st.integers(0, 600))
def test_a_manifest_that_is_cut_off_is_noticed(size):
    raw = encode_manifest(MANIFEST)
    with pytest.raises(CorruptionError, match="stage the load again"):
        decode_manifest(raw[: min(size, len(raw) - 1)], "m")


@pytest.mark.parametrize(
    "fields",
    [
        {"files": [[0, "t", "../x.sst", 1, "0" * 32, 1, "742f61", "742f61"]]},
        {"files": [[0, "t", "x.sst", 1, "0" * 32, 1, "712f61", "712f61"]]},
        {"files": [[0, "t", "x.sst", 1, "0" * 32, 0, "742f61", "742f61"]]},
        {"files": [[0, "t", "x.sst", 1, "0" * 32, 1, "742f62", "742f61"]]},
        {"files": [[0, "m", "x.sst", 1, "0" * 32, 1, "6d2f61", "6d2f61"]]},
        {"files": [[2, "t", "x.sst", 1, "0" * 32, 1, "742f61", "742f61"]]},
        {"files": [[0, "t", "x.sst", 1, "0" * 32, 1, "742f61", "742f61"]] * 2},
        {"files": [[1, "bodies", "x.sqs", 99, "0" * 32, 1, TASK.hex(), TASK.hex()]]},
        {"files": [[0, "bodies", "x.sqs", 99, "0" * 32, 2, TASK.hex(), TASK.hex()]]},
        {"files": [[0, "bodies", "x.sqs", 99, "0" * 32, 1, TASK.hex(), "ff" * 16]]},
        {"files": [[0, "bodies", "x.sqs", 99, "0" * 32, 1, "00" * 16, "00" * 16]]},
        {"buckets": [[0, "Mail", "", [], 1, 1]]},
        {"buckets": [[0, "mail", "", [[10, 1, 1]], 0, 0]]},
        {"buckets": [[0, "mail", "", [[5, 1, 1], [5, 1, 1]], 0, 0]]},
        {"buckets": [[0, "mail", "", [[5, 1, 0]], 0, 0]]},
        {"buckets": [[0, "mail", "", [], 1, 0]]},
        {"buckets": [[0, "mail", "", [], 1, 1]] * 2},
        {"buckets": [[7, "mail", "", [], 1, 1]]},
        {"job": "../lock"},
        {"shards": 0},
        {"shards": 4097},
        {"conflict": "ignore"},
        {"seq_max": -1},
        {"staged_us": True},
        {"store_id": "00"},
        {"format": "lodeq-checkpoint"},
        {"files": 7},
    ],
)
def test_what_cannot_be_is_refused(fields):
    with pytest.raises(CorruptionError):
        decode_manifest(changed(**fields), "m")


@pytest.mark.parametrize("field", [{"version": 4}, {"store_format": FORMAT_VERSION + 1}])
def test_a_newer_one_is_refused_as_that(field):
    with pytest.raises(FormatTooNewError, match="upgrade"):
        decode_manifest(changed(**field), "m")


def test_one_of_format_1_has_no_fingerprint():
    body = json.loads(encode_manifest(MANIFEST._replace(secret=b"f" * 16)))
    assert decode_manifest(json.dumps(body).encode(), "m").secret == b"f" * 16
    del body["xxh3_128"], body["secret"]
    body["store_format"] = 1
    raw = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    body["xxh3_128"] = xxhash.xxh3_128_hexdigest(raw)
    old = decode_manifest(json.dumps(body).encode(), "m")
    assert (old.store_format, old.secret, old.has_keys) == (1, bytes(16), True)


@pytest.mark.parametrize("job", ["", ".", "a/b", "-a", "a" * 129, 7, "a\n"])
def test_names_of_jobs(job):
    with pytest.raises(UsageError, match="job"):
        check_job(job)
    assert check_job("A.b_c-9") == "A.b_c-9"


def test_policies():
    assert check_conflict("replace") == "replace"
    with pytest.raises(UsageError, match="skip"):
        check_conflict("return")
