"""Writes the blocking twins of the client's forwarding modules from their async sources.

::

    make twins
    python tests/generate_twins.py --check    # exit 1 if a file differs

Calls, leases and queues are written once, async, in ``client/``. Their twins in
``client/blocking/`` are checked in, and a test compares them. The modules in ``BY_HAND`` wait in
another way on each side and are written twice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "client"
TWINS = SOURCES / "blocking"
GENERATED = ("engine_calls", "lease", "queue", "requests")
BY_HAND = ("engine", "leases", "waits")
NAMES = {
    name: f"Sync{name}"
    for name in (
        "Link",
        "RemoteCalls",
        "RemoteEngine",
        "RemoteLease",
        "RemoteLeaseStream",
        "RemoteQueue",
        "RemoteRequests",
    )
}
# In texts, which are not tokens.
TEXTS = {
    "<RemoteQueue ": "<SyncRemoteQueue ",
    "on a task of a served store, with": "on a task of a served store whose calls block, with",
    "A queue of a served store, with": "A queue of a served store whose calls block, with",
    '"""A lease on a task of a served store."""': '"""A lease of a client whose calls block."""',
    '"""A queue of a served store, as its users hold it."""': (
        '"""A queue of a client whose calls block."""'
    ),
    '"""The calls of a served engine:': '"""The calls of a served engine that block:',
    "of a client share.": "of a client that blocks share.",
    "that are requests to its server": "that are requests to its server, blocking",
}
IMPORT = re.compile(r"^(?P<indent>\s*from )(?P<dots>\.+)(?P<name>\w*)", re.MULTILINE)


def one_deeper(match: re.Match[str]) -> str:
    """The import of a twin, which lies one folder deeper; twins import each other."""
    is_beside = match["dots"] == "." and match["name"] in {*GENERATED, *BY_HAND}
    return match["indent"] + match["dots"] + ("" if is_beside else ".") + match["name"]


def formatted(text: str, path: Path) -> str:
    """As ruff sorts the imports and lays out the lines."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(path), "-"]
    for command in (["check", "--quiet", "--select", "I,RUF022", "--fix"], ["format", "--quiet"]):
        text = subprocess.run(
            [*ruff, *command, *name], input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


def twin_of(name: str) -> str:
    """The text of a twin."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "async", f"{name}.py")
        source.parent.mkdir()
        text = (SOURCES / source.name).read_text("utf-8")
        for found, instead in TEXTS.items():
            text = text.replace(found, instead)
        source.write_text(text, "utf-8")
        rule = unasync.Rule("/async/", "/blocking/", additional_replacements=NAMES)
        unasync.unasync_files([str(source)], [rule])
        text = Path(folder, "blocking", source.name).read_text("utf-8")
    head = f"# Generated from client/{name}.py by make twins; do not edit.\n"
    return formatted(head + IMPORT.sub(one_deeper, text), TWINS / f"{name}.py")


def main(arguments: list[str]) -> int:
    differ = []
    for name in GENERATED:
        path, text = TWINS / f"{name}.py", twin_of(name)
        if not path.exists() or path.read_text("utf-8") != text:
            differ.append(path.name)
            if arguments != ["--check"]:
                path.write_text(text, "utf-8")
    print("\n".join(differ) if differ else "every twin is as generated")
    return 1 if differ and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
