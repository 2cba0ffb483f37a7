"""Every public call is held by this suite, in every form: a new one has to be called here first."""

import ast
from pathlib import Path

from support_sources import none_of

import lodeq
from lodeq.repository.model.flows.workflow_handle import Workflow

HERE = Path(__file__).parent
SERVED = HERE.parent / "service" / "http"
OF_PORTS = {
    "test_journal.py",
    "test_shared_log.py",
    "test_spawner.py",
    "test_store.py",
    "test_surface.py",
}
# What a lease keeps for the engine, not for its holder.
KEPT = {
    *(
        "shard_queue",
        "codec",
        "state",
        "dead_row",
        "deadline_mono",
        "expires_ms",
        "face",
        "flags",
        "ghost",
    ),
    *("ghost_expires_ms", "granted_mono", "key", "leased_us", "packed_policy", "record"),
    *("record_bytes", "runs", "stored", "stored_headers", "stored_s", "times", "worker"),
}
CLASSES = (lodeq.Engine, lodeq.Queue, lodeq.Lease, lodeq.LeaseStream, Workflow)
# Held elsewhere, because they need a folder of the server: tests/service/http/test_bulk.py.
OF_FOLDERS = {"checkpoint", "forget_loads", "ingest", "purge_archived"}
# Held by tests/behaviour/test_streamed_payloads.py and tests/service/http/test_enqueue_stream.py:
# it needs a store on disk.
EMBEDDED = {"enqueue_stream"}


def used(path):
    """Names of attributes that a module asks for."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def suites():
    return [path for path in HERE.glob("test_*.py") if path.name not in OF_PORTS]


def test_every_public_call_is_made_by_the_suite():
    called = set().union(*map(used, suites())) | OF_FOLDERS | EMBEDDED
    names = {
        (kind.__name__, name)
        for kind in CLASSES
        for name in dir(kind)
        if not name.startswith("_") and name not in KEPT
    }
    assert len(names) > 90
    none_of(f"{kind}.{name} is called nowhere" for kind, name in names if name not in called)


def test_what_is_held_elsewhere_is():
    bulk = used(SERVED / "test_bulk.py") | used(SERVED / "test_sync.py")
    none_of(f"{name} is not called there either" for name in OF_FOLDERS - bulk)


def imported(path):
    tree = ast.parse(path.read_text("utf-8"))
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "conformance"
        for alias in node.names
    }


def test_every_module_of_the_suite_is_run_served_and_blocking():
    modules = {path.stem for path in suites()}
    blocking = set(SERVED.glob("test_*conformance_blocking.py"))
    served = set().union(*map(imported, set(SERVED.glob("test_*.py")) - blocking))
    without_async = set().union(*map(imported, blocking))
    none_of(f"{name} is not run over HTTP and the link" for name in modules - served)
    none_of(f"{name} is not run without async" for name in modules - without_async)
