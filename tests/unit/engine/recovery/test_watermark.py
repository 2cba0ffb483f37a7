"""The watermark never promises too much, and says so when it cannot be believed."""

import errno
import os
import stat

import pytest

from lodeq.engine.recovery.watermark import FILE_BYTES, SLOT_AT, Watermark
from lodeq.errors import (
    FormatTooNewError,
    FormatTooOldError,
    InvariantError,
    RecoveryRefusedError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    StorePathError,
)

STORE = bytes(range(16))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "watermark3")


@pytest.fixture
def mark(path):
    mark = Watermark.create(path, shard=3, store_id=STORE, incarnation=2, commit_seq=2 << 40)
    yield mark
    mark.close()


def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x40]))


def test_what_is_written_is_read(path, mark):
    for n in range(1, 6):
        mark.write(2, 2 << 40 | n)
        state = Watermark.read(path)
        assert (state.shard, state.store_id, state.incarnation) == (3, STORE, 2)
        assert (state.durable, state.damaged_slots) == (n, 0)


def test_it_is_private_and_of_one_size(path, mark):
    mark.write(3, 0)
    info = os.stat(path)
    assert (stat.S_IMODE(info.st_mode), info.st_size) == (0o600, FILE_BYTES)
    assert os.listdir(os.path.dirname(path)) == ["watermark3"]


def test_slots_alternate(path, mark):
    def slots():
        with open(path, "rb") as file:
            raw = file.read()
        return [raw[at : at + 64] for at in SLOT_AT]

    before = slots()
    mark.write(2, 2 << 40 | 1)
    middle = slots()
    mark.write(2, 2 << 40 | 2)
    after = slots()
    assert before[0] != middle[0] or before[1] != middle[1]
    changed = [
        [a != b for a, b in zip(x, y, strict=True)] for x, y in ((before, middle), (middle, after))
    ]
    assert sorted(changed) == [[False, True], [True, False]]


def test_opening_goes_on_where_it_was(path, mark):
    mark.write(2, 2 << 40 | 7)
    mark.close()
    again = Watermark.open(path, shard=3, store_id=STORE)
    assert again.state.durable == 7
    again.write(3, 3 << 40)
    again.close()
    assert Watermark.read(path).incarnation == 3


def test_a_commit_of_another_incarnation_promises_nothing(path, mark):
    mark.write(4, 2 << 40 | 99)
    assert mark.state.durable == 0
    mark.write(5, 0)
    assert mark.state.durable == 0


@pytest.mark.parametrize("byte", range(0, 64, 5))
def test_any_flipped_bit_costs_one_slot(path, mark, byte):
    mark.write(2, 2 << 40 | 1)
    mark.write(2, 2 << 40 | 2)
    newest = SLOT_AT[mark.state.generation & 1]
    damage(path, newest + byte)
    state = Watermark.read(path)
    assert (state.durable, state.damaged_slots) == (1, 1)


def test_after_damage_the_damaged_slot_is_the_next_to_be_written(path, mark):
    mark.write(2, 2 << 40 | 1)
    mark.write(2, 2 << 40 | 2)
    damage(path, SLOT_AT[mark.state.generation & 1])
    mark.close()
    again = Watermark.open(path, shard=3, store_id=STORE)
    assert again.state.damaged_slots == 1
    again.write(2, 2 << 40 | 3)
    again.close()
    state = Watermark.read(path)
    assert (state.durable, state.damaged_slots) == (3, 0)


def test_slots_that_have_changed_places_are_damage(path, mark):
    with open(path, "r+b") as file:
        raw = file.read()
        file.seek(0)
        file.write(raw[4096:] + raw[:4096])
    with pytest.raises(RecoveryRefusedError):
        Watermark.read(path)


def test_two_damaged_slots_are_refused(path, mark):
    for at in SLOT_AT:
        damage(path, at + 40)
    with pytest.raises(RecoveryRefusedError, match="salvage") as caught:
        Watermark.open(path, shard=3, store_id=STORE)
    assert caught.value.shard == 3


@pytest.mark.parametrize("size", [0, 63, 4100])
def test_a_short_file(path, mark, size):
    os.truncate(path, size)
    if size > 64:
        assert Watermark.read(path).damaged_slots == 1
    else:
        with pytest.raises(RecoveryRefusedError):
            Watermark.read(path)


