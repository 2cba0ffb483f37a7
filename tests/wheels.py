"""Compiled wheels, one for each Python of this machine, each tried alone.

``make wheels`` builds the sdist and from it a wheel with every Python that can: CPython 3.11 or
newer on the PATH, or installed by pyenv or uv. Each wheel is installed in a new environment, where
one task must pass through a store; so is the sdist, with no compiler, where it must stay pure.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
IS_LOCKED = bool(os.environ.get("LOCKED"))
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")

PROBE = """
import importlib.util, json, os, sys, sysconfig
print(json.dumps([
    sys.implementation.name,
    list(sys.version_info[:2]),
    sysconfig.get_config_var("EXT_SUFFIX"),
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    all(map(importlib.util.find_spec, ("venv", "ensurepip"))),
]))
"""
SMOKE = """
import asyncio, sys, lodeq
async def main():
    async with lodeq.open("store") as engine:
        mail = engine.queue("mail")
        receipt = await mail.enqueue({"to": "a"}, dedup_key="a", headers={"x": 1})
        await mail.enqueue_many([lodeq.NewTask(b"x"), lodeq.NewTask(b"y", delay=3600)])
        for lease in await mail.claim(limit=2, wait=1):
            await lease.complete(b"ok")
        assert (await engine.result(receipt.id)).value == b"ok"
    async with lodeq.open("store") as engine:
        stats = await engine.queue("mail").stats()
        assert (stats.ready, stats.delayed, stats.results) == (0, 1, 2), stats
