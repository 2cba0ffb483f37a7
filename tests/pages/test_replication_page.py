"""``docs/replication.md``: its bytes are those of a record, and the tests it names are there."""

import re
from pathlib import Path

import lodeq
from lodeq.replication.record import Batch, LogRecord, decode_record

ROOT = Path(lodeq.__file__).parent
PAGE = (ROOT / "docs/replication.md").read_text("utf-8")


def test_the_bytes_of_the_record_are_right():
    (block,) = re.findall(r"```text\n(8baae.*?)```", PAGE, re.DOTALL)
    raw = bytes.fromhex("".join(re.split(" {2,}", one.strip())[0] for one in block.splitlines()))
    ops = ((b"k", b"v"), (b"g", None))
    expected = LogRecord(bytes(range(16)), 0, 7, 1, (Batch(1 << 40 | 1, ops),))
    assert decode_record(raw) == expected


def test_every_test_it_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    globs = (
        "behaviour/test_cluster_*.py",
        "behaviour/test_replicated_*.py",
        "etcd/test_*.py",
        "cluster/test_*.py",
        "sim/test_replicas.py",
    )
    files = [file for glob in globs for file in (ROOT / "tests").glob(glob)]
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert named
    assert named <= there, named - there