def test_a_missing_file_is_refused(path):
    with pytest.raises(RecoveryRefusedError, match="missing"):
        Watermark.open(path, shard=3, store_id=STORE)


def test_a_link_is_refused(path, mark, tmp_path):
    os.rename(path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(StorePathError):
        Watermark.open(path, shard=3, store_id=STORE)


@pytest.mark.parametrize(("shard", "store"), [(4, STORE), (3, bytes(16))])
def test_the_file_of_another_shard_or_store_is_refused(path, mark, shard, store):
    with pytest.raises(RecoveryRefusedError, match="belongs to"):
        Watermark.open(path, shard=shard, store_id=store)


def test_a_newer_version_is_refused(path, mark, monkeypatch):
    monkeypatch.setattr("lodeq.engine.recovery.watermark._VERSION", 2)
    mark.write(2, 2 << 40 | 1)
    monkeypatch.undo()
    with pytest.raises(FormatTooNewError, match="upgrade"):
        Watermark.read(path)


def test_an_older_version_is_refused_as_such(path, mark, monkeypatch):
    monkeypatch.setattr("lodeq.engine.recovery.watermark._VERSION", 0)
    mark.write(2, 2 << 40 | 1)
    monkeypatch.undo()
    with pytest.raises(FormatTooOldError, match="release that wrote it"):
        Watermark.read(path)


def test_it_never_goes_back(mark):
    mark.write(2, 2 << 40 | 5)
    mark.write(2, 2 << 40 | 5)
    for incarnation, commit_seq in [(2, 2 << 40 | 4), (1, 9 << 40)]:
        with pytest.raises(InvariantError):
            mark.write(incarnation, commit_seq)


def test_create_replaces_in_one_step(path, mark):
    Watermark.create(path, shard=3, store_id=STORE, incarnation=9, commit_seq=0).close()
    assert Watermark.read(path).incarnation == 9


def test_a_failed_sync_is_never_tried_again(mark, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageError, match="reopen"):
        mark.write(2, 2 << 40 | 1)
    monkeypatch.undo()
    with pytest.raises(StoragePoisonedError):
        mark.write(2, 2 << 40 | 2)
    assert mark.state.durable == 0


def test_a_failed_sync_is_never_merely_full(mark, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageError) as caught:
        mark.write(2, 2 << 40 | 1)
    assert not isinstance(caught.value, StorageFullError)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_heals(path, mark, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageFullError):
        mark.write(2, 2 << 40 | 1)
    monkeypatch.undo()
    mark.write(2, 2 << 40 | 2)
    assert Watermark.read(path).durable == 2


def test_a_short_write_poisons(mark, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: 3)
    with pytest.raises(StorageError):
        mark.write(2, 2 << 40 | 1)
    monkeypatch.undo()
    with pytest.raises(StoragePoisonedError):
        mark.write(2, 2 << 40 | 2)


def test_reads_that_fail(path, mark, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError):
        Watermark.read(path)


def test_a_folder_that_is_gone(tmp_path):
    with pytest.raises(StorageError):
        Watermark.create(
            str(tmp_path / "no" / "w"), shard=0, store_id=STORE, incarnation=0, commit_seq=0
        )


def test_a_failed_creation_keeps_the_old_file(path, mark, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError):
        Watermark.create(path, shard=3, store_id=STORE, incarnation=9, commit_seq=0)
    monkeypatch.undo()
    assert Watermark.read(path).incarnation == 2


@pytest.mark.parametrize(("number", "kind"), [(5, StorageError), (28, StorageFullError)])
def test_a_failed_sync_fails_the_creation(path, mark, monkeypatch, number, kind):
    def fail(fd):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind):
        Watermark.create(path, shard=3, store_id=STORE, incarnation=9, commit_seq=0)
    assert Watermark.read(path).incarnation == 2
    assert not os.path.exists(f"{path}.tmp")


def test_a_closed_one_takes_nothing(mark):
    mark.close()
    mark.close()
    with pytest.raises(StoragePoisonedError):
        mark.write(2, 2 << 40 | 1)
