"""The ruler of the house: measures layout, names and English of any commit, by its syntax trees.

::

    python tests/house.py                    # the working tree
    python tests/house.py v1.2               # a commit
    python tests/house.py --json             # the figures, for programs
    python tests/house.py --list circles     # what a row counts, one line each
    python tests/house.py --definitions      # what each row counts, in words

The product is every ``.py`` file outside ``tests``, ``bench``, ``docs`` and ``examples``, without
``setup.py``; ``testing`` belongs to it. A file that begins with a line "# Generated …" is left out
of the statements, and counted everywhere else. The docstring of each function in ``ROWS``
is the definition of its row.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import tokenize
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "lodeq"
BESIDE = {"bench", "docs", "examples", "tests"}  # in the checkout, not in the package

Function = ast.FunctionDef | ast.AsyncFunctionDef

PRIVATE_WORDS = r"told|tell|tells|telling"
NOUNS = {
    "anything",
    "being",
    "ceiling",
    "everything",
    "king",
    "nothing",
    "ping",
    "ring",
    "sibling",
    "something",
    "spring",
    "string",
    "thing",
    "wing",
}
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
KEY_FAMILIES = "abegjlmoqrst"  # the letters that on-disk keys begin with
RECORD_KINDS = {0x4C, 0x4D, 0x52, 0x54}  # lease, stamp, result, task
INDEX_KINDS = {0x64, 0x72, 0x78}  # delayed, ready, dead


class Figure(NamedTuple):
    """One row's figure: as a number or several, as shown, and what was counted."""

    value: Any
    shown: str
    found: list[str]


class Tree:
    """The files of one commit: names with ``/``, texts, syntax trees."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self.product = {
            name: text
            for name, text in sorted(files.items())
            if name.endswith(".py")
            and name != "setup.py"
            and name.split("/")[0] not in BESIDE
            and not name.startswith(".")
        }
        self.trees = {name: ast.parse(text, name) for name, text in self.product.items()}
        self.modules = {module_name(name): name for name in self.product}

    @functools.cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """Every node of a file's tree, walked once."""
        return {name: list(ast.walk(tree)) for name, tree in self.trees.items()}

    def each(self, *, beside: str = "") -> Iterator[tuple[str, ast.AST]]:
        """All nodes of the product with their file; ``beside`` leaves a folder out."""
        for name, nodes in self.nodes.items():
            if not beside or not name.startswith(beside + "/"):
                for node in nodes:
                    yield name, node


