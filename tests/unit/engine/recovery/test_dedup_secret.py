"""The secret of a store's dedup keys, and the upgrade from format 1: whole at every step."""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support_format_1 import open_shard, rewrite
from support_rows import dump

from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.recovery import dedup_secret as module
from lodeq.engine.recovery.dedup_secret import (
    Secrets,
    check_loads,
    common_secret,
    read_secrets,
    settle_formats,
)
from lodeq.engine.recovery.open_shard import OpenStore, open_store
from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.ids import SeededRng
from lodeq.errors import (
    CorruptionError,
    FormatTooOldError,
    RecoveryRefusedError,
    StorageError,
    UsageError,
)

ID = bytes(range(16))
SHARDS = 2


def opened(root: Path, seed: int = 1, **options: object) -> OpenStore:
    given = {"shards": None, "durability": None, "recovery": "strict", **options}
    return open_store(
        str(root), block_cache_bytes=8 << 20, rng=SeededRng(seed), clock=SystemClock(), **given
    )


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of format 1 with one old entry on each shard, as many as its number on the last."""
    root = tmp_path / "s"
    opened(root, shards=SHARDS).close()
    for shard in range(SHARDS):
        store = open_shard(root, shard)
        rewrite(store, [])
        for n in range(shard):
            row = small.encode_ghost(small.Ghost(ID, 1 << 50, small.OLD_FORM))
            store.write([(ks.GHOST + bytes([n] * 16), row)])
        store.close()
    os.unlink(root / "secrets")
    return root


def facts(root: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Version, secret and count of each shard, as they lie there."""
    found = []
    for shard in range(SHARDS):
        store = open_shard(root, shard)
        stamp = small.decode_stamp(store.get(ks.STAMP) or b"")
        found.append((stamp.version, store.get(ks.SECRET), store.get(ks.OLD_GHOSTS)))
        store.close()
    return found


def is_upgraded(root: Path) -> bool:
    found = facts(root)
    assert [version for version, _, _ in found] == [small.FORMAT_VERSION] * SHARDS
    assert len({secret for _, secret, _ in found}) == 1
    assert found[0][1] is not None
    counts = [0 if raw is None else small.decode_old_ghosts(raw) for _, _, raw in found]
    return counts == list(range(SHARDS))


def test_a_store_of_format_1_is_upgraded_in_place(old: Path) -> None:
    before = [dump_of(old, shard) for shard in range(SHARDS)]
    assert [version for version, _, _ in facts(old)] == [1] * SHARDS
    store = opened(old)
    assert store.recoveries == []
    store.close()
    assert is_upgraded(old)
    mine = (ks.STAMP, ks.SECRET, ks.OLD_GHOSTS, ks.OPEN)
    for shard in range(SHARDS):
        after = {key: value for key, value in dump_of(old, shard).items() if key not in mine}
        assert after == {k: v for k, v in before[shard].items() if k not in mine}


def dump_of(root: Path, shard: int) -> dict[bytes, bytes]:
    store = open_shard(root, shard)
    rows = dict(dump(store))
    store.close()
    return rows


@pytest.mark.parametrize("step", range(SHARDS + 1))
@pytest.mark.parametrize("is_synced", [False, True])
def test_a_crash_at_each_step_of_the_upgrade(
    old: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_synced: bool
) -> None:
    """After ``step`` shards, or when all are written and none is synced; then another try."""

    class Crash(BaseException):
        pass

    write, count = module.write_patiently, 0

    def failing(store: object, ops: object) -> None:
        nonlocal count
        if count == step:
            raise Crash
        count += 1
        write(store, ops)
        if is_synced:
            store.flush()

    def syncing(stores: Sequence[object]) -> None:
        if stores:
            raise Crash

    monkeypatch.setattr(module, "write_patiently", failing)
    if step == SHARDS:
        monkeypatch.setattr("lodeq.engine.recovery.open_shard.sync_all", syncing)
    with pytest.raises(Crash):
        opened(old)
    monkeypatch.undo()
    versions = [version for version, _, _ in facts(old)]
    assert versions == [small.FORMAT_VERSION] * step + [1] * (SHARDS - step)
    secrets = {secret for _, secret, _ in facts(old) if secret is not None}
    opened(old, seed=2).close()  # another process draws another secret, if it needs one
    assert is_upgraded(old)
    assert secrets <= {facts(old)[0][1]}


