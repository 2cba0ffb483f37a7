"""Commands whose standard output is full or closed, and readers without a place for their links."""

import os
import subprocess
import sys
import tempfile

import pytest
from support_cli import RUN, SCRIPT, first, make, process, run

import lodeq.sync
from lodeq.engine.files.lockfile import LockFile
from lodeq.engine.offline.read_only import look_at
from lodeq.errors import StorePathError
from lodeq.service.cli.enqueue_lines import chunks_of, lines_of
from lodeq.service.cli.values import INPUT_BYTES_MAX

pytestmark = pytest.mark.slow

NOT_SHOWN = "error: stdout cannot be written, so the result is not shown: No space left on device\n"


@pytest.fixture
def store(tmp_path):
    path = make(tmp_path / "s")
    run("enqueue", path, "mail", "x", "--raw")
    return path


def shell(line, store, code=0):
    whole = f'lodeq() {{ "{sys.executable}" -c "{SCRIPT}" "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", whole],
        env={**os.environ, "S": str(store)},
        cwd=store.parent,
        text=True,
        timeout=60,
        capture_output=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize(
    "line",
    [
        "ls $S",
        "stats $S",
        "peek $S mail",
        "snapshots $S",
        "doctor $S",
        "top $S --count 1",
        "completion bash",
        "metrics alerts",
        "--help",
        "--version",
        "ls --help",
        "export $S --queue mail --to out --format jsonl",
    ],
)
def test_a_full_stdout_says_so(store, line):
    run("snapshot", store)  # where there is none, nothing is printed
    done = shell(f"lodeq {line} >/dev/full", store, code=1)
    assert done.stderr.endswith(NOT_SHOWN)
    if line.startswith("export"):
        assert (store.parent / "out").exists()


@pytest.mark.parametrize(("reader", "code"), [(">/dev/full", 1), ("| true", 0)])
def test_all_tasks_are_acted_on_although_nobody_reads_which(store, reader, code):
    with lodeq.sync.open(store) as engine:
        receipts = engine.queue("many").enqueue_many([lodeq.NewTask(b"x")] * 300)
    ids = " ".join(str(one.id) for one in receipts)
    shell(f"lodeq cancel $S {ids} --yes {reader}", store, code=code)
    with lodeq.sync.open(store) as engine:
        assert engine.queue("many").stats().ready == 0


def test_a_service_starts_although_nobody_can_see_its_banner(store):
    with open("/dev/full", "wb") as full, process(*RUN, "serve", store, stdout=full) as child:
        path = f"{store}.sock"
        while not os.path.exists(path):
            assert child.poll() is None
        assert first("ls", f"unix://{path}")["ready"] == 1
        child.terminate()
        assert child.wait(30) == 0


def test_a_closed_stdout_takes_no_leases(store):
    done = shell("lodeq claim $S mail >&-", store, code=2)
    assert "stdout is closed" in done.stderr
    assert first("ls", store)["leased"] == 0


def test_a_reader_needs_no_tmp(store, monkeypatch):
    make_folder = tempfile.mkdtemp

    def refused(*args, dir=None, **options):
        if dir is None:
            raise FileNotFoundError("No usable temporary directory found")
        return make_folder(*args, dir=dir, **options)

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    assert first("ls", store)["ready"] == 1
    assert "fit" not in run("doctor", store).stderr
    monkeypatch.setattr(
        tempfile, "mkdtemp", lambda *a, **k: (_ for _ in ()).throw(OSError(30, "read-only"))
    )
    with pytest.raises(StorePathError, match="TMPDIR"):
        look_at(store)
    assert "TMPDIR" in run("ls", store, code=2).stderr
    assert "TMPDIR" in run("doctor", store, code=1).stdout


def test_what_a_killed_reader_left_goes_with_the_next_one(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, foreign = tmp_path / "lodeq-look-left", tmp_path / "lodeq-look-other"
    for folder in (left, foreign):
        folder.mkdir()
    (left / "lock").write_text("of a process that was killed")
    with_mark = look_at(store)
    assert not left.exists()
    assert foreign.exists()  # nobody knows whose it is
    again = look_at(store)
    assert os.path.isdir(with_mark.overlay)
    again.close()
    with_mark.close()
    assert {one.name for one in tmp_path.glob("lodeq-look-*")} == {foreign.name}
    LockFile.check(str(store / "lock"))


def test_a_line_without_an_end_is_refused_before_it_is_all_read():
    reads = []

    def read():
        reads.append(1)
        return b"a\n" + b"x" * (1 << 20) if len(reads) == 1 else b"x" * (1 << 20)

    found = list(chunks_of(lines_of(read, lambda: True), parse=False))
    assert found[-1].bad == "line 2: more than 16 MiB: a larger payload comes by --file, raw"
    assert found[-1].payloads == [b"a"]
    assert len(reads) <= (INPUT_BYTES_MAX >> 20) + 2


def test_a_payload_that_is_too_long_is_not_read_to_its_end(store):
    done = shell("head -c 300M /dev/zero | lodeq enqueue $S mail - --raw", store, code=2)
    assert "the limit is 67108864: store it elsewhere" in done.stderr