def module_name(file: str) -> str:
    """``lodeq.errors`` for ``errors.py``; a package's name for its ``__init__.py``."""
    parts = [PACKAGE, *file.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place(file: str, node: ast.AST) -> str:
    return f"{file}:{getattr(node, 'lineno', 1)}: {ast.unparse(node).splitlines()[0][:120]}"


def order(line: str) -> tuple[str, int, str]:
    """By file, then by number of the line."""
    file, number, *_ = (*line.split(":", 2), "", "")
    return file, int(number) if number.isdigit() else 0, line


def count(found: Iterable[str]) -> Figure:
    lines = sorted(found, key=order)
    return Figure(len(lines), str(len(lines)), lines)


# --- layout -------------------------------------------------------------------------------------


def largest_folder(tree: Tree) -> Figure:
    """Most `.py` files that lie directly in one folder of the product, `__init__.py` counted."""
    by_folder: dict[str, int] = {}
    for name in tree.product:
        folder = name.rpartition("/")[0] or "."
        by_folder[folder] = by_folder.get(folder, 0) + 1
    ranked = sorted(by_folder.items(), key=lambda row: (-row[1], row[0]))
    first = ranked[0] if ranked else ("none", 0)
    return Figure(first[1], f"{first[1]} ({first[0]}/)", [f"{n} {f}/" for f, n in ranked])


def import_base(file: str, node: ast.ImportFrom) -> str:
    """The module a ``from`` names, absolute."""
    if not node.level:
        return node.module or ""
    package = [PACKAGE, *file.split("/")[:-1]]
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def origin(tree: Tree, module: str, name: str, seen: tuple[str, ...] = ()) -> str | None:
    """The module an imported name comes from, followed through what ``__init__.py`` hands on."""
    if f"{module}.{name}" in tree.modules:
        return f"{module}.{name}"
    file = tree.modules.get(module)
    if file is None:
        return None
    if file.endswith("__init__.py") and module not in seen:
        for node in tree.nodes[file]:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        base = import_base(file, node)
                        found = origin(tree, base, alias.name, (*seen, module))
                        if found is not None:
                            return found
    return module


def imports(tree: Tree) -> dict[str, set[str]]:
    """Which files each file imports from, typing-only and function-local imports included."""
    arrows: dict[str, set[str]] = {name: set() for name in tree.product}
    for file, node in tree.each():
        targets: list[str | None] = []
        if isinstance(node, ast.ImportFrom):
            base = import_base(file, node)
            targets = [origin(tree, base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        arrows[file].update(tree.modules[to] for to in targets if to in tree.modules)
        arrows[file].discard(file)
    return arrows


def strong_components(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of two or more that reach one another, largest first (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in sorted(arrows):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(sorted(arrows[root])))]
        while work:
            here, rest = work[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    work.append((to, iter(sorted(arrows[to]))))
                    break
                if to in stack:
                    low[here] = min(low[here], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[here])
                if low[here] == index[here]:
                    at = stack.index(here)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
    return sorted(found, key=lambda circle: (-len(circle), circle))


def circles(tree: Tree) -> Figure:
    """Strongly connected groups of modules, every import counted: typing-only and local ones too; a re-exported name leads to the module that has it."""  # noqa: E501 - a definition is one line
    found = strong_components(imports(tree))
    sizes = [len(circle) for circle in found]
    value = {"circles": len(found), "largest": max(sizes, default=0), "files": sum(sizes)}
    shown = f"{len(found)} (largest {value['largest']} files; {value['files']} in all)"
    return Figure(value, shown, [f"{len(circle)}: {' '.join(circle)}" for circle in found])


# --- words --------------------------------------------------------------------------------------


def gerunds(tree: Tree) -> Figure:
    """Modules with a word ending in -ing in their base name, but for nouns such as `string` and `ring`."""  # noqa: E501
    return count(
        name
        for name in tree.product
        if any(
            word.endswith("ing") and word not in NOUNS
            for word in name.rpartition("/")[2].removesuffix(".py").lower().split("_")
        )
    )


def words_matching(tree: Tree, pattern: str, flags: int = 0) -> Figure:
    found = re.compile(pattern, flags)
    return count(
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in tree.product.items()
        for number, line in enumerate(text.splitlines(), 1)
        for _ in found.findall(line)
    )


def told(tree: Tree) -> Figure:
    """Occurrences of `told`, `tell`, `tells`, `telling` as whole words in the product's text: code, comments, strings."""  # noqa: E501
    return words_matching(tree, rf"\b(?:{PRIVATE_WORDS})\b")


def told_inside(tree: Tree) -> Figure:
    """The same words in any case, parts of identifiers (`is_told`, `TellAll`) counted as well."""
    lower = rf"(?i:(?<![a-z])(?:{PRIVATE_WORDS})(?![a-z]))"
    camel = (
        r"(?<=[a-z])(?:Told|Tells?|Telling)(?![a-z])|(?<![A-Za-z])(?:Told|Tells?|Telling)(?=[A-Z])"
    )
    return words_matching(tree, f"{lower}|{camel}")


def docstrings(tree: Tree, word: str) -> Figure:
    return count(
        f"{name}:{node.lineno}: {node.value.value.strip().splitlines()[0][:120]}"
        for name, node in tree.each()
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and re.match(rf"\s*{word}\b", node.value.value)
    )


def of_docstrings(tree: Tree) -> Figure:
    """Docstrings (strings that stand alone as a statement) whose first word is `Of`."""
    return docstrings(tree, "Of")


def what_docstrings(tree: Tree) -> Figure:
    """Docstrings whose first word is `What`."""
    return docstrings(tree, "What")


def functions(
    body: Iterable[ast.stmt],
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Functions of a module and of its classes, not those inside functions; is it a method?"""
    for node in body:
        if isinstance(node, Function):
            yield node, False
        elif isinstance(node, ast.ClassDef):
            for inner, _ in functions(node.body):
                yield inner, True
        elif isinstance(node, ast.If | ast.Try):
            yield from functions([*node.body, *node.orelse])


def explained(function: ast.FunctionDef | ast.AsyncFunctionDef, names: list[str]) -> bool:
    """Has it an ``Args:`` section that names at least one of its parameters?"""
    _, args, section = (ast.get_docstring(function) or "").partition("Args:\n")
    section = section.partition("\n\n")[0]
    entries = re.findall(r"^\s+\*{0,2}(\w[\w, *]*?)(?: \([^)]*\))?:", section, re.MULTILINE)
    said = {name.strip(" *") for entry in entries for name in entry.split(",")}
    return bool(args) and not said.isdisjoint(names)


def unexplained(tree: Tree) -> Figure:
    """Public functions and methods with four or more parameters (`self`, `*args`, `**kwargs` apart) whose docstring has an `Args:` that names one; listed: those without."""  # noqa: E501
    total, without = 0, []
    for file, module in tree.trees.items():
        for function, is_method in functions(module.body):
            args = function.args
            names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
            if is_method and names[:1] in (["self"], ["cls"]):
                del names[0]
            if function.name.startswith("_") or len(names) < 4:
                continue
            total += 1
            if not explained(function, names):
                without.append(f"{file}:{function.lineno}: {function.name}")
    value = {"with": total - len(without), "of": total}
    return Figure(value, f"{value['with']} of {total}", without)


def comments(tree: Tree, pattern: str) -> Figure:
    found = re.compile(pattern)
    return count(
        f"{name}:{token.start[0]}: {token.line.strip()[:120]}"
        for name, text in tree.product.items()
        if "fmt:" in text
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and found.search(token.string)
    )


def fmt_skip(tree: Tree) -> Figure:
    """Comments `# fmt: skip` in the product."""
    return comments(tree, r"fmt:\s*skip")


def fmt_off(tree: Tree) -> Figure:
    """Comments `# fmt: off` in the product."""
    return comments(tree, r"fmt:\s*off")


# --- who owns what ------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def made_here(nodes: Iterable[ast.AST]) -> set[str]:
    """Private attributes that classes of a module make: methods, fields, slots, ``self._x = …``."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                names.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, Function):
                    names.add(part.name)
                elif isinstance(part, ast.Assign | ast.AnnAssign):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    for target in targets:
                        if isinstance(target, ast.Name):
                            names.add(target.id)
                            if target.id == "__slots__" and part.value is not None:
                                names.update(strings(part.value))
    return {name for name in names if is_private(name)}


def reached(node: ast.AST) -> tuple[ast.expr, str] | None:
    """(object, attribute) of ``x._y``, also where it is spelled ``getattr(x, "_y")``."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "setattr", "hasattr", "delattr"}
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    ):
        return node.args[0], str(node.args[1].value)
    return None


def is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        return value.id in {"self", "cls"}
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "super"


def imported_names(nodes: Iterable[ast.AST]) -> set[str]:
    return {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def foreign_parameters(nodes: list[ast.AST]) -> dict[int, str]:
    """Uses of parameters whose annotation is an imported class, by the id of the node."""
    imported = imported_names(nodes)
    uses: dict[int, str] = {}
    for node in nodes:
        if not isinstance(node, Function):
            continue
        names = set()
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if arg.annotation is not None:
                words = re.findall(r"\w+", ast.unparse(arg.annotation))
                if imported.intersection(words):
                    names.add(arg.arg)
        for inner in ast.walk(node) if names else ():
            if isinstance(inner, ast.Name) and inner.id in names:
                uses[id(inner)] = inner.id
    return uses


def private_reads(tree: Tree) -> Figure:
    """`x._y` (read or written, `getattr` with a literal too) of an attribute the product makes, where x is not `self`, `cls` or `super()` and no class of the same file makes `_y`, or x is a parameter annotated with an imported class; and imports of a `_name` from another module. Named tuples' methods are public."""  # noqa: E501
    here = {name: made_here(nodes) for name, nodes in tree.nodes.items()}
    anywhere = set().union(*here.values())
    found: list[tuple[str, int, str]] = []
    for file, nodes in tree.nodes.items():
        foreign = foreign_parameters(nodes)
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                if import_base(file, node).split(".")[0] == PACKAGE:
                    found.extend(
                        (file, node.lineno, f"import {alias.name}")
                        for alias in node.names
                        if is_private(alias.name)
                    )
                continue
            pair = reached(node)
            if pair is None or not is_private(pair[1]) or is_own(pair[0]):
                continue
            if pair[1] in anywhere and (pair[1] not in here[file] or id(pair[0]) in foreign):
                found.append((file, node.lineno, ast.unparse(node)))
    return count(f"{file}:{line}: {text}" for file, line, text in found)


def key_prefixes(tree: Tree) -> Figure:
    """Bytes literals outside `engine/` that are a key family (`b"t/"`), its end (`b"t0"`), or begin with `b"m/"`."""  # noqa: E501
    pattern = re.compile(rb"[%b](?:[/0]|/[a-z]/?)|m/.*" % KEY_FAMILIES.encode())
    return count(
        place(file, node)
        for file, node in tree.each(beside="engine")
        if isinstance(node, ast.Constant)
        and isinstance(node.value, bytes)
        and pattern.fullmatch(node.value)
    )


def line_of(tree: Tree, file: str, node: ast.expr) -> str:
    return tree.product[file].splitlines()[node.lineno - 1]


def is_hex(tree: Tree, file: str, node: ast.Constant) -> bool:
    return line_of(tree, file, node).encode()[node.col_offset :].lower().startswith(b"0x")


def record_bytes(tree: Tree) -> Figure:
    """Numbers outside `engine/` that are the kind of a record (0x4C lease, 0x4D stamp, 0x52 result, 0x54 task) or of an index row (0x64, 0x72, 0x78): written as hex, or the first argument of a call with a number behind it (`pack(76, 1, …)`)."""  # noqa: E501
    found: dict[int, str] = {}
    for file, node in tree.each(beside="engine"):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            if node.value in RECORD_KINDS | INDEX_KINDS and is_hex(tree, file, node):
                found[id(node)] = f"{file}:{node.lineno}: {line_of(tree, file, node).strip()}"
        elif isinstance(node, ast.Call):
            kind, version = (*node.args, None, None)[:2]
            if (
                isinstance(kind, ast.Constant)
                and isinstance(version, ast.Constant)
                and kind.value in RECORD_KINDS
                and type(version.value) is int
            ):
                found[id(kind)] = f"{file}:{kind.lineno}: {line_of(tree, file, kind).strip()}"
    return count(found.values())


def is_slot_step(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        right = node.right
        if isinstance(node.op, ast.RShift):
            return isinstance(right, ast.Constant) and right.value == 12
        if isinstance(node.op, ast.FloorDiv):
            return "SLOTS" in ast.unparse(node)
    if isinstance(node, ast.Call) and len(node.args) == 2:
        is_shift = ast.unparse(node.func).rpartition(".")[2].lower() == "shiftright"
        return is_shift and ast.unparse(node.args[1]) == "12"
    return False


def slot_arithmetic(tree: Tree) -> Figure:
    """Expressions outside `engine/` that turn slots into shards or back: `… >> 12`, `shiftright(…, 12)`, `… // SLOTS`, `… * SLOTS // …`."""  # noqa: E501
    return count(
        place(file, node) for file, node in tree.each(beside="engine") if is_slot_step(node)
    )


def poison_checks(tree: Tree) -> Figure:
    """Calls of `isinstance` whose first argument names something with `poison` in it."""
    return count(
        place(file, node)
        for file, node in tree.each()
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and node.args
        and "poison" in ast.unparse(node.args[0])
    )


# --- size ---------------------------------------------------------------------------------------


def is_generated(text: str) -> bool:
    head = "\n".join(text.splitlines()[:5])
    return re.search(r'^(?:# |""")Generated\b', head, re.MULTILINE) is not None


def statements(tree: Tree) -> Figure:
    """Statements of the syntax tree in the product, files left out of whose first five lines one begins with `# Generated` or `\"\"\"Generated`."""  # noqa: E501
    by_file = {
        name: sum(isinstance(node, ast.stmt) for node in tree.nodes[name])
        for name, text in tree.product.items()
        if not is_generated(text)
    }
    ranked = sorted(by_file.items(), key=lambda row: (-row[1], row[0]))
    return Figure(
        sum(by_file.values()), f"{sum(by_file.values()):,}", [f"{n} {f}" for f, n in ranked]
    )


def readme(tree: Tree) -> Figure:
    """Lines of README.md, and links in it (`](`)."""
    text = tree.files.get("README.md", "")
    value = {"lines": len(text.splitlines()), "links": text.count("](")}
    links = [line.strip()[:120] for line in text.splitlines() if "](" in line]
    return Figure(value, f"{value['lines']} lines, {value['links']} links", links)


def long_files(tree: Tree) -> Figure:
    """Advice: files of the product with 360 to 400 lines, which may have been cut for a limit's sake."""  # noqa: E501
    lines = {name: len(text.splitlines()) for name, text in tree.product.items()}
    return count(f"{n} {name}" for name, n in sorted(lines.items()) if 360 <= n <= 400)


# --- calls that are followed --------------------------------------------------------------------


class Step:
    """Awaits a coroutine and notes each function of the package that runs meanwhile, anywhere."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.notes: set[tuple[str, str, str]] | None = None  # caller's file, file, function
        self.entry = ""

    def profile(self, frame: Any, event: str, _: object) -> None:
        notes, file = self.notes, frame.f_code.co_filename
        if event != "call" or notes is None or not file.startswith(self.package):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self.package):
            caller = caller.f_back
        source = "" if caller is None else caller.f_code.co_filename[len(self.package) :]
        name = file[len(self.package) :]
        self.entry = self.entry or name
        notes.add((source, name, frame.f_code.co_qualname))

    def follow(self, coroutine: Any) -> Generator[Any, Any, set[tuple[str, str, str]]]:
        self.notes, self.entry = set(), ""
        sys.setprofile(self.profile)
        try:
            yield from coroutine.__await__()
        finally:
            sys.setprofile(None)
            notes, self.notes = self.notes, None
        return notes


class Awaited:
    """Makes an iterator something to await."""

    def __init__(self, steps: Generator[Any, Any, Any]) -> None:
        self.steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.steps


async def follow_calls(step: Step, lodeq: Any) -> dict[str, dict[str, Any]]:
    """Enqueues and claims of a warm queue, each alone in its turn: what the last five all run."""
    import asyncio

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        async with lodeq.open(folder) as engine:
            queue = engine.queue("mail")
            for name, call in (
                ("enqueue", lambda: queue.enqueue({"to": "a"})),
                ("claim", lambda: queue.claim(limit=1)),
            ):
                if name == "claim":
                    for _ in range(20):
                        await queue.enqueue({"to": "a"})
                runs = []
                for _ in range(10):
                    for _ in range(3):  # turns: what the call before has left for later runs now
                        await asyncio.sleep(0)
                    runs.append(await Awaited(step.follow(call())))
                found[name] = summary(set.intersection(*runs[5:]), step.entry)
    return found


def summary(notes: set[tuple[str, str, str]], entry: str) -> dict[str, Any]:
    arrows = {(a, b) for a, b, _ in notes if a != b and (a or b != entry)}
    functions = {f"{b}: {function}" for _, b, function in notes if not function.endswith("comp>")}
    return {
        "hops": len(arrows),
        "files": len({b for _, b, _ in notes}),
        "functions": len(functions),
        "arrows": sorted(f"{a or 'event loop or thread'} -> {b}" for a, b in arrows),
        "called": sorted(functions),
    }


def trace_here(folder: str) -> None:
    """Import the package from ``folder``, follow its calls, write them as JSON: a whole process."""
    import asyncio

    sys.path.insert(0, folder)
    step = Step(str(Path(folder, PACKAGE)) + "/")
    threading.setprofile(step.profile)
    lodeq = __import__(PACKAGE)
    if not str(lodeq.__file__).startswith(step.package):
        raise SystemExit(f"{PACKAGE} came from {lodeq.__file__}")
    found = asyncio.run(follow_calls(step, lodeq))
    if not all(row["files"] for row in found.values()):
        raise SystemExit("nothing was seen to run")
    sys.stdout.write(json.dumps(found))


def trace(folder: Path) -> dict[str, Any]:
    """Result of ``trace_here`` in a process of its own; ``{"error": …}`` where it fails."""
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--trace", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no reason given"])[-1]}
    return dict(json.loads(done.stdout))


def traced(calls: dict[str, Any], name: str) -> Figure:
    """Traced: what five warm calls have in common, each alone in a turn of the event loop, on a store of its own, default options: hops are the distinct pairs of files of which a function in one calls a function in the other (the event loop and threads count as one); files are those in which a function runs, the commit included."""  # noqa: E501
    if "error" in calls:
        return Figure(None, f"not traced: {calls['error']}", [])
    row = calls[name]
    value = {key: row[key] for key in ("hops", "files", "functions")}
    shown = f"{row['hops']} hops, {row['files']} files ({row['functions']} functions)"
    return Figure(value, shown, [*row["arrows"], *row["called"]])


# --- the table ----------------------------------------------------------------------------------

ROWS: list[tuple[str, str, str, Callable[[Tree], Figure]]] = [
    ("folder", "largest folder of the package, files", "≤ 16", largest_folder),
    ("circles", "import circles, annotations counted", "0", circles),
    ("gerunds", "gerund modules", "< 10", gerunds),
    ("told", "`told`, `tell`, `tells`, `telling` as words", "< 40", told),
    ("told_inside", "the same, inside identifiers and in any case", "", told_inside),
    ("of", 'docstrings beginning "Of"', "0", of_docstrings),
    ("what", 'docstrings beginning "What"', "", what_docstrings),
    ("args", "public functions of ≥ 4 parameters with `Args:`", "all", unexplained),
    ("fmt_skip", "`# fmt: skip`", "< 60", fmt_skip),
    ("fmt_off", "`# fmt: off`", "", fmt_off),
    ("private", "foreign private reads", "< 10", private_reads),
    ("keys", "raw key prefixes outside engine/", "0", key_prefixes),
    ("records", "record bytes outside engine/", "0", record_bytes),
    ("slots", "slot arithmetic outside engine/", "0", slot_arithmetic),
    ("poison", "`isinstance(… poison …)`", "0", poison_checks),
    ("statements", "hand-written statements", "fewer", statements),
    ("readme", "README", "≤ 90 lines, ≤ 14 links", readme),
    ("long", "advice: files of 360 to 400 lines", "", long_files),
]
CALLS = [
    ("enqueue", "a plain enqueue", "≤ 9 hops, ≤ 10 files"),
    ("claim", "a plain claim", ""),
]


def measure(tree: Tree) -> dict[str, Figure]:
    """All that the sources say by themselves."""
    return {key: row(tree) for key, _, _, row in ROWS}


def read(commit: str | None, root: Path) -> dict[str, str]:
    """Names and texts of the Python files and the README: of a commit, or as they lie there."""
    if commit is None:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        names = {name for name in listed.stdout.split("\0") if (root / name).is_file()}
        return {name: (root / name).read_text("utf-8") for name in names if is_read(name)}
    command = ["git", "archive", "--format=tar", commit]
    packed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {
            member.name: file.read().decode("utf-8")
            for member in tar
            if is_read(member.name) and (file := tar.extractfile(member)) is not None
        }


def is_read(name: str) -> bool:
    return name == "README.md" or name.endswith(".py")


def trace_files(files: dict[str, str]) -> dict[str, Any]:
    """Write the product into a temporary folder and follow its calls there."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in Tree(files).product.items():
            path = Path(folder, PACKAGE, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return trace(Path(folder))


def table(figures: dict[str, Figure]) -> str:
    """The table, as Markdown."""
    rows = [(title, figures[key].shown, then) for key, title, then, _ in ROWS]
    rows += [(title, figures[key].shown, then) for key, title, then in CALLS if key in figures]
    wide = [max(len(row[i]) for row in [*rows, ("", "now", "then")]) for i in range(3)]
    lines = [("", "now", "then"), tuple("-" * n for n in wide), *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(n) for cell, n in zip(row, wide, strict=True)) + " |"
        for row in lines
    )


def definitions() -> str:
    rows = [(title, row.__doc__) for _, title, _, row in ROWS]
    rows += [(title, traced.__doc__) for _, title, _ in CALLS]
    return "\n".join(f"{title}\n    {text}" for title, text in rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Print the table of the house.")
    parser.add_argument("commit", nargs="?", help="default: the working tree")
    parser.add_argument("--json", action="store_true", help="figures only, for programs")
    parser.add_argument("--list", metavar="ROW", help="what a row counts, one line each")
    parser.add_argument("--definitions", action="store_true", help="what each row counts, in words")
    parser.add_argument("--no-trace", action="store_true", help="follow no calls")
    parser.add_argument("--trace", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.trace:
        trace_here(asked.trace)
        return
    if asked.definitions:
        sys.stdout.write(definitions() + "\n")
        return
    keys = [key for key, *_ in ROWS] + [key for key, *_ in CALLS]
    if asked.list and asked.list not in keys:
        parser.error(f"no row {asked.list!r}: choose one of {', '.join(keys)}")
    files = read(asked.commit, ROOT)
    figures = measure(Tree(files))
    if not asked.no_trace:
        calls = trace_files(files)
        figures |= {key: traced(calls, key) for key, _, _ in CALLS}
    if asked.list:
        sys.stdout.write("\n".join(figures[asked.list].found) + "\n")
    elif asked.json:
        values = {key: figure.value for key, figure in figures.items()}
        sys.stdout.write(json.dumps(values, indent=2) + "\n")
    else:
        sys.stdout.write(table(figures) + "\n")


if __name__ == "__main__":
    main()