def test_a_power_cut_may_take_the_upgrade_of_any_shard(old: Path, tmp_path: Path) -> None:
    """What was written last may be on disk where what was written first is not."""
    shutil.copytree(old, tmp_path / "kept")
    opened(old).close()
    shutil.rmtree(old / "shard0")
    shutil.copytree(tmp_path / "kept" / "shard0", old / "shard0")
    for index in range(SHARDS):  # they follow once all shards are synced
        shutil.copy(tmp_path / "kept" / f"watermark{index}", old / f"watermark{index}")
    assert [version for version, _, _ in facts(old)] == [1, small.FORMAT_VERSION]
    opened(old, seed=2).close()
    assert is_upgraded(old)


def test_a_replica_gets_its_stamp_and_nothing_else(old: Path) -> None:
    opened(old, is_replica=True).close()
    assert facts(old) == [(small.FORMAT_VERSION, None, None)] * SHARDS
    assert not (old / "secrets").exists()
    opened(old).close()  # no replica any more
    assert is_upgraded(old)


def test_a_load_that_is_half_in_is_ended_by_the_release_that_began_it(old: Path) -> None:
    (old / "inbox").mkdir(mode=0o700)
    (old / "inbox" / "j.json").write_text("{}")
    store = open_shard(old, 1)
    store.write([(ks.INGESTED + b"j", b"row")])
    store.close()
    with pytest.raises(FormatTooOldError, match="load 'j' has come in on some shards only"):
        opened(old)
    assert [version for version, _, _ in facts(old)] == [1] * SHARDS
    store = open_shard(old, 0)
    store.write([(ks.INGESTED + b"j", b"row")])
    store.close()
    opened(old).close()
    assert is_upgraded(old)


def test_a_new_store_has_one_secret(tmp_path: Path) -> None:
    store = opened(tmp_path / "s", shards=SHARDS)
    store.close()
    ((version, secret, count), *others) = facts(tmp_path / "s")
    assert (version, count) == (small.FORMAT_VERSION, None)
    assert others == [(version, secret, count)] * (SHARDS - 1)
    found = read_secrets(str(tmp_path / "s"), store.store_id)
    assert [small.encode_secret(one) for one in found.of_shards] == [secret] * SHARDS
    assert stat.S_IMODE((tmp_path / "s" / "secrets").stat().st_mode) == 0o600


def test_a_damaged_row_is_refused_and_salvaged_from_another_shard(tmp_path: Path) -> None:
    root = tmp_path / "s"
    opened(root, shards=SHARDS).close()
    before = facts(root)
    store = open_shard(root, 1)
    store.write([(ks.SECRET, b"X\1rubbish")])
    store.close()
    with pytest.raises(RecoveryRefusedError, match="secret of its dedup keys is damaged"):
        opened(root)
    salvaged = opened(root, seed=2, recovery="salvage")
    salvaged.close()
    assert facts(root) == before


def test_a_secret_that_is_lost_is_told(tmp_path: Path) -> None:
    root = tmp_path / "s"
    opened(root).close()
    store = open_shard(root, 0)
    row = small.encode_ghost(small.Ghost(ID, 1 << 50))
    store.write([(ks.SECRET, None), (ks.GHOST + ID, row)])
    store.close()
    found = opened(root, seed=2)
    found.close()
    (text,) = found.recoveries
    assert "lost the secret" in text


class TestFile:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        opened(tmp_path / "s").close()
        return tmp_path / "s"

    def read(self, root: Path) -> Secrets:
        store = open_shard(root, 0)
        stamp = small.decode_stamp(store.get(ks.STAMP) or b"")
        store.close()
        return read_secrets(str(root), stamp.store_id)

    def test_an_open_makes_it_anew(self, root: Path) -> None:
        before = self.read(root)
        raw = (root / "secrets").read_bytes()
        for other in (None, b"", raw[:-1], bytes(len(raw))):
            (root / "secrets").unlink()
            if other is not None:
                (root / "secrets").write_bytes(other)
                with pytest.raises(CorruptionError, match="makes it anew"):
                    self.read(root)
            opened(root).close()
            assert self.read(root) == before
            assert stat.S_IMODE((root / "secrets").stat().st_mode) == 0o600

    def test_every_flipped_bit_is_noticed(self, root: Path) -> None:
        raw = (root / "secrets").read_bytes()
        for at in range(len(raw)):
            bad = bytearray(raw)
            bad[at] ^= 1
            (root / "secrets").write_bytes(bad)
            with pytest.raises(CorruptionError) as caught:
                read_secrets(str(root), raw[8:24])
            assert raw[32:64].hex() not in str(caught.value)

    def test_that_of_another_store(self, root: Path) -> None:
        with pytest.raises(UsageError, match="another store"):
            read_secrets(str(root), bytes(16))

    def test_one_that_is_missing_or_no_file(self, root: Path) -> None:
        (root / "secrets").unlink()
        with pytest.raises(UsageError, match="open the store once with this release"):
            self.read(root)
        (root / "secrets").mkdir()
        with pytest.raises(StorageError):
            self.read(root)

    def test_it_does_not_show_itself(self, root: Path) -> None:
        found = self.read(root)
        assert repr(found) == str(found) == "<secrets of 1 shards>"
        assert found.of_shards[0] not in found.fingerprint


