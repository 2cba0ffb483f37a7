"""The compiled build: ``LODEQ_COMPILED=1`` compiles the modules every call goes through.

Everything else is in ``pyproject.toml``; without the variable nothing happens here. mypyc compiles
the very files the interpreter runs (ADR compiled-modules), so there is one source and one truth.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# What takes a task in, hands it out and ends it. Not what a user's arguments reach unchecked:
# compiled functions refuse a wrong type before ours can say what to do about it.
COMPILED = {
    "coalescer": ["commit_loop", "group", "overlay", "stats"],  # simulations overhear event_buffer
    "engine/records": ["events", "frame", "keyspace", "lease", "policy", "result", "rows", "task"],
    "engine/runtime": ["ids"],
    "repository/state": [
        "deadlines",
        "engine_state",
        "events",
        "home_shard",
        "lease_state",
        "long_polls",
        "queue_state",
    ],
    "repository/state/caches": ["claim_sets", "dedup_filter", "delayed_cache", "ready_cache"],
    "repository/tasks": ["claim_order", "fast_path", "lease_grant", "option_path", "task_end"],
}
COMPILER = ["mypy>=2.4"]  # an isolated build installs it, if it is to compile
IS_ASKED = os.environ.get("LODEQ_COMPILED") == "1"
COMMANDS = {"bdist_wheel", "build", "build_ext", "install"}  # others look at metadata alone


def extensions() -> list[Extension]:
    """What to compile: nothing, unless asked."""
    if not IS_ASKED:
        return []
    if "editable_wheel" in sys.argv:
        raise SystemExit(
            "LODEQ_COMPILED=1: an editable install runs the sources, which compiled modules beside "
            "them would hide. Unset it, or install without --editable."
        )
    if not COMMANDS & set(sys.argv):
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - needed for this build alone

    # The checkout is the package, whatever its folder is called: compile through a link.
    source = Path("build/compiled")
    source.mkdir(parents=True, exist_ok=True)
    link = source / "lodeq"
    if not link.is_symlink():
        link.symlink_to("../..", target_is_directory=True)
    os.environ["MYPYPATH"] = str(source)
    return mypycify(
        [
            "--config-file=",
            "--explicit-package-bases",
            "--ignore-missing-imports",
            *(f"{link}/{folder}/{name}.py" for folder, names in COMPILED.items() for name in names),
        ],
        opt_level="3",
        group_name="lodeq",
    )


class BuildExtensions(build_ext):
    """Where this Python lies on this machine is nothing for a wheel."""

    def build_extensions(self) -> None:
        """Link without its path."""
        linker = self.compiler.linker_so
        self.compiler.linker_so = [flag for flag in linker if not flag.startswith("-Wl,-rpath")]
        super().build_extensions()


class BuildModules(build_py):
    """The package's folder is the checkout: leave this file out of it."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """(package, module, file) of each."""
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "setup"]


class BuildWheel(bdist_wheel):
    """Package indexes take a compiled wheel only if its name says which glibc it needs."""

    def get_tag(self) -> tuple[str, str, str]:
        """(python, ABI, platform). The compiled modules use the C library and nothing else."""
        python, abi, platform = super().get_tag()
        needed = [
            int(minor)
            for path in Path(self.bdist_dir).rglob("*.so")
            for minor in re.findall(rb"\bGLIBC_2\.(\d+)", path.read_bytes())
        ]
        if needed and platform.startswith("linux_"):  # 17: the oldest that pip knows by this name
            platform = f"many{platform.replace('_', f'_2_{max(17, *needed)}_', 1)}"
        return python, abi, platform


setup(
    ext_modules=extensions(),
    cmdclass={
        "bdist_wheel": BuildWheel,
        "build_ext": BuildExtensions,
        "build_py": BuildModules,
    },
    setup_requires=COMPILER if IS_ASKED else [],
)
