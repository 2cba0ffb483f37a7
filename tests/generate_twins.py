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
from functools import partial
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "client"
TWINS = SOURCES / "blocking"
GENERATED = (
    *("cluster/claims", "cluster/enqueues", "cluster/fast_calls", "cluster/nodes"),
    *("cluster/spread", "cluster/transport"),
    *("engine_calls", "fast_calls", "lease", "payload", "queue", "requests"),
)
BY_HAND = ("cluster/together", "connect", "engine", "leases", "waits")
NAMES = {
    name: f"Sync{name}"
    for name in (
        "ClusterFastCalls",
        "ClusterTransport",
        "FastCalls",
        "FramedLink",
        "Nodes",
        "Transport",
        "RemoteCalls",
        "RemoteEngine",
        "RemoteLease",
        "RemoteLeaseStream",
        "RemotePayloadReader",
        "RemoteQueue",
        "RemoteRequests",
        "Workflow",
    )
} | {"aclose": "close"}
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
    "transport.framed_link": "transport.blocking_link",
    "flows.workflow_handle": "flows.sync_workflow_handle",
    "from .transport.shared_link import SharedLink\n": "",
    "FramedLink | SharedLink": "FramedLink",
    "The calls a queue lives by, the short way:": "The calls a queue lives by, blocking:",
    "of a client share.": "of a client that blocks share.",
    "that are requests to its server": "that are requests to its server, blocking",
}
IMPORT = re.compile(r"^(?P<indent>\s*from )(?P<dots>\.+)(?P<name>[\w.]*)", re.MULTILINE)


def one_deeper(folder: str, match: re.Match[str]) -> str:
    """The import of a twin, which lies one folder deeper; twins import each other."""
    up = len(match["dots"]) - 1
    parts = [part for part in folder.split("/") if part]
    path = "/".join([*parts[: len(parts) - up], *match["name"].split(".")])
    is_twin = up <= len(parts) and path in {*GENERATED, *BY_HAND}
    if is_twin or up > len(parts):
        return match["indent"] + match["dots"] + ("" if is_twin else ".") + match["name"]
    # From a twin's folder back to ``client``, and down again.
    return match["indent"] + "." * (len(parts) + 2) + path.replace("/", ".")


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
        source.parent.mkdir(parents=True)
        text = (SOURCES / f"{name}.py").read_text("utf-8")
        for found, instead in TEXTS.items():
            text = text.replace(found, instead)
        source.write_text(text, "utf-8")
        rule = unasync.Rule("/async/", "/blocking/", additional_replacements=NAMES)
        unasync.unasync_files([str(source)], [rule])
        text = Path(folder, "blocking", f"{name}.py").read_text("utf-8")
    head = f"# Generated from client/{name}.py by make twins; do not edit.\n"
    inner = partial(one_deeper, name.rpartition("/")[0])
    return formatted(head + IMPORT.sub(inner, text), TWINS / f"{name}.py")


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
