"""What is installed: the templates and files of the pages come with the wheel."""

import re
import tomllib
from pathlib import Path

import pytest
from setuptools import Distribution

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "service" / "dashboard"
BESIDE = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)


@pytest.fixture(scope="module")
def installed():
    distribution = Distribution()
    build = distribution.get_command_obj("build_py")
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    build.package_data = config["package-data"]
    build.exclude_package_data = build.manifest_files = {}
    return {
        Path(name).relative_to(FOLDER).as_posix()
        for name in build.find_data_files("lodeq.service.dashboard", str(FOLDER))
    }


def test_there_are_pages():
    assert {"templates/base.html", "static/dashboard.css", "static/dashboard.js"} <= set(BESIDE)


@pytest.mark.parametrize("name", BESIDE)
def test_it_is_installed(installed, name):
    assert name in installed


def test_no_file_is_of_somebody_else():
    for name in BESIDE:
        text = (FOLDER / name).read_text("utf-8")
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "https://" not in text, name
        assert max(map(len, text.splitlines())) < 700, name  # nothing that was built


@pytest.mark.parametrize("name", [name for name in BESIDE if name.endswith(".html")])
def test_every_link_of_a_template_begins_with_the_root(name):
    """A mounted page's links are relative; at the root of an origin ``root`` is empty."""
    text = (FOLDER / name).read_text("utf-8")
    links = re.findall(r'\b(?:href|src|action)="([^"]*)"', text)
    assert [link for link in links if not link.startswith(("{{ root }}/", "{{ back }}", "#"))] == []
