"""The small files of LedgerQ: what is written is what Go writes, what is read is bounded."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.errors import SegmentCorruptError, UsageError
from lodeq.segments.formats.ledgerq import state
from lodeq.segments.formats.ledgerq.state import (
    DedupEntry,
    DedupState,
    GoTime,
    Metadata,
    RetryEntry,
    RetryState,
    decode_dedup,
    decode_metadata,
    decode_retry,
    encode_dedup,
    encode_metadata,
    encode_retry,
    format_time,
    parse_time,
)

NOW = 1_700_000_000_123_456_789
KEY = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
RETRY = """{
  "version": 1,
  "max_retries": 3,
  "entries": [
    {
      "msg_id": 4,
      "retry_count": 2,
      "last_failure": "2023-11-15T03:58:20.123456789+05:45",
      "failure_reason": "a \\u003cb\\u003e \\u0026 \\"c\\"\\n\\u2028é\\u0001"
    },
    {
      "msg_id": 18446744073709551615,
      "retry_count": 1,
      "last_failure": "2023-11-14T22:13:20Z"
    }
  ]
}"""
RETRY_STATE = RetryState(
    3,
    (
        RetryEntry(4, 2, GoTime(NOW, 345), 'a <b> & "c"\n\u2028é\x01'),
        RetryEntry(2**64 - 1, 1, GoTime(1_700_000_000_000_000_000)),
    ),
)
DEDUP = f"""{{
  "version": 1,
  "entries": [
    {{
      "dedup_id": "{KEY}",
      "message_id": 7,
      "offset": 64,
      "enqueued_at": 1700000000123456789,
      "expires_at": 1700000300123456789
    }}
  ]
}}"""
DEDUP_STATE = DedupState((DedupEntry(KEY, 7, NOW, NOW + 300_000_000_000, 64),))
u64 = st.integers(1, 2**64 - 1)
times = st.builds(
    GoTime, st.integers(-62_000_000_000 * 10**9, 250_000_000_000 * 10**9), st.integers(-1439, 1439)
)


class TestMetadata:
    def test_bytes(self) -> None:
        raw = bytes.fromhex("01000000 0800000000000000 0300000000000000 00000000")
        assert decode_metadata(raw) == Metadata(next_id=8, read_id=3)
        assert encode_metadata(Metadata(8, 3)) == raw

    @given(st.builds(Metadata, u64, u64))
    def test_what_is_encoded_comes_back(self, metadata: Metadata) -> None:
        assert decode_metadata(encode_metadata(metadata)) == metadata

    @pytest.mark.parametrize(
        ("at", "value"), [(0, 2), (1, 1), (4, 0), (12, 0), (20, 1)], ids="vvnrz"
    )
    def test_anything_else(self, at: int, value: int) -> None:
        raw = bytearray(encode_metadata(Metadata(1, 1)))
        raw[at] = value
        with pytest.raises(SegmentCorruptError):
            decode_metadata(bytes(raw))

    def test_another_size(self) -> None:
        raw = encode_metadata(Metadata(1, 1))
        for bad in (raw[:-1], raw + b"\0", b""):
            with pytest.raises(SegmentCorruptError):
                decode_metadata(bad)

    @pytest.mark.parametrize("metadata", [Metadata(0, 1), Metadata(1, 0), Metadata(1 << 64, 1)])
    def test_ids_that_are_none(self, metadata: Metadata) -> None:
        with pytest.raises(UsageError):
            encode_metadata(metadata)


class TestTime:
    @pytest.mark.parametrize(
        ("text", "time"),
        [
            ("1970-01-01T00:00:00Z", GoTime(0)),
            ("2023-11-14T22:13:20.123456789Z", GoTime(NOW)),
            ("2023-11-15T03:58:20.1+05:45", GoTime(1_700_000_000_100_000_000, 345)),
            ("2023-11-14T14:13:20-08:00", GoTime(1_700_000_000_000_000_000, -480)),
            ("1969-12-31T23:59:59.999999999Z", GoTime(-1)),
            ("0001-01-01T00:00:00Z", GoTime(-62_135_596_800_000_000_000)),
            ("2024-02-29T12:00:00.000000001Z", GoTime(1_709_208_000_000_000_001)),
        ],
    )
    def test_as_go_writes_it(self, text: str, time: GoTime) -> None:
        assert parse_time(text) == time
        assert format_time(time) == text

    @given(times)
    def test_what_is_written_comes_back(self, time: GoTime) -> None:
        assert parse_time(format_time(time)) == time

    def test_other_ways_to_write_it(self) -> None:
        assert parse_time("2023-11-14T22:13:20.000+00:00") == parse_time("2023-11-14T22:13:20Z")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14 22:13:20Z",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-11-14T24:00:00Z",
            "2023-11-14T22:60:00Z",
            "2023-11-14T22:13:60Z",
            "2023-11-14T22:13:20.Z",
            "2023-11-14T22:13:20.1234567890Z",
            "2023-11-14T22:13:20+24:00",
            "2023-11-14T22:13:20+01:60",
            "0000-01-01T00:00:00Z",
            "\uff12023-11-14T22:13:20Z",
            "2023-11-14T22:13:20Z\n",
        ],
    )
    def test_what_is_no_time(self, text: str) -> None:
        with pytest.raises(SegmentCorruptError):
            parse_time(text)

    @pytest.mark.parametrize("ns", [10**30, -(10**30), 253_402_300_800 * 10**9])
    def test_beyond_the_calendar(self, ns: int) -> None:
        with pytest.raises(UsageError):
            format_time(GoTime(ns))


class TestJson:
    def test_retry(self) -> None:
        assert decode_retry(RETRY.encode()) == RETRY_STATE
        assert encode_retry(RETRY_STATE).decode() == RETRY

    def test_dedup(self) -> None:
        assert decode_dedup(DEDUP.encode()) == DEDUP_STATE
        assert encode_dedup(DEDUP_STATE).decode() == DEDUP

    def test_without_an_offset(self) -> None:
        """So wrote LedgerQ before it kept one."""
        text = DEDUP.replace('      "offset": 64,\n', "")
        [entry] = decode_dedup(text.encode()).entries
        assert entry.offset is None
        assert encode_dedup(DedupState((entry,))).decode() == text

    def test_empty(self) -> None:
        text = b'{\n  "version": 1,\n  "max_retries": 0,\n  "entries": []\n}'
        assert encode_retry(RetryState(0)) == text
        assert decode_retry(text) == decode_retry(text.replace(b"[]", b"null")) == RetryState(0)
        assert encode_dedup(DedupState()) == b'{\n  "version": 1,\n  "entries": []\n}'

    def test_what_is_no_character(self) -> None:
        reason = RETRY.replace("a \\u003c", "\\ud800")
        assert decode_retry(reason.encode()).entries[0].failure_reason.startswith("\ufffdb>")
        state = RetryState(1, (RetryEntry(1, 1, GoTime(0), "\udc80"),))
        assert "\ufffd" in encode_retry(state).decode()

    @settings(max_examples=50)
    @given(
        st.builds(
            RetryState,
            st.integers(0, 2**63 - 1),
            st.lists(
                st.builds(RetryEntry, u64, st.integers(0, 2**31), times, st.text(max_size=20)),
                max_size=3,
            ).map(tuple),
        )
    )
    def test_what_is_encoded_comes_back(self, state: RetryState) -> None:
        assert decode_retry(encode_retry(state)) == state

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"version": 1', '"version": 2'),
            ('"version": 1', '"version": true'),
            ('"msg_id": 4', '"msg_id": -4'),
            ('"msg_id": 4', '"msg_id": 4.0'),
            ('"msg_id": 4', '"msg_id": 18446744073709551616'),
            ('"msg_id": 4', '"msg_id": ' + "9" * 5000),
            ('"retry_count": 2', '"retry_count": "2"'),
            ('"retry_count": 2,', ""),
            ('"2023-11-14T22:13:20Z"', "5"),
            ('"2023-11-14T22:13:20Z"', '"yesterday"'),
            ('"failure_reason": ', '"failure_reason": null, "x": '),
            ('"entries": [', '"entries": [7, '),
            ('"entries": [', '"entries": 7, "x": ['),
            ('"max_retries": 3', '"max_retries": NaN'),
            ("}", ""),
            (RETRY, ""),
            (RETRY, "7"),
            (RETRY, "[]"),
            (RETRY, "[" * 100_000),
        ],
    )
    def test_anything_else(self, old: str, new: str) -> None:
        assert old in RETRY
        with pytest.raises(SegmentCorruptError):
            decode_retry(RETRY.replace(old, new).encode())

    def test_no_utf8(self) -> None:
        with pytest.raises(SegmentCorruptError):
            decode_retry(RETRY.encode("utf-16"))

    @pytest.mark.parametrize("key", ["", KEY[:-1], KEY.upper(), "é" * 64])
    def test_what_is_no_hash(self, key: str) -> None:
        with pytest.raises(SegmentCorruptError):
            decode_dedup(DEDUP.replace(KEY, key).encode())

    def test_size_is_bounded_before_it_is_parsed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "STATE_BYTES_MAX", 100)
        with pytest.raises(SegmentCorruptError, match="100 at most"):
            decode_retry(RETRY.encode())

    def test_mutations(self) -> None:
        rng = random.Random(5)
        for _ in range(2000):
            for text, decode in ((RETRY, decode_retry), (DEDUP, decode_dedup)):
                raw = bytearray(text.encode())
                for _ in range(rng.choice((1, 2, 8))):
                    at = rng.randrange(len(raw))
                    raw[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(2))
                with contextlib.suppress(SegmentCorruptError):
                    decode(bytes(raw))
