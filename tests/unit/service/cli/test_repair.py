"""``lodeq segments repair``: our own files, nothing thrown away, and a second one has no work."""

from pathlib import Path

import pytest
from support_service import AT_US, IDS, MESSAGES, open_journal, spoil, state_of

from lodeq.engine.files.lockfile import LockFile
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.journal.log_format import encode_frame
from lodeq.segments.journal.small_files import decode_index

HALF = Sqs().encode(b"h" * 16, b"half")[:-1]


def files_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """All but the lock, which names its last owner."""
    return {path: state for path, state in state_of(root).items() if not path.endswith("LOCK")}


def repair(cli, path: Path) -> str:
    """Dry, then in earnest, then once more: both say the same, and nothing is left to do."""
    before = state_of(path)
    dry = cli("repair", path, "--dry-run", code=1).stdout
    assert state_of(path) == before
    out = cli("repair", path).stdout
    assert out.replace("): ", "): would do: ") == dry
    after = files_of(path)
    assert cli("repair", path).stdout == "nothing to repair\n"
    assert files_of(path) == after
    assert cli("verify", path).exit_code == 0
    return out


class TestSqs:
    @pytest.fixture
    def path(self, make) -> Path:
        return make("body.sqs").path

    def test_nothing(self, path: Path, cli) -> None:
        before = state_of(path)
        assert cli("repair", path).stdout == "nothing to repair\n"
        assert state_of(path) == before

    def test_damage_becomes_a_hole_and_is_kept(self, path: Path, cli) -> None:
        spoil(path)
        damaged = path.read_bytes()
        assert "hole instead of damage: bad_checksum" in repair(cli, path)
        assert (path.parent / "body.sqs.damaged-102").read_bytes() == damaged[102:147]
        assert path.read_bytes() == damaged[:102] + b"\2\0\0\0\x2d" + damaged[107:]
        assert [one["id"] for one in cli.json("dump", path)] == [IDS[0].hex(), IDS[2].hex()]

    def test_beside_holes_one_hole(self, path: Path, cli) -> None:
        codec = Sqs()
        hole = codec.holes(20).ljust(20, b"x")
        records = [codec.encode(*one) for one in zip(IDS, MESSAGES, strict=True)]
        bad = bytearray(records[1])
        bad[-1] ^= 1
        path.write_bytes(HEADER + records[0] + codec.holes(3) + bad + hole + records[2])
        repair(cli, path)
        assert len(cli.json("dump", path)) == 2

    @pytest.mark.parametrize("holes", [b"\1" * 5, Sqs().holes(5) * 2, b"\1\1" + Sqs().holes(9)])
    def test_holes_that_should_be_one(self, holes: bytes, path: Path, cli) -> None:
        holes = holes.ljust(11, b"-") if holes[:1] == b"\1" and len(holes) == 7 else holes
        path.write_bytes(HEADER + holes + Sqs().encode(IDS[0], b"x"))
        repair(cli, path)
        assert not list(path.parent.glob("*.damaged*"))

    @pytest.mark.parametrize("tail", [HALF, bytes(100)])
    def test_a_torn_tail_is_cut_off(self, tail: bytes, path: Path, cli) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole + tail)
        assert "torn tail cut off" in repair(cli, path)
        assert path.read_bytes() == whole
        kept = [file.read_bytes() for file in path.parent.glob("*.damaged-*")]
        assert kept == ([tail] if any(tail) else [])

    def test_a_header(self, path: Path, cli) -> None:
        data = bytearray(path.read_bytes())
        data[50] = 1
        path.write_bytes(data)
        assert "header written anew" in repair(cli, path)
        assert path.read_bytes()[:64] == HEADER

    def test_a_copy_that_is_there_already_stays(self, path: Path, cli) -> None:
        spoil(path)
        (path.parent / "body.sqs.damaged-102").write_bytes(b"before")
        repair(cli, path)
        assert (path.parent / "body.sqs.damaged-102").read_bytes() == b"before"
        assert len((path.parent / "body.sqs.damaged-102.1").read_bytes()) == 45

    def test_an_id_that_comes_twice_is_left(self, path: Path, cli) -> None:
        with path.open("ab") as file:
            file.write(Sqs().encode(IDS[0], b"again"))
        before = state_of(path)
        for _ in range(2):
            assert "left as it is: duplicate_id" in cli("repair", path, code=1).stdout
        assert state_of(path) == before

    def test_a_folder(self, make, cli) -> None:
        place = make("stores")
        spoil(place.file)
        assert "1.sqs at 64" in repair(cli, place.path)
        assert len(cli.json("dump", place.path)) == 2

    @pytest.mark.parametrize("option", [(), ("--dry-run",)])
    def test_a_store_at_work_is_left_alone(self, option: tuple, tmp_path: Path, cli) -> None:
        folder = tmp_path / "bodies"
        folder.mkdir()
        (folder / "1.sqs").write_bytes(HEADER + HALF)
        lock = LockFile.acquire(str(tmp_path / "lock"))
        before = state_of(tmp_path)
        assert "is open" in cli("repair", folder, *option, code=2).stderr
        assert state_of(tmp_path) == before
        lock.release()
        cli("repair", folder, *option, code=1 if option else 0)


