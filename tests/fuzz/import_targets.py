"""Targets: whole sources to import, small and valid, with their containers and numbers mutated.

An input is a folder, packed: names, sizes, bytes. The mutations of ``mutate`` fall on any of it;
``fix`` makes the checksums within right again, where the format has one. What comes of a source
that is read at all is told as the report of a survey; what is read twice is the same twice.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
from fuzz.target import Target, _b
from support_import import AT_NS, HUEY, LITEQUEUE, message, persist_table

from lodeq.engine.runtime.clock import SystemClock
from lodeq.errors import LodeqError
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.checksums import crc32c
from lodeq.segments.formats.ledgerq.folder import write_directory as write_ledgerq
from lodeq.segments.formats.ledgerq.state import (
    DedupEntry,
    DedupState,
    GoTime,
    RetryEntry,
    RetryState,
)
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.formats.rust_queue.codec import RustQueue
from lodeq.service.transfer.entries import Foreign
from lodeq.service.transfer.import_run import survey
from lodeq.service.transfer.source_kinds import open_source

__all__ = ["IMPORTS", "laid_out", "pack", "source_of", "unpack"]


def _pickled(value: Any, protocol: int = 4) -> bytes:
    """What would load as that, of numbers, text, None, lists and dictionaries; none is loaded."""
    return b"\x80" + bytes((protocol,)) + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value)) + value.encode()
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    pairs = (_opcodes(name) + _opcodes(one) for name, one in value.items())
    return b"}(" + b"".join(pairs) + b"u"


_PART = struct.Struct("<BI")
_NAMES_MAX, _FILES_MAX = 60, 12
_SQLITE_PAGE = 512  # small, so that a mutation meets a header, a pointer or a size

Files = dict[str, bytes]


def pack(files: Files) -> bytes:
    """A folder as bytes."""
    out = []
    for name, data in files.items():
        out += [_PART.pack(len(name), len(data)), name.encode(), data]
    return b"".join(out)


def unpack(raw: bytes) -> Files:
    """The inverse, of anything: what does not fit ends with the bytes."""
    files: Files = {}
    at = 0
    while at + _PART.size <= len(raw) and len(files) < _FILES_MAX:
        count, size = _PART.unpack_from(raw, at)
        at += _PART.size
        name = raw[at : at + count].decode("ascii", "replace").replace("\0", "?")
        at += count
        files[name[:_NAMES_MAX]] = raw[at : at + size]
        at += size
    return files


def laid_out(raw: bytes, folder: Path) -> None:
    """The folder, made of an input; a name that leads elsewhere is left out."""
    folder.mkdir()
    for name, data in unpack(raw).items():
        path = folder / name.lstrip("/")
        if ".." in path.parts or not path.name:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError:
            continue


def _read(name: str) -> Callable[[bytes], Any]:
    def read(raw: bytes) -> Any:
        work = tempfile.mkdtemp(prefix="lodeq-fuzz-", dir=_SHM)
        try:
            folder = Path(work, "source")
            laid_out(raw, folder)
            reports = []
            for _ in range(2):
                source = source_of(name, folder)
                told: list[str] = []
                report = survey(
                    source, SystemClock(), on_unreadable=lambda _, d, t=told: t.append(d.reason)
                )
                assert all("\n" not in reason and len(reason) < 1000 for reason in told), told
                reports.append((report.imported, report.dead, report.keys, report.unreadables))
            assert reports[0] == reports[1]
            return reports[0]
        finally:
            shutil.rmtree(work, ignore_errors=True)

    return read


_SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# --- examples ---------------------------------------------------------------------------------


def _chunks(rng: random.Random) -> bytes:
    kind = rng.randrange(3)
    items = [[n, "x" * rng.randrange(40), None] for n in range(rng.randrange(1, 6))]
    if kind == 0:
        data = b"".join(_pickled(item, rng.randrange(2, 5)) for item in items)
    elif kind == 1:
        data = b"".join(json.dumps(item).encode() + b"\n" for item in items)
    else:
        packed = [msgpack.packb(item) for item in items]
        data = b"".join(struct.pack("<I", len(one)) + one for one in packed)
    info = {"chunksize": 10, "size": len(items), "tail": [0, 0, 0], "head": [1, 0, 0]}
    told = (_pickled(info, 4), json.dumps(info).encode(), msgpack.packb(info))[kind]
    if kind == 2:
        told = struct.pack("<I", len(told)) + told
    return pack({"info": told, "q00000": data, "q00001": b""})


def _database(*statements: Any) -> bytes:
    with tempfile.TemporaryDirectory(dir=_SHM) as work:
        path = os.path.join(work, "a.db")
        db = sqlite3.connect(path)
        db.execute(f"PRAGMA page_size={_SQLITE_PAGE}")
        for statement in statements:
            sql, values = (statement, ()) if isinstance(statement, str) else statement
            db.execute(sql, values)
        db.commit()
        db.close()
        return pack({"a.db": Path(path).read_bytes()})


def _huey(rng: random.Random) -> bytes:
    rows = [
        (
            "insert into task (queue, data, priority) values (?, ?, ?)",
            ("mail", _pickled(n, 4) + _b(rng, 30), rng.choice((0, 5, -3.5))),
        )
        for n in range(rng.randrange(1, 30))
    ]
    rows += [
        (
            "insert into schedule (queue, data, timestamp) values (?, ?, ?)",
            ("mail", _b(rng, 900), rng.choice((4e9, 1e12, 0.5, -1.0, 1.7e9))),
        )
        for _ in range(rng.randrange(5))
    ]
    return _database(*HUEY, *rows)


def _litequeue(rng: random.Random) -> bytes:
    rows = [
        (
            "insert into Queue values (?, ?, ?, ?, ?, ?)",
            (
                "é" * rng.randrange(30),
                f"{n:032x}",
                rng.randrange(4),
                AT_NS,
                rng.choice((None, AT_NS)),
                rng.choice((None, AT_NS + 1, -1)),
            ),
        )
        for n in range(rng.randrange(1, 30))
    ]
    return _database(*LITEQUEUE, *rows)


def _persist(rng: random.Random) -> bytes:
    name, more = rng.choice(
        (
            ("ack_queue_default", ", status INTEGER"),
            ("queue_default", ""),
            ("priority_queue_mail", ", priority INTEGER"),
        )
    )
    marks = ", ?" if more else ""
    rows = [
        (
            f"insert into {name} values (?, ?, ?{marks})",  # noqa: S608 - ours
            (n + 1, _pickled(n, 4), 1.7e9 + n, *([rng.choice((0, 1, 2, 5, 9))] if more else [])),
        )
        for n in range(rng.randrange(1, 30))
    ]
    return _database(persist_table(name, more), *rows)


def _folder(write: Callable[[Path], None]) -> Files:
    with tempfile.TemporaryDirectory(dir=_SHM) as work:
        folder = Path(work, "queue")
        write(folder)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _ledgerq(rng: random.Random) -> bytes:
    count = rng.randrange(1, 6)
    messages = []
    for n in range(1, count + 1):
        headers = {"k": "v"}
        if rng.random() < 0.5:
            headers = {
                "dlq.original_msg_id": str(n),
                "dlq.retry_count": rng.choice(("3", "-5", "65536")),
                "dlq.failure_reason": "no",
                "dlq.last_failure": "2026-01-02T03:04:05Z",
            }
        messages.append(message(n, _b(rng, 50), headers=headers, priority=rng.choice((None, 0, 2))))
    retries = RetryState(3, (RetryEntry(1, 2, GoTime(AT_NS), "no"),))
    dedup = DedupState((DedupEntry("ab" * 32, 1, AT_NS, rng.choice((AT_NS, 4 * 10**18))),))
    return pack(_folder(lambda folder: _write_ledgerq(folder, messages, retries, dedup)))


def _write_ledgerq(folder: Path, messages: Any, retries: RetryState, dedup: DedupState) -> None:
    write_ledgerq(folder, messages, read_id=1, retries=retries, dedup=dedup)


def _fix_ledgerq(raw: bytes) -> bytes:
    """The checksums of the records of its segments, one behind the other as far as lengths lead."""
    files = unpack(raw)
    for name, data in files.items():
        if not name.endswith(".log"):
            continue
        fixed, at = bytearray(data), 64
        while at + 4 <= len(fixed):
            length = int.from_bytes(fixed[at : at + 4], "little")
            if length < 26 or at + length > len(fixed):
                break
            end = at + length - 4
            fixed[end : end + 4] = struct.pack("<I", crc32c(bytes(fixed[at:end])))
            at += length + 4
        files[name] = bytes(fixed)
    return pack(files)


def _rust(rng: random.Random) -> bytes:
    data = b"".join(RustQueue().encode(_b(rng, 60) + b"x") for _ in range(rng.randrange(1, 6)))
    return pack(
        {
            "2026/01/15/20260115-0001.data": data + bytes(rng.randrange(40)),
            "2026/01/15/20260115-0002.data": RustQueue().encode(b"last"),
            "2026/01/15/20260115-0001.index": struct.pack("<QQ240s", 1024, 0, b""),
        }
    )


def _fix_rust(raw: bytes) -> bytes:
    files = unpack(raw)
    for name, data in files.items():
        if not name.endswith(".data"):
            continue
        fixed, at = bytearray(data), 0
        while at + 4 <= len(fixed):
            length = int.from_bytes(fixed[at : at + 4], "little")
            end = at + 4 + length
            if not length or end + 4 > len(fixed):
                break
            fixed[end : end + 4] = struct.pack("<I", zlib.crc32(bytes(fixed[at:end])))
            at = end + 4
        files[name] = bytes(fixed)
    return pack(files)


def _rabbit(rng: random.Random) -> bytes:
    old = b"".join(Rdq().encode(rng.randbytes(16), _b(rng, 60)) for _ in range(3))
    new = HEADER + b"".join(Sqs().encode(rng.randbytes(16), _b(rng, 60)) for _ in range(3))
    return pack({"0.rdq": old + bytes(rng.randrange(30)), "1.sqs": new})


def source_of(name: str, folder: Path) -> Foreign:
    """What a target reads there."""
    kind, file = _SOURCES[name]
    return open_source(kind, folder / file if file else folder, source_id="fuzz")


_SOURCES: Final = {
    "import_chunks": ("persist-queue", ""),
    "import_persist": ("persist-queue", "a.db"),
    "import_huey": ("huey", "a.db"),
    "import_litequeue": ("litequeue", "a.db"),
    "import_ledgerq": ("ledgerq", ""),
    "import_rust": ("rust-queue", ""),
    "import_rabbit": ("rdq", ""),
}


def _target(
    name: str, example: Callable[[random.Random], bytes], fix: Callable[[bytes], bytes] = bytes
) -> Target:
    return Target((), example, _read(name), errors=(LodeqError,), fix=fix, rate=0.01)


IMPORTS = {
    "import_chunks": _target("import_chunks", _chunks),
    "import_persist": _target("import_persist", _persist),
    "import_huey": _target("import_huey", _huey),
    "import_litequeue": _target("import_litequeue", _litequeue),
    "import_ledgerq": _target("import_ledgerq", _ledgerq, _fix_ledgerq),
    "import_rust": _target("import_rust", _rust, _fix_rust),
    "import_rabbit": _target("import_rabbit", _rabbit),
}
