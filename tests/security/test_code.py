"""Stored bytes never become code: looked for in the source, and in what a store is made with."""

import ast
import json
import re

import msgpack
import pytest
from support_sources import (
    PACKAGE,
    PYTHON,
    name_of,
    none_of,
    parse,
    text_of,
    top_of,
)

import lodeq

MODULES = {
    "cPickle",
    "cloudpickle",
    "code",
    "codeop",
    "dill",
    "imp",
    "joblib",
    "jsonpickle",
    "marshal",
    "pickle",
    "pty",
    "runpy",
    "shelve",
    "subprocess",
    "yaml",
}
CALLS = {
    "__import__",
    "compile",
    "eval",
    "exec",
    "importlib.import_module",
    "os.popen",
    "os.system",
    "pickle.loads",
    "marshal.loads",
    "yaml.load",
    "pydoc.locate",
    "globals",
    "execfile",
}


def pattern(modules, calls):
    """A pattern of the lines that import or call one of these: parsing all files takes seconds."""
    imported, called = "|".join(modules), "|".join(map(re.escape, calls))
    return re.compile(
        rf"^ *(?:import|from) .*\b(?:{imported})\b|(?<![\w.])(?:{called})\(", re.MULTILINE
    )


SUSPECT = pattern(
    MODULES, CALLS | {"os.open", "Options", "WriteBatch", "msgpack.unpackb", "unpackb"}
)
# Of a program that stores nothing (a test, a benchmark, a Spark job): these still are never right.
NEVER = {"dill", "marshal", "pickle", "shelve", "eval"}
NEVER_SUSPECT = pattern(NEVER, {"eval", "pickle.loads", "marshal.loads"})


def called(tree):
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def sins(tree):
    """What must not be there, by line."""
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        found += [(node.lineno, name) for name in names if name.partition(".")[0] in MODULES]
    for name, call in called(tree):
        keywords = {k.arg: k.value for k in call.keywords}
        raw = keywords.get("raw_mode")
        is_raw = isinstance(raw, ast.Constant) and raw.value is True
        if name in CALLS or (name in ("Options", "WriteBatch") and not is_raw):
            found.append((call.lineno, name))
        if name.endswith("unpackb") and {"object_hook", "ext_hook", "list_hook"} & set(keywords):
            found.append((call.lineno, name))
        if name == "os.open" and "O_DIRECTORY" not in (flags := flags_of(tree, call)):
            wanted = {"O_NOFOLLOW", "O_CLOEXEC"} - flags
            found += [(call.lineno, f"os.open without {flag}") for flag in sorted(wanted)]
    return found


def targets_of(node):
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def flags_of(tree, call):
    """Which O_ flags stand in the call, or in what its names were assigned in this file."""
    wanted = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
    nodes = [call.args[1]]
    nodes += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and {target.id for target in targets_of(node) if isinstance(target, ast.Name)} & wanted
        and node.value is not None
    ]
    return {
        inner.attr
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and inner.attr.startswith("O_")
    }


LINKS = "os.open without O_NOFOLLOW"
ALLOWED = {
    (
        "service/cli/commands/worker.py",
        "importlib.import_module",
    ),  # what the user names is the user's program
    ("service/cli/reload.py", "subprocess"),  # our own command again, as a list: no shell
    ("testing/history/file_check.py", LINKS),  # users name it themselves; it may be a link
    ("service/http/access/tokens_file.py", LINKS),  # a secret of Kubernetes is one
    ("engine/bulk/reader.py", LINKS),  # it only reads, and storage may show a store as links
    ("replication/etcd/rpc_pb2.py", "globals"),  # generated: it fills its own module
    ("client/documents/wire.py", "msgpack.unpackb"),  # its hooks count, and hand on
    ("service/dashboard/text.py", "msgpack.unpackb"),
}


STORES = [path for path in PACKAGE if top_of(path) != "pipeline"]  # Spark's options are its own


def test_nothing_runs_what_was_stored():
    assert len(STORES) > 250
    found = {
        (name_of(path), what): f"{name_of(path)}:{line}: {what}"
        for path in STORES
        if SUSPECT.search(text_of(path))
        for line, what in sins(parse(path))
    }
    none_of(found[one] for one in found.keys() - ALLOWED)
    assert found.keys() >= ALLOWED, "allowed, and not there any more"
    none_of(
        f"{name_of(path)}:{line}: {what}"
        for path in PYTHON
        if NEVER_SUSPECT.search(text_of(path))
        for line, what in sins(parse(path))
        if what.partition(".")[0] in NEVER
    )


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "import yaml.reader",
        "eval(x)",
        "exec(x)",
        "yaml.load(x)",
        "Options()",
        "Options(raw_mode=False)",
        "Options(raw_mode=raw)",
        "WriteBatch()",
        "msgpack.unpackb(x, ext_hook=f)",
        "os.open(p, os.O_RDONLY)",
        "flags = os.O_RDWR | os.O_NOFOLLOW\nos.open(p, flags)",
        "importlib.import_module(x)",
    ],
)
def test_the_search_finds(line):
    assert SUSPECT.search(line)
    assert sins(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "import msgpack",
        "Options(raw_mode=True)",
        "msgpack.unpackb(x, timestamp=3)",
        "flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC\nos.open(p, flags)",
        "os.open(p, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)",
    ],
)
def test_the_search_leaves_alone(line):
    assert not sins(ast.parse(line))


# -- a store ---------------------------------------------------------------------------------------

# What ``pickle`` would take for "call ``os.mkdir('pwned')``".
PICKLED = b"cos\nmkdir\n(S'pwned'\ntR."


@pytest.mark.anyio
async def test_every_shard_and_every_copy_is_written_in_raw_mode(tmp_path):
    async with lodeq.open(tmp_path / "store", shards=3) as engine:
        await engine.queue("mail").enqueue(b"x")
        await engine.checkpoint(tmp_path / "copy")
    lodeq.restore(tmp_path / "copy", tmp_path / "again")
    async with lodeq.open(tmp_path / "again"):
        pass
    for top in ("store", "again"):
        configs = sorted((tmp_path / top).rglob("rocksdict-config.json"))
        assert len(configs) == 3
        assert [json.loads(path.read_text())["raw_mode"] for path in configs] == [True] * 3


@pytest.mark.anyio
@pytest.mark.parametrize("lie", ['{"raw_mode":false,"prefix_extractors":{}}', "{}", "\0" * 30])
async def test_a_config_that_lies_changes_nothing(tmp_path, monkeypatch, lie):
    """The options are always given, so the file is written and never believed."""
    monkeypatch.chdir(tmp_path)
    async with lodeq.open(tmp_path / "store") as engine:
        await engine.queue("mail").enqueue(PICKLED)
    (tmp_path / "store" / "shard0" / "rocksdict-config.json").write_text(lie)
    async with lodeq.open(tmp_path / "store") as engine:
        assert (await engine.queue("mail").claim_one()).payload == PICKLED
    assert not (tmp_path / "pwned").exists()


@pytest.mark.anyio
async def test_what_other_decoders_would_run_comes_back_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    things = [
        PICKLED,
        {"!!python/object/apply:os.mkdir": ["pwned"]},
        {"__reduce__": ["os.mkdir", "pwned"]},
        {"__class__": "y"},
        msgpack.ExtType(42, PICKLED),
    ]
    async with lodeq.open(tmp_path / "store") as engine:
        queue = engine.queue("mail")
        for thing in things:
            await queue.enqueue(thing)
        assert [lease.payload for lease in await queue.claim(limit=len(things))] == things
    assert not (tmp_path / "pwned").exists()
