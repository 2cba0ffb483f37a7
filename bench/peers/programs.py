"""Servers to compare with, fetched as Debian packages and unpacked beside the results.

Nothing is installed and no service is started: the packages and what they depend on are
downloaded by apt and unpacked into a folder, so that neither root nor a broken system is needed.
Programs that are there already are used as they are.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

__all__ = ["PACKAGES", "environment", "fetch", "find"]

PACKAGES = {
    "redis-server": "redis-server",
    "beanstalkd": "beanstalkd",
    "postgres": "postgresql",
    "initdb": "postgresql",
}
ROOT = Path(os.environ.get("LODEQ_BENCH_PROGRAMS", Path(__file__).parents[2] / "build" / "peers"))


def _places() -> list[Path]:
    found = [ROOT / "usr/bin", ROOT / "usr/sbin"]
    for base in (ROOT, Path("/")):
        found += sorted((base / "usr/lib/postgresql").glob("*/bin"), reverse=True)
    return [*found, Path("/usr/sbin")]


def find(name: str) -> str | None:
    """Find a program: on the PATH, unpacked, or where Debian keeps PostgreSQL's."""
    paths = [os.environ.get("PATH", ""), *map(str, _places())]
    return shutil.which(name, path=os.pathsep.join(paths))


def environment() -> dict[str, str]:
    """Return the environment with the libraries that came with unpacked programs."""
    triplet = f"{platform.machine()}-linux-gnu"
    libraries = [ROOT / "usr/lib" / triplet, ROOT / "lib" / triplet]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)), "LC_ALL": "C"}


def fetch(names: list[str]) -> str | None:
    """Get the programs that are missing. Returns why that was not possible, if it was not."""
    packages = sorted({PACKAGES[name] for name in names if find(name) is None})
    if not packages:
        return None
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return f"no apt-get here: install {', '.join(packages)} by hand"
    archives = ROOT / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    got = subprocess.run(
        [
            "apt-get",
            "install",
            "--yes",
            "--download-only",
            "--no-install-recommends",
            "-o",
            "Debug::NoLocking=true",
            "-o",
            f"Dir::Cache::archives={archives}",
            *packages,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if got.returncode:
        last = (got.stderr.strip().splitlines() or ["apt-get failed"])[-1]
        return f"{last}; try: sudo apt-get install {' '.join(packages)}"
    for package in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(ROOT)], check=True, timeout=120)
    return None