asyncio.run(main())
assert "site-packages" in lodeq.__file__, lodeq.__file__
assert lodeq.COMPILED is (sys.argv[1] == "compiled"), lodeq.COMPILED
"""


class Python(NamedTuple):
    """One that can build: its file, and (3, 11) or the like."""

    path: str
    version: tuple[int, int]

    @property
    def tag(self) -> str:
        """As in the name of a wheel."""
        return f"cp{self.version[0]}{self.version[1]}"


def installed() -> Iterator[Path]:
    """Every ``python3.N`` there is, this one first."""
    yield Path(sys._base_executable).resolve()
    folders = [Path(folder) for folder in os.get_exec_path()]
    home = Path.home()
    folders += sorted(Path(os.environ.get("PYENV_ROOT", home / ".pyenv")).glob("versions/*/bin"))
    uv = os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local" / "share" / "uv" / "python")
    folders += sorted(Path(uv).glob("*/bin"))
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            found = re.fullmatch(r"python3\.(\d+)t?", path.name)
            if found and int(found[1]) >= OLDEST[1]:
                yield path


def why_not(path: Path) -> tuple[Python | None, str]:
    """A Python that can build, or why this one cannot."""
    found = subprocess.run(
        [path, "-I", "-c", PROBE], capture_output=True, text=True, check=False, timeout=60
    )
    if found.returncode:
        return None, "it does not run"
    name, version, _, is_free, has_headers, has_venv = json.loads(found.stdout)
    if name != "cpython":
        return None, f"{name}: rocksdict is built for CPython"
    if tuple(version) < OLDEST:
        return None, "older than 3.11"
    if is_free:
        return None, "it has no GIL: lodeq is not tested without"
    if not has_headers:
        return None, "no Python.h"
    if not has_venv:
        return None, "it cannot make virtual environments"
    return Python(str(path), tuple(version)), ""


def usable() -> list[Python]:
    """The first of each version that can; of the versions of which none can, say why."""
    pythons: dict[str, Python] = {}
    skipped: dict[str, list[str]] = {}
    seen: set[Path] = set()
    for path in installed():
        name = re.sub(r"^python", "", path.name)
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        python, reason = why_not(path)
        if python is None:
            skipped.setdefault(name, []).append(f"{path}: {reason}")
        else:
            pythons.setdefault(f"{python.version[0]}.{python.version[1]}", python)
    for name, reasons in skipped.items():
        if name not in pythons:
            print(f"skipped {name}: {'; '.join(reasons)}", flush=True)
    return sorted(pythons.values(), key=lambda python: python.version)


def environment(python: Python, folder: Path) -> str:
    """A new virtual environment; its interpreter."""
    subprocess.run([python.path, "-m", "venv", folder], check=True)
    return str(folder / "bin" / "python")


def pinned(names: set[str]) -> str:
    """What requirements/ci.txt says of these packages and of all they need, hashes included."""
    text = (ROOT / "requirements" / "ci.txt").read_text("utf-8")
    parts = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    named = {re.match(r"[\w.-]+", part)[0]: part for part in parts}
    needed = {
        name: {*re.findall(r"^    # +(?:via )?([\w.-]+)$", part, re.MULTILINE)}
        for name, part in named.items()
    }
    found = set(names)
    while more := {name for name in named if needed[name] & found} - found:
        found |= more
    return "".join(named[name] for name in sorted(found))


def build_tools(inside: str, scratch: Path) -> None:
    """What ``setup.py`` needs, pinned if all is: nothing is isolated, so no more is fetched."""
    if IS_LOCKED:
        pins = scratch / "build-tools.txt"
        pins.write_text(pinned({"setuptools", "mypy"}), "utf-8")
        tools = ["--require-hashes", "-r", str(pins)]
    else:
        tools = ["setuptools>=77", "mypy>=2.4"]
    subprocess.run([inside, *PIP, *tools], check=True)


def build(python: Python, sdist: Path, scratch: Path, outdir: Path) -> Path:
    """A compiled wheel, by this Python."""
    inside = environment(python, scratch / f"build-{python.tag}")
    build_tools(inside, scratch)
    made = scratch / f"made-{python.tag}"
    pip = (inside, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
    flags = ("--no-build-isolation", "--no-deps", "--wheel-dir", str(made))
    environ = os.environ | {"LODEQ_COMPILED": "1"}
    subprocess.run([*pip, *flags, sdist], check=True, cwd=scratch, env=environ)
    (wheel,) = made.iterdir()
    check_contents(wheel, python)
    return Path(shutil.move(wheel, outdir / wheel.name))


def check_contents(wheel: Path, python: Python) -> None:
    """Its name is of this Python and of a platform, and it holds what the name says."""
    *_, interpreter, abi, platform = wheel.stem.split("-")
    assert interpreter == abi == python.tag, wheel.name
    assert platform != "any", wheel.name
    if platform.endswith(os.uname().machine) and "linux" in platform:
        assert re.match(r"(many|musl)?linux_\d|linux_", platform), wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".c", ".h"))], wheel.name
    for module in ("coalescer/group", "repository/tasks/fast_path"):
        assert any(name.startswith(f"lodeq/{module}.cpython-") for name in names), wheel.name


def attempt(python: Python, file: Path, scratch: Path, expected: str) -> None:
    """Install ``file`` alone in a new environment; a store has to work, in the expected build."""
    folder = scratch / f"try-{python.tag}-{expected}"
    inside = environment(python, folder)
    extra = []
    if IS_LOCKED:
        pins = str(ROOT / "requirements" / "runtime.txt")
        subprocess.run([inside, *PIP, "--require-hashes", "-r", pins], check=True)
        build_tools(inside, scratch)
        extra = ["--no-deps", "--no-build-isolation"]
    environ = {name: value for name, value in os.environ.items() if name != "LODEQ_COMPILED"}
    environ |= {"CC": "false", "CXX": "false"}  # no compiler, whatever is installed
    subprocess.run([inside, *PIP, *extra, file], check=True, cwd=folder, env=environ)
    subprocess.run([inside, "-I", "-W", "error", "-c", SMOKE, expected], check=True, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--here", action="store_true", help="with this Python alone")
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    pythons = usable()
    if given.here:
        pythons = [python for python in pythons if python.version == sys.version_info[:2]]
    if not pythons:
        sys.exit("no Python can build a wheel. On Debian: apt-get install python3-dev python3-venv")
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        sys.exit("no C compiler. On Debian: apt-get install gcc")
    given.outdir.mkdir(parents=True, exist_ok=True)
    for old in [*given.outdir.glob("lodeq-*.whl"), *given.outdir.glob("lodeq-*.tar.gz")]:
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        isolation = ["--no-isolation"] if IS_LOCKED else []
        command = [sys.executable, "-m", "build", "--sdist", *isolation, "--outdir", scratch, ROOT]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (made,) = scratch.glob("lodeq-*.tar.gz")
        sdist = Path(shutil.move(made, given.outdir / made.name))
        attempt(pythons[0], sdist, scratch, "interpreted")
        print(f"{sdist.name}: interpreted, without a compiler", flush=True)
        for python in pythons:
            wheel = build(python, sdist, scratch, given.outdir)
            attempt(python, wheel, scratch, "compiled")
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}: compiled, {size:.1f} MB, by {python.path}", flush=True)


if __name__ == "__main__":
    main()
