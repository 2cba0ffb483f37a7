"""The command line in this process or as one of its own, and stores for it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from lodeq.service.cli.app import lodeq

SCRIPT = "from lodeq.service.cli.entry import main; raise SystemExit(main())"
RUN = [sys.executable, "-c", SCRIPT]


@contextmanager
def process(*command: object, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A child that does not outlive a failure: waiting for it would outlast every time limit."""
    with subprocess.Popen(list(map(str, command)), **options) as child:  # type: ignore[call-overload]
        try:
            yield child
        except BaseException:
            child.kill()
            raise


def awaits_input(child: subprocess.Popen[bytes]) -> None:
    """Return once it sleeps: a signal between its prompt and its read would leave it reading."""
    stat = Path(f"/proc/{child.pid}/stat")
    while stat.read_text("utf-8").rpartition(")")[2].split()[0] != "S":
        assert child.poll() is None


def run(*args: object, code: int = 0, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(lodeq, list(map(str, args)), input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def objects(*args: object, code: int = 0, stdin: str | bytes | None = None) -> list[dict]:
    out = run(*args, "--json", code=code, stdin=stdin).stdout
    return [json.loads(line) for line in out.splitlines()]


def first(*args: object, code: int = 0) -> dict:
    (found,) = objects(*args, code=code)
    return found


def make(root: Path, **options: object) -> Path:
    args = [part for name, value in options.items() for part in (f"--{name}", value)]
    run("init", root, *args)
    return root


def picture(root: Path) -> dict[str, tuple[int, int]]:
    """Names, sizes and times of all there is, but for what an idle engine writes by itself.

    That is its watermark, and RocksDB's own LOG.
    """
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in [root, *sorted(root.rglob("*"))]
        if not path.name.startswith(("watermark", "LOG"))
    }
