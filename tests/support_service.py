"""A file and a folder of every format, with the same three messages, and how to look at them."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner, Result

from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.formats.ledgerq.folder import write_directory as write_ledgerq
from lodeq.segments.formats.rdq import Rdq
from lodeq.segments.formats.rust_queue.writer import write_directory as write_rust
from lodeq.segments.item import Record
from lodeq.segments.journal.roll import Roll
from lodeq.segments.journal.writer import LogWriter
from lodeq.service.cli.app import lodeq
from lodeq.testing import ManualClock

AT_US = 1_700_000_000_000_000
AT = datetime.datetime.fromtimestamp(AT_US // 1_000_000, datetime.UTC)
MESSAGES = [b"first message", b"second \x1b[31m message", b"third message"]
IDS = [bytes([n]) * 16 for n in range(1, 4)]


class Cli:
    """Runs ``lodeq segments``."""

    def __call__(self, *args: object, code: int = 0) -> Result:
        result = CliRunner().invoke(lodeq, ["segments", *map(str, args)])
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    def json(self, *args: object, code: int = 0) -> list[dict]:
        out = self(*args, "--json", code=code).stdout
        return [json.loads(line) for line in out.splitlines()]


class Place(NamedTuple):
    path: Path
    file: Path  # where its messages lie
    save_as: str


def open_journal(root: Path, **roll: float) -> LogWriter:
    return LogWriter.open(str(root), clock=ManualClock(AT), roll=Roll(**roll))


def state_of(*roots: Path) -> dict[str, tuple[int, int, bytes]]:
    """Names, sizes, times and bytes."""
    paths = [path for root in roots for path in [root, *sorted(root.rglob("*"))]]
    return {
        str(path): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in paths
    }


def _sqs(path: Path) -> Place:
    path.write_bytes(HEADER + b"".join(map(Sqs().encode, IDS, MESSAGES)))
    return Place(path, path, "saved.sqs")


def _foreign(path: Path) -> Place:
    records = (Sqs().encode(*one, checksum=False) for one in zip(IDS, MESSAGES, strict=True))
    path.write_bytes(b"RSQS" + HEADER[4:] + b"".join(records))
    return Place(path, path, "saved.sqs")


def _rdq(path: Path) -> Place:
    path.write_bytes(b"".join(map(Rdq().encode, IDS, MESSAGES)))
    return Place(path, path, "saved.sqs")


def _stores(folder: Path) -> Place:
    folder.mkdir()
    for number, (id, body) in enumerate(zip(IDS, MESSAGES, strict=True)):
        (folder / f"{number}.sqs").write_bytes(HEADER + Sqs().encode(id, body))
    return Place(folder, folder / "1.sqs", "saved.sqs")


def _ledgerq(folder: Path) -> Place:
    write_ledgerq(
        folder,
        [
            Record(0, 0, body, sequence=n, timestamp_ns=AT_US * 1000, headers={"n": f"\x07{n}"})
            for n, body in enumerate(MESSAGES, 1)
        ],
        read_id=2,
    )
    return Place(folder, folder / f"{1:020}.log", "saved")


def _rust(folder: Path) -> Place:
    write_rust(folder, MESSAGES, day=AT.date())
    return Place(folder, folder / "2023" / "11" / "14" / "20231114-0000.data", "saved")


def _journal(root: Path) -> Place:
    """Two files: the first is full, with an index."""
    writer = open_journal(root, records=2)
    for n, body in enumerate(MESSAGES, 1):
        writer.append([body], headers=[{"n": f"\x07{n}"}])
    writer.close()
    return Place(root, root / "2023" / "11" / "14" / f"{1:020}.log", "saved.log")


MAKERS: dict[str, Callable[[Path], Place]] = {
    "body.sqs": _sqs,
    "foreign.sqs": _foreign,
    "old.rdq": _rdq,
    "stores": _stores,
    "ledgerq": _ledgerq,
    "rust": _rust,
    "journal": _journal,
}


def spoil(file: Path, text: bytes = b"second") -> int:
    """Change a byte of a message, where there is one; cut the end off where bodies have no sum."""
    data = bytearray(file.read_bytes())
    at = data.find(text)
    if data[:4] == b"RSQS" or file.suffix == ".rdq":
        file.write_bytes(data[:-5])
        return len(data) - 5
    data[at] ^= 0x20
    file.write_bytes(data)
    return at
