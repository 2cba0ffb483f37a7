"""Once each, however often an import is begun anew, and wherever it was cut off."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support_import import (
    AT_NS,
    HUEY,
    complete_all,
    database,
    ledgerq,
    message,
    run_import,
    tasks_of,
)
from support_loop import on_loop

import lodeq
from lodeq import InvalidNameError, Limits
from lodeq.engine.runtime.clock import SystemClock
from lodeq.service.transfer import import_run
from lodeq.service.transfer.entries import Foreign, Mark, SourceItem
from lodeq.service.transfer.import_run import import_tasks, survey
from lodeq.service.transfer.source_kinds import open_source

pytestmark = pytest.mark.slow
COUNT = 50


class CutError(Exception):
    """What a process that is killed does not raise; from here on nothing more happens."""


class CutSource:
    """A source that ends the import after some entries."""

    def __init__(self, source: Foreign, after: int) -> None:
        self._source = source
        self._after = after

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def entries(self, after: Mark | None = None) -> Iterator[SourceItem]:
        for n, told in enumerate(self._source.entries(after)):
            if n == self._after:
                raise CutError
            yield told


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(import_run, "_CHUNK_TASKS", 7)
    messages = [message(n, b"%d" % n) for n in range(1, COUNT + 1)]
    return ledgerq(tmp_path / "source", messages)


def cut_import(source: Path, store: Path, after: int) -> None:
    async def run() -> None:
        async with lodeq.open(store, shards=2, reaper=False) as engine:
            cut = CutSource(open_source("ledgerq", source), after)
            await import_tasks(engine, cut, queue="mail")  # type: ignore[arg-type]

    with pytest.raises(CutError):
        asyncio.run(run())


@pytest.mark.parametrize("keeps_note", [True, False])
@pytest.mark.parametrize("after", [0, 6, 7, 20, COUNT - 1])
def test_cut_off_and_begun_anew(tmp_path: Path, source: Path, after: int, keeps_note: bool) -> None:
    """Also of what has been completed meanwhile nothing comes twice, and nothing is lost."""
    store = tmp_path / "store"
    cut_import(source, store, after)
    done = complete_all(store)
    assert len(done) == after // 7 * 7
    if not keeps_note:
        for note in store.glob("import-*"):
            note.unlink()
    report = run_import("ledgerq", source, store)
    assert (report.imported, report.already) == (COUNT - len(done), len(done))
    assert done + complete_all(store) == [b"%d" % n for n in range(1, COUNT + 1)]
    report = run_import("ledgerq", source, store)
    assert (report.imported, report.already) == (0, COUNT)


def test_killed_between_the_tasks_and_the_note(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(import_run, "write_note", lambda *_: (_ for _ in ()).throw(CutError))
        with pytest.raises(CutError):
            run_import("ledgerq", source, tmp_path / "store")
    assert len(complete_all(tmp_path / "store")) == 7
    report = run_import("ledgerq", source, tmp_path / "store")
    assert (report.imported, report.already) == (COUNT - 7, 7)


KILLED = """
import asyncio, os, sys
import lodeq
from lodeq.service.transfer import import_run as taking
from lodeq.service.transfer.source_kinds import open_source

taking._CHUNK_TASKS = 7
write, calls = taking.write_note, []

def killed(*args):
    calls.append(args)
    if len(calls) == 3:
        os._exit(9)
    write(*args)

taking.write_note = killed

async def main():
    async with lodeq.open(sys.argv[2], reaper=False) as engine:
        await taking.import_tasks(engine, open_source("ledgerq", sys.argv[1]), queue="mail")

