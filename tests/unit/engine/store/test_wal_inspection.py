"""What is seen of a RocksDB folder before RocksDB sees it, and of a log it could not read."""

import pytest
from support_live import copy_live

from lodeq.engine.records.keyspace import ring_key
from lodeq.engine.records.rows import encode_ring
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.engine.store.wal_inspection import (
    check_folder,
    cut_manifest,
    find_endless,
    newest_commit,
)
from lodeq.errors import CorruptionError, StorePathError

BLOCK = 32 << 10
I1 = 1 << 40


def record(body: bytes, kind: int = 1) -> bytes:
    return b"crc4" + len(body).to_bytes(2, "little") + bytes([kind]) + body


def batch(commit_seq: int) -> bytes:
    key, value = ring_key(commit_seq), encode_ring(commit_seq, 7)
    return record(b"head" + bytes([len(key)]) + key + bytes([len(value)]) + value)


def folder(tmp_path, **files: bytes):
    (tmp_path / "CURRENT").write_bytes(b"MANIFEST-1\n")
    for name, content in files.items():
        (tmp_path / f"{name}.log").write_bytes(content)
    return str(tmp_path)


def test_logs_without_recyclable_records_end(tmp_path):
    path = tmp_path / "log"
    fill = BLOCK - 7 - 3  # leaves a trailer too short for a header
    path.write_bytes(
        record(b"a") + bytes(BLOCK - 8) + record(b"b" * fill) + b"\0\0\0" + record(b"c")
    )
    assert find_endless(str(path)) is None


@pytest.mark.parametrize("kind", [5, 6, 7, 8])
def test_a_recyclable_record_is_found(tmp_path, kind):
    (tmp_path / "000001.log").write_bytes(record(b"first") + record(b"second", kind))
    at = len(record(b"first"))
    assert find_endless(str(tmp_path / "000001.log")) == at
    (tmp_path / "CURRENT").write_bytes(b"")
    with pytest.raises(CorruptionError, match=f"byte {at}"):
        check_folder(str(tmp_path), create=False)
    check_folder(str(tmp_path), create=False, cut=True)
    assert (tmp_path / "000001.log").stat().st_size == at


def test_a_folder_without_a_store_is_told(tmp_path):
    with pytest.raises(StorePathError, match="no store"):
        check_folder(str(tmp_path), create=False)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorePathError, match="not a folder"):
        check_folder(str(tmp_path / "file" / "in"), create=True)


def made(tmp_path):
    """A store whose manifest has a few records; the path of the manifest."""
    path = tmp_path / "db"
    store = RocksStore.open(str(path), shared=SharedMemory(8 << 20), create=True)
    for n in range(3):
        store.write([(b"k%d" % n, b"v")])
        store.flush()
    store.close()
    return path, path / (path / "CURRENT").read_text().strip()


def reopened(path):
    store = RocksStore.open(str(path), shared=SharedMemory(8 << 20), create=False)
    try:
        return [key for key, _ in store.scan(b"", b"\xff", 9)]
    finally:
        store.close()


def test_a_sound_manifest_is_not_cut(tmp_path):
    path, manifest = made(tmp_path)
    whole = manifest.read_bytes()
    assert not cut_manifest(str(path))
    assert manifest.read_bytes() == whole


def test_a_torn_end_of_a_manifest_is_cut_off(tmp_path):
    path, manifest = made(tmp_path)
    whole = manifest.read_bytes()
    torn = whole[:7] + bytes(40)  # the header of a record reached the disk, its body did not
    manifest.write_bytes(whole + torn + bytes(100))
    with pytest.raises(CorruptionError):
        reopened(path)
    assert cut_manifest(str(path))
    assert manifest.read_bytes() == whole
    assert reopened(path) == [b"k0", b"k1", b"k2"]


@pytest.mark.parametrize("cut", [3, 20])
def test_a_manifest_that_ends_in_the_middle_of_a_record_is_cut_there(tmp_path, cut):
    path, manifest = made(tmp_path)
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + whole[:cut])
    assert cut_manifest(str(path))
    assert manifest.read_bytes() == whole


def test_a_flip_in_a_manifest_cuts_what_follows(tmp_path):
    path, manifest = made(tmp_path)
    whole = bytearray(manifest.read_bytes())
    whole[len(whole) // 2] ^= 1
    manifest.write_bytes(whole)
    assert cut_manifest(str(path))
    assert 0 < manifest.stat().st_size <= len(whole) // 2


def test_without_a_manifest_there_is_nothing_to_cut(tmp_path):
    (tmp_path / "CURRENT").write_bytes(b"MANIFEST-000009\n")
    assert not cut_manifest(str(tmp_path))


def test_the_newest_commit_is_the_last_one_of_the_newest_log(tmp_path):
    path = folder(tmp_path, a=batch(I1 | 1) + batch(I1 | 2), b=batch(I1 | 3) + batch(I1 | 4), c=b"")
    assert newest_commit(path, 1) == I1 | 4
    assert newest_commit(path, 2) == 0


def test_a_commit_behind_damage_is_seen(tmp_path):
    log = bytearray(batch(I1 | 1) + batch(I1 | 2))
    log[len(batch(I1 | 1)) + 5] ^= 64  # its length: to RocksDB the log ends before it
    assert newest_commit(folder(tmp_path, a=bytes(log)), 1) == I1 | 2


def test_what_only_looks_like_a_number_is_passed_over(tmp_path):
    wrong_key = record(ring_key(9) + bytes([28]) + encode_ring(I1 | 8, 7))
    torn = batch(I1 | 5)[:-1]
    log = batch(I1 | 3) + record(b"m/k/" * 9) + wrong_key + torn
    assert newest_commit(folder(tmp_path, a=log), 1) == I1 | 3


def forged(number: int) -> bytes:
    """What a payload must hold to look like the row that says a commit's number."""
    return ring_key(number) + bytes([28]) + encode_ring(number, 7)


def logged(tmp_path, batches):
    """A folder whose log RocksDB has written, as a kill leaves it."""
    live, path = str(tmp_path / "live"), str(tmp_path / "killed")
    store = RocksStore.open(live, shared=SharedMemory(8 << 20), create=True)
    for n, payloads in enumerate(batches, 1):
        ops = [(b"t/%02d" % m, payload) for m, payload in enumerate(payloads)]
        store.write([*ops, (ring_key(I1 | n), encode_ring(I1 | n, n))])
    copy_live(live, path)
    store.close()
    return path


@pytest.mark.parametrize("number", [2, 900_000])
@pytest.mark.parametrize("size", [0, 200, 5000])
def test_a_payload_forges_no_number(tmp_path, number, size):
    """Rows of a batch of 16 and more are sorted, so payloads come behind the number."""
    payload = bytes(size) + forged(I1 | number) + bytes(size)
    path = logged(tmp_path, [[b"honest"]] * 9 + [[payload] * 20])
    assert newest_commit(path, 1) == I1 | 10


def test_a_payload_hides_no_number(tmp_path):
    path = logged(tmp_path, [[b"honest"]] * 9 + [[b"m/k/" * 8000] * 20])
    assert newest_commit(path, 1) == I1 | 10


def test_a_payload_that_is_a_whole_log_forges_no_number(tmp_path):
    key = ring_key(I1 | 77)
    op = b"\x01" + bytes([len(key)]) + key + bytes([28]) + encode_ring(I1 | 77, 7)
    whole = record(bytes(8) + (1).to_bytes(4, "little") + op)
    path = logged(tmp_path, [[b"honest"], [whole * 3000] * 20])
    assert newest_commit(path, 1) == I1 | 2
