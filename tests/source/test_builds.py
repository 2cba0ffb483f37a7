"""The builds of `setup.py`: sources alone unless asked, and a wheel named for where it runs."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import setuptools
import wheels
from setuptools.command import bdist_wheel
from support_sources import ROOT


@pytest.fixture
def setup(monkeypatch):
    """Runs setup.py with these words behind it; returns its names and what `setup` is given."""

    def run(*words, asked="1"):
        given = {}
        monkeypatch.setattr(setuptools, "setup", lambda **names: given.update(names))
        monkeypatch.setattr(sys, "argv", ["setup.py", *words])
        if asked is None:
            monkeypatch.delenv("LODEQ_COMPILED", raising=False)
        else:
            monkeypatch.setenv("LODEQ_COMPILED", asked)
        return runpy.run_path(str(ROOT / "setup.py")), given

    return run


@pytest.mark.parametrize("asked", [None, "", "0"])
@pytest.mark.parametrize("command", ["bdist_wheel", "editable_wheel", "sdist"])
def test_nothing_is_compiled_unless_asked(setup, command, asked):
    _, given = setup(command, asked=asked)
    assert (given["ext_modules"], given["setup_requires"]) == ([], [])


@pytest.mark.parametrize("command", ["egg_info", "dist_info", "sdist"])
def test_metadata_and_sdist_compile_nothing_and_an_isolated_build_learns_of_the_compiler(
    setup, command
):
    _, given = setup(command)
    assert given["ext_modules"] == []
    assert [word for word in given["setup_requires"] if word.startswith("mypy")]


def test_an_editable_install_is_refused_where_compiled_modules_would_hide_the_sources(setup):
    with pytest.raises(SystemExit, match="editable"):
        setup("editable_wheel")


@pytest.mark.parametrize(
    ("plain", "symbols", "named"),
    [
        ("linux_x86_64", [b"\0GLIBC_2.14\0GLIBC_2.2.5\0"], "manylinux_2_17_x86_64"),
        ("linux_x86_64", [b"\0GLIBC_2.4\0", b"\0GLIBC_2.34\0"], "manylinux_2_34_x86_64"),
        ("linux_aarch64", [b"\0GLIBC_2.17\0"], "manylinux_2_17_aarch64"),
        ("linux_x86_64", [b"musl"], "linux_x86_64"),
        ("macosx_11_0_arm64", [], "macosx_11_0_arm64"),
        ("any", [], "any"),
    ],
)
def test_a_wheel_is_named_for_the_oldest_glibc_it_runs_with(
    setup, monkeypatch, tmp_path, plain, symbols, named
):
    names, _ = setup("bdist_wheel", asked=None)
    monkeypatch.setattr(bdist_wheel.bdist_wheel, "get_tag", lambda self: ("cp311", "cp311", plain))
    for number, content in enumerate(symbols):
        (tmp_path / f"{number}.so").write_bytes(content)
    command = names["BuildWheel"].__new__(names["BuildWheel"])
    command.bdist_dir = str(tmp_path)
    assert command.get_tag() == ("cp311", "cp311", named)


def test_the_pins_of_the_compiler_are_all_that_it_needs():
    found = re.findall(r"^([a-z0-9-]+)==", wheels.pinned({"setuptools", "mypy"}), re.MULTILINE)
    assert {"setuptools", "mypy", "mypy-extensions", "librt", "pathspec"} <= set(found)
    assert not {"pytest", "pyspark", "unasync"} & set(found)


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('["cpython", [3, 14], ".so", false, true, true]', ""),
        ('["cpython", [3, 10], ".so", false, true, true]', "older than 3.11"),
        ('["cpython", [3, 14], ".so", true, true, true]', "it has no GIL"),
        ('["cpython", [3, 14], ".so", false, false, true]', "no Python.h"),
        ('["cpython", [3, 14], ".so", false, true, false]', "virtual environments"),
        ('["pypy", [3, 11], ".so", false, true, true]', "built for CPython"),
    ],
)
def test_a_python_that_cannot_build_is_skipped_with_the_reason(tmp_path, answer, reason):
    path = script(tmp_path, "python3.14", f"echo '{answer}'")
    python, found = wheels.why_not(path)
    if reason:
        assert python is None
        assert reason in found
    else:
        assert python == wheels.Python(str(path), (3, 14))
        assert python.tag == "cp314"


def test_one_wheel_for_each_version_and_a_word_where_there_is_none(tmp_path, monkeypatch, capsys):
    good = '["cpython", [3, 12], ".so", false, true, true]'
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    paths = [
        script(first, "python3.12", "exit 127"),  # a shim of a version that is not chosen
        script(first, "python3.13", "exit 127"),
        script(second, "python3.12", f"echo '{good}'"),
    ]
    monkeypatch.setattr(wheels, "installed", lambda: iter(paths))
    assert wheels.usable() == [wheels.Python(str(paths[2]), (3, 12))]
    assert capsys.readouterr().out == f"skipped 3.13: {paths[1]}: it does not run\n"
