"""Every record has an ``event``, and docs/metrics.md has a row for it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support_sources import PACKAGE, ROOT, name_of, nodes_of, none_of, text_of

LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
PAGE = text_of(ROOT / "docs" / "metrics.md").partition("\n## Logs\n")[2]
ROWS = {
    event: set(levels.split(", "))
    for event, levels in re.findall(r"^\| `(\w+)` \| (\w+(?:, \w+)*) \|", PAGE, re.MULTILINE)
}
Made = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def is_logger(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).endswith("getLogger")
    return isinstance(node, ast.Name) and node.id in names


def calls(path: Path) -> Iterator[tuple[ast.Call, Made]]:
    """Each log call of a module, with the function that it stands in."""
    if not re.search(r"log\w*\b[()\"'.\w]*\.", text_of(path), re.I):
        return
    names = {"log", "_log", "logger", "logging"}
    for node in nodes_of(path):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if is_logger(node.value, set()):
                names |= {ast.unparse(target) for target in targets}
    within: dict[ast.AST, Made] = {}
    for node in nodes_of(path):  # outer ones first
        if isinstance(node, Made):
            within |= dict.fromkeys(ast.walk(node), node)
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_level = node.func.attr in LEVELS or node.func.attr == "log"
            if is_level and is_logger(node.func.value, names):
                yield node, within[node]


def texts(node: ast.AST) -> set[str]:
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def events(extra: ast.expr, within: Made) -> set[str]:
    """What ``event`` may be: in a dict there, or in one that the function has made before.

    A function that makes the fields takes the event as its first argument.
    """
    if isinstance(extra, ast.BinOp):
        return events(extra.left, within) | events(extra.right, within)
    if isinstance(extra, ast.Dict):
        pairs = zip(extra.keys, extra.values, strict=True)
        return {
            text for key, value in pairs if key and texts(key) == {"event"} for text in texts(value)
        }
    if isinstance(extra, ast.Call):
        named = [one.value for one in extra.keywords if one.arg == "event"]
        return {text for value in named or extra.args[:1] for text in texts(value)}
    made = (node for node in ast.walk(within) if isinstance(node, ast.Assign))
    name = ast.unparse(extra)
    values = [one.value for one in made if name in map(ast.unparse, one.targets)]
    plain = (one for one in values if name not in map(ast.unparse, ast.walk(one)))
    return {text for value in plain for text in events(value, within)}


def faults(path: Path, call: ast.Call, told: set[str]) -> Iterator[str]:
    where = f"{name_of(path)}:{call.lineno}"
    if not told:
        yield f"{where}: no event"
    yield from (f"{where}: {event} is not in docs/metrics.md" for event in sorted(told - set(ROWS)))
    level = call.func.attr
    if level != "log":
        yield from (
            f"{where}: {event} is logged as {level}, docs/metrics.md says {ROWS[event]}"
            for event in sorted(told & set(ROWS))
            if LEVELS[level] not in ROWS[event]
        )


def test_every_record_has_an_event_that_the_page_tells_of_and_the_page_tells_of_no_other():
    logging, told, found = set(), set(), []
    for path in PACKAGE:
        for call, within in calls(path):
            logging.add(name_of(path))
            extras = [one.value for one in call.keywords if one.arg == "extra"]
            here = {event for extra in extras for event in events(extra, within)}
            found += faults(path, call, here)
            told |= here
    none_of(found)
    assert {"repository/state/engine_log.py", "service/http/app.py"} <= logging
    assert {"opened", "closed"} <= told
    assert set(ROWS) == told