@pytest.mark.parametrize("name", ["foreign.sqs", "old.rdq", "ledgerq", "rust"])
def test_what_is_not_ours_is_refused(name: str, make, cli) -> None:
    place = make(name)
    spoil(place.file)
    before = state_of(place.path)
    assert "lodeq segments salvage" in cli("repair", place.path, code=2).stderr
    assert "lodeq segments salvage" in cli("repair", place.file, code=2).stderr
    assert state_of(place.path) == before


class TestJournal:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        writer = open_journal(tmp_path / "journal", records=300)
        for n in range(700):
            writer.append([b"message %d." % n])
        writer.close()
        return tmp_path / "journal"

    def logs(self, root: Path) -> list[Path]:
        return sorted(root.rglob("*.log"))

    def test_nothing(self, root: Path, cli) -> None:
        assert cli("repair", root).stdout == "nothing to repair\n"

    def test_a_torn_tail_is_cut_off_and_kept(self, root: Path, cli) -> None:
        *_, newest = self.logs(root)
        whole, tail = newest.read_bytes(), encode_frame(701, AT_US, [b"half"])[:-3]
        newest.write_bytes(whole + tail)
        assert "torn tail cut off" in repair(cli, root)
        assert newest.read_bytes() == whole
        (kept,) = newest.parent.glob("*.damaged-*")
        assert kept.read_bytes() == tail
        open_journal(root).close()

    def test_durable_bytes_are_never_cut(self, root: Path, cli) -> None:
        *_, newest = self.logs(root)
        newest.write_bytes(newest.read_bytes()[:-3])
        before = newest.read_bytes()
        assert "left as it is" in cli("repair", root, code=1).stdout
        assert newest.read_bytes() == before

    @pytest.mark.parametrize("spoiled", [b"", b"?", None, "other", "no end"])
    def test_an_index_is_rebuilt(self, spoiled: bytes | str | None, root: Path, cli) -> None:
        first, second = sorted(root.rglob("*.idx"))
        whole = first.read_bytes()
        if spoiled is None:
            first.unlink()
        elif spoiled == "other":
            first.write_bytes(second.read_bytes())
        elif spoiled == "no end":
            log = self.logs(root)[0]
            log.write_bytes(log.read_bytes()[:-40])  # as if killed between the two files
            first.unlink()
        else:
            first.write_bytes(spoiled)
        assert "rebuilt: index" in repair(cli, root)
        assert first.read_bytes() == whole
        assert [entry.sequence for entry in decode_index(whole).entries] == [1, 257]

    def test_damage_is_told_and_left(self, root: Path, cli) -> None:
        log, *_ = self.logs(root)
        spoil(log, b"message 100.")
        before = files_of(root)
        for _ in range(2):
            out = cli("repair", root, code=1).stdout
            assert "left as it is: checksum of a frame" in out
            assert len(out.splitlines()) == 1
        assert files_of(root) == before

    @pytest.mark.parametrize("option", [(), ("--dry-run",)])
    def test_a_writer_is_left_alone(self, option: tuple, root: Path, cli) -> None:
        writer = open_journal(root)
        before = state_of(root)
        assert "is open" in cli("repair", root, *option, code=2).stderr
        assert "is open" in cli("repair", self.logs(root)[0], *option, code=2).stderr
        assert state_of(root) == before
        writer.close()

    def test_one_file(self, root: Path, cli, tmp_path: Path) -> None:
        first, _, newest = self.logs(root)
        with newest.open("ab") as file:
            file.write(b"F")
        assert cli("repair", first).stdout == "nothing to repair\n"
        assert "torn tail" in repair(cli, newest)
        alone = tmp_path / "alone.log"
        alone.write_bytes(first.read_bytes()[:-41])
        cli("repair", alone)
        assert cli("repair", alone).stdout == "nothing to repair\n"
        assert cli.json("verify", alone) == []

    def test_a_file_without_a_header(self, root: Path, cli) -> None:
        newest = self.logs(root)[-1]
        fresh = newest.with_name(f"{701:020}.log")
        fresh.write_bytes(b"LDJL\1")
        repair(cli, root)
        writer = open_journal(root)
        assert writer.append([b"more"]) == 701
        writer.close()
