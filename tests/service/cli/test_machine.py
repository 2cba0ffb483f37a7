"""``doctor``, ``bench``, ``completion``, and the help."""

import errno
import os
import re
import tempfile
from pathlib import Path

import pytest
from support_cli import first, make, objects, run

from lodeq import COMPILED
from lodeq.service.cli import fitness
from lodeq.service.cli.app import lodeq
from lodeq.service.cli.display import duration, size
from lodeq.service.cli.maintenance import doctor
from lodeq.service.cli.values import duration as seconds

pytestmark = pytest.mark.slow


def test_doctor_looks_and_leaves_nothing(tmp_path):
    told = first("doctor", tmp_path)
    checks = {check["name"]: check["verdict"] for check in told["checks"]}
    assert set(checks) == {
        "python",
        "build",
        "rocksdict",
        "file system",
        "fsync",
        "locks",
        "hard links",
        "holes",
        "space",
        "limits",
        "memory",
    }
    assert (checks["python"], checks["locks"]) == ("ok", "ok")
    (build,) = (check["found"] for check in told["checks"] if check["name"] == "build")
    assert build == ("compiled" if COMPILED else "interpreted")
    assert told["fsync"]["p50_us"] > 0
    assert told["settings"]["shards"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_of_a_path_that_is_to_be(tmp_path):
    assert first("doctor", tmp_path / "not" / "yet")["path"] == str(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file", "file/within"])
def test_a_file_is_no_place_for_a_store(tmp_path, name):
    (tmp_path / "file").write_text("x")
    told = first("doctor", tmp_path / name, code=1)
    assert told["checks"][0]["name"] == "path"
    assert told["checks"][0]["verdict"] == "bad"
    assert os.listdir(tmp_path) == ["file"]


def test_of_a_store(tmp_path):
    root = make(tmp_path / "s", shards=2)
    run("enqueue", root, "mail", "x")
    found = {check["name"]: check["found"] for check in first("doctor", root)["checks"]}
    assert found["store"] == "2 shards"
    assert found["contents"] == "1 tasks wait, 0 dead letters"
    assert sorted(os.listdir(tmp_path)) == ["s"]


def test_a_full_disk_is_told_of_in_one_line(tmp_path, monkeypatch):
    def no_room(work):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(doctor, "time_fsync", no_room)
    result = run("doctor", tmp_path, code=2)
    assert f"{tmp_path} has no space for the checks" in result.stderr
    assert "free some disk space" in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_disk_without_inodes_is_named_as_such(tmp_path, monkeypatch):
    def no_room(work):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(doctor, "time_fsync", no_room)
    monkeypatch.setattr(doctor, "has_inodes", lambda _: False)
    result = run("doctor", tmp_path, code=2)
    assert f"{tmp_path} has no inodes left for the checks: remove some files" in result.stderr


def test_a_network_file_system_is_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(fitness, "mount_of", lambda path: ("nfs4", "/mnt", frozenset({"rw"})))
    result = run("doctor", tmp_path, code=1)
    assert re.search(r"file system +bad +nfs4 at /mnt +over a network", result.stdout)


@pytest.mark.parametrize(
    ("kind", "options", "verdict"),
    [
        ("ext4", "rw", "ok"),
        ("tmpfs", "rw", "warning"),
        ("overlay", "rw", "warning"),
        ("fuse.gcsfuse", "rw", "warning"),
        ("xfs", "ro", "bad"),
        ("cifs", "rw", "bad"),
    ],
)
def test_file_systems(monkeypatch, kind, options, verdict):
    monkeypatch.setattr(fitness, "mount_of", lambda path: (kind, "/mnt", frozenset({options})))
    assert fitness._file_system("/mnt/x").verdict == verdict


@pytest.mark.parametrize(
    ("p50", "verdict"), [(5.0, "warning"), (200.0, "ok"), (50_000.0, "warning")]
)
def test_fsync_costs(p50, verdict):
    assert fitness._fsync(fitness.Fsync(p50, p50 * 2)).verdict == verdict


def test_settings_follow_from_the_fsync():
    assert doctor._settings(fitness.Fsync(200.0, 900.0))["durability"] == "fsync"
    assert doctor._settings(fitness.Fsync(9000.0, 300_000.0))["durability"] == "nosync"


def test_the_mount_of_a_path():
    kind, point, options = fitness.mount_of("/proc/self")
    assert (kind, point) == ("proc", "/proc")
    assert "rw" in options or "ro" in options


def test_a_store_that_cannot_be_read_is_not_fit(tmp_path):
    root = make(tmp_path / "s")
    (root / "shard0" / "CURRENT").write_text("nothing\n")
    assert "bad" in run("doctor", root, code=1).stdout


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_doctor_of_a_folder_that_cannot_be_written(tmp_path, monkeypatch, number):
    root = make(tmp_path / "s")

    real = tempfile.mkdtemp

    def refuse(*args, **options):
        if options.get("dir") is None:
            return real(*args, **options)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    for path in (root, tmp_path / "new"):
        (told,) = objects("doctor", path, code=1)
        checked = {one["name"]: one for one in told["checks"]}
        assert checked["folder"]["verdict"] == "bad"
        assert os.strerror(number) in checked["folder"]["found"]
        assert "choose another path" in checked["folder"]["advice"]
        assert {"python", "file system", "space", "memory"} <= set(checked)
        assert (told["fsync"], told["settings"]) == (None, None)
        assert "choose another path" in run("doctor", path, code=1).stdout


def test_bench_measures_and_leaves_nothing(tmp_path):
    rows = objects("bench", tmp_path, "--seconds", "50ms")
    assert [(row["durability"], row["callers"]) for row in rows] == [
        ("nosync", 1),
        ("nosync", 64),
        ("fsync", 1),
        ("fsync", 64),
    ]
    assert all(row["cycles"] > 0 for row in rows)
    assert rows[3]["fsync_p50_us"] > 0
    assert list(tmp_path.iterdir()) == []
    run("bench", tmp_path, "--seconds", "2h", code=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    script = run("completion", shell).stdout
    assert f"_LODEQ_COMPLETE={shell}_complete" in script


def test_completion_knows_the_commands():
    from click.testing import CliRunner

    env = {"_LODEQ_COMPLETE": "bash_complete", "COMP_WORDS": "lodeq re", "COMP_CWORD": "1"}
    out = CliRunner().invoke(lodeq, [], env=env, prog_name="lodeq").stdout
    assert {line.partition(",")[2] for line in out.splitlines()} >= {"redrive", "repair", "resume"}


def test_every_command_is_in_a_section_of_the_help():
    text = run("--help").stdout
    for name, command in lodeq.commands.items():
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE), name
        assert command.help


def test_the_page_names_every_command():
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text("utf-8")
    assert [name for name in lodeq.commands if f"`{name}" not in page] == []


def test_words():
    assert [duration(s) for s in (0.25, 61, 3700, 90_000)] == ["0.2s", "1m1s", "1h1m", "1d1h"]
    assert [size(n) for n in (12, 2048, 3 << 20, 5 << 40)] == [
        "12 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 TiB",
    ]
    assert seconds(3) == seconds("3s") == 3.0