asyncio.run(main())
"""


def test_a_process_that_dies(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    run = subprocess.run([sys.executable, "-c", KILLED, source, store], check=False)
    assert run.returncode == 9
    assert complete_all(store) == [b"%d" % n for n in range(1, 22)]
    report = run_import("ledgerq", source, store)
    assert (report.imported, report.already) == (COUNT - 21, 21)


def test_a_source_that_has_moved_is_the_same(tmp_path: Path, source: Path) -> None:
    run_import("ledgerq", source, tmp_path / "store")
    complete_all(tmp_path / "store")
    source.rename(tmp_path / "moved")
    report = run_import("ledgerq", tmp_path / "moved", tmp_path / "store")
    assert (report.imported, report.already) == (0, COUNT)
    assert (
        run_import("ledgerq", tmp_path / "moved", tmp_path / "store", queue="b").imported == COUNT
    )


def test_what_a_task_may_not_be_is_told(tmp_path: Path) -> None:
    source = ledgerq(tmp_path / "source", [message(1, bytes(100)), message(2, b"small")])

    async def run() -> import_run.ImportReport:
        limits = Limits(payload_bytes_max=50)
        async with lodeq.open(tmp_path / "store", limits=limits) as engine:
            return await import_tasks(engine, open_source("ledgerq", source), queue="mail")

    report = asyncio.run(run())
    assert (report.imported, report.unreadables) == (1, 1)
    assert report.unreadable[0].damage.offset == 64
    assert "100 bytes" in report.unreadable[0].damage.reason


def test_large_payloads_share_chunks_that_fit(tmp_path: Path) -> None:
    source = ledgerq(
        tmp_path / "source", [message(n, bytes([n]) * (900 << 10)) for n in range(1, 9)]
    )
    assert run_import("ledgerq", source, tmp_path / "store").imported == 8
    assert [task.payload[:1] for task in tasks_of(tmp_path / "store")] == [
        bytes([n]) for n in range(1, 9)
    ]


def test_payloads_above_3_mib_come_once(tmp_path: Path) -> None:
    payloads = {n: bytes([n]) * ((9 << 20) + n) for n in range(1, 4)}  # LedgerQ takes 10 MiB
    source = ledgerq(tmp_path / "source", [message(n, one) for n, one in payloads.items()])
    store = tmp_path / "store"
    assert run_import("ledgerq", source, store).imported == 3
    shutil.rmtree(store / "imports", ignore_errors=True)
    assert run_import("ledgerq", source, store).imported == 0  # and nothing is written again

    async def read() -> list[bytes]:
        async with lodeq.open(store) as engine:
            await engine._runtime.body_gc.do_all()
            found = await engine.queue("mail").list("ready")
            return [await engine.read_payload(task.id) for task in found]

    assert asyncio.run(read()) == list(payloads.values())
    assert sum(len(list(folder.iterdir())) for folder in store.glob("bodies*")) == 3


def test_large_headers_share_chunks_that_fit(tmp_path: Path) -> None:
    text = {str(n): "x" * 60_000 for n in range(8)}
    source = ledgerq(
        tmp_path / "source", [message(n, b"%d" % n, headers=text) for n in range(1, 41)]
    )

    async def run() -> import_run.ImportReport:
        limits = Limits(headers_bytes_max=512 << 10)
        async with lodeq.open(tmp_path / "store", limits=limits) as engine:
            return await import_tasks(engine, open_source("ledgerq", source), queue="mail")

    assert asyncio.run(run()).imported == 40


def test_what_was_not_imported_is_not_there_already(tmp_path: Path) -> None:
    source = ledgerq(
        tmp_path / "source",
        [
            message(1, b"expired", expires_ns=AT_NS + 2),
            message(2, bytes(17 << 20)),
            message(3, b"good"),
        ],
    )
    first = run_import("ledgerq", source, tmp_path / "store")
    assert (first.imported, first.unreadables, first.left_out) == (1, 1, {"expired already": 1})
    again = run_import("ledgerq", source, tmp_path / "store")
    assert (again.imported, again.already, again.unreadables) == (0, 1, 1)
    assert again.left_out == first.left_out


@on_loop
async def test_a_name_that_is_none_is_told_before_anything_is_written(tmp_path: Path) -> None:
    path = database(
        tmp_path / "huey.db",
        *HUEY,
        "insert into task (queue, data, priority) values ('good', x'00', 0)",
        "insert into task (queue, data, priority) values ('No Name', x'00', 0)",
    )
    async with lodeq.open(tmp_path / "store") as engine:
        source = open_source("huey", path)
        with pytest.raises(InvalidNameError, match="--queue"):
            await import_tasks(engine, source)
        assert (await engine.stats()).ready == 0
        assert (await import_tasks(engine, source, queue="mail")).imported == 2


def test_a_survey_writes_nothing_and_tells_the_same(tmp_path: Path, source: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    report = survey(open_source("ledgerq", source), SystemClock())
    assert (report.imported, report.unreadables) == (COUNT, 0)
    assert sorted(tmp_path.rglob("*")) == before
