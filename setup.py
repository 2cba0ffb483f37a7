"""The compiled build: ``LODEQ_COMPILED=1`` compiles the modules every call goes through.

Everything else is in ``pyproject.toml``; without the variable nothing happens here. mypyc compiles
the very files the interpreter runs (ADR compiled-modules), so there is one source and one truth.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
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
        "lease_state",
        "long_polls",
        "queue_state",
        "ready_cache",
    ],
    "repository/tasks": ["claim_order", "fast_path", "lease_grant", "task_end"],
}


def extensions() -> list[Extension]:
    """What to compile: nothing, unless asked."""
    if os.environ.get("LODEQ_COMPILED") != "1":
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


class BuildModules(build_py):
    """The package's folder is the checkout: leave this file out of it."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """(package, module, file) of each."""
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "setup"]


setup(ext_modules=extensions(), cmdclass={"build_py": BuildModules})