@pytest.mark.parametrize("has_file", [True, False])
def test_a_secret_that_is_lost_with_the_stamp(tmp_path: Path, has_file: bool) -> None:
    """They lie side by side, so one damaged block costs both."""
    root = tmp_path / "s"
    opened(root).close()
    store = open_shard(root, 0)
    before = store.get(ks.SECRET)
    row = small.encode_ghost(small.Ghost(ID, 1 << 50))
    store.write([(ks.SECRET, None), (ks.STAMP, None), (ks.GHOST + ID, row)])
    store.close()
    if not has_file:
        (root / "secrets").unlink()
    found = opened(root, seed=2, recovery="salvage")
    found.close()
    store = open_shard(root, 0)
    assert (store.get(ks.SECRET) == before) is has_file
    store.close()
    (text,) = [text for text in found.recoveries if "secret" in text]
    assert ("are not held any more" in text) is not has_file


def test_a_secret_that_another_shard_has_is_not_told_to_be_another(tmp_path: Path) -> None:
    root = tmp_path / "s"
    opened(root, shards=SHARDS).close()
    before = facts(root)
    (root / "secrets").unlink()
    store = open_shard(root, 1)
    row = small.encode_ghost(small.Ghost(ID, 1 << 50))
    store.write([(ks.SECRET, None), (ks.GHOST + ID, row)])
    store.close()
    found = opened(root, seed=2, recovery="salvage")
    found.close()
    assert facts(root) == before
    assert "are not held any more" not in " ".join(found.recoveries)


def test_a_secret_in_a_block_that_cannot_be_read_is_refused_with_what_to_do():
    class Damaged:
        def get(self, key):
            raise CorruptionError("block checksum mismatch")

    found = [SimpleNamespace(index=3, store=Damaged())]
    with pytest.raises(RecoveryRefusedError, match=r'shard 3: .*recovery="salvage"'):
        common_secret(found, is_salvage=False)
    assert common_secret(found, is_salvage=True) == b""


def test_a_load_that_may_be_half_in_is_refused_with_what_to_do_where_that_cannot_be_read():
    class Damaged:
        def get(self, key):
            raise CorruptionError("block checksum mismatch")

    stamp = small.Stamp(0, 2, 0, ID, 1)
    found = [
        SimpleNamespace(index=0, stamp=stamp, store=SimpleNamespace(get=lambda key: None)),
        SimpleNamespace(index=1, stamp=stamp, store=Damaged()),
    ]
    with pytest.raises(RecoveryRefusedError, match=r'shard 1: .*\'j\'.*recovery="salvage"'):
        check_loads(found, ["j"], is_salvage=False)
    check_loads(found, ["j"], is_salvage=True)  # of that shard nobody can tell
    check_loads(found, [], is_salvage=False)


@pytest.mark.parametrize("row", [b"damaged", CorruptionError("block checksum mismatch")])
def test_a_salvage_gives_another_secret_in_place_of_one_that_cannot_be_read(tmp_path, row):
    opened(tmp_path / "s").close()
    store = open_shard(tmp_path / "s", 0)

    class Damaged:
        def get(self, key):
            if key == ks.SECRET and isinstance(row, Exception):
                raise row
            return row if key == ks.SECRET else store.get(key)

        def __getattr__(self, name):
            return getattr(store, name)

    stamp = small.decode_stamp(store.get(ks.STAMP))
    one = SimpleNamespace(index=0, stamp=stamp, store=Damaged(), reports=[])
    written = settle_formats([one], b"n" * 32, is_new=True)
    assert len(written) == 1
    assert small.decode_secret(store.get(ks.SECRET)) == b"n" * 32
    assert "had lost the secret of its dedup keys and got another" in one.reports[0]
    store.close()


def test_dedup_entries_that_cannot_be_counted_are_refused_with_what_to_do(tmp_path):
    class Damaged:
        def get(self, key):
            return None

        def scan(self, lower, upper, limit):
            raise CorruptionError("block checksum mismatch")

    stamp = small.Stamp(0, 1, 0, ID, 1)
    one = SimpleNamespace(index=0, stamp=stamp, store=Damaged(), reports=[])
    with pytest.raises(RecoveryRefusedError, match=r'shard 0: .*dedup.*recovery="salvage"'):
        settle_formats([one], b"n" * 32, is_new=True)
