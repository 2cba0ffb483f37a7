"""The site builds without a warning, and every page can be found in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lodeq
import lodeq.worker

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """One that passes over what mkdocs would import."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)  # noqa: S506 - a safe one


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def navigated(entries):
    for entry in entries:
        if isinstance(entry, dict):
            (entry,) = entry.values()
        yield from navigated(entry) if isinstance(entry, list) else [entry]


def test_every_page_is_in_the_navigation_once():
    listed = list(navigated(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    folders = tuple(entry for entry in listed if entry.endswith("/"))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert {page for page in pages if page not in listed and not page.startswith(folders)} == set()
    assert all((DOCS / entry).exists() or (ROOT / entry).exists() for entry in listed)


@pytest.mark.slow
class TestBuilt:
    def test_without_a_warning(self, site):
        assert (site / "index.html").is_file()
        assert (site / "adr" / "index.html").is_file()

    def test_the_reference_has_every_public_name(self, site):
        text = "".join(page.read_text("utf-8") for page in site.glob("reference/*/index.html"))
        told = set(re.findall(r'<h\d id="lodeq\.(?:errors\.)?(\w+)"', text))
        aside = {
            "ALL_TENANTS",
            "COMPILED",
            "sync",
        }  # two constants, and a module with a page of its own
        assert {name for name in lodeq.__all__ if name not in told | aside} == set()

    def test_the_reference_has_every_name_of_workers(self, site):
        page = (site / "reference" / "worker" / "index.html").read_text("utf-8")
        told = set(re.findall(r'id="lodeq\.worker\.(\w+)"', page))
        assert set(lodeq.worker.__all__) - told == {"CallNext", "Middleware"}  # kinds of functions
        assert 'id="lodeq.worker.App.use"' in page

    def test_the_reference_tells_of_calls(self, site):
        page = (site / "reference" / "engine" / "index.html").read_text("utf-8")
        for name in ("Engine.result", "Queue.enqueue", "Queue.claim", "Lease.complete"):
            assert f'id="lodeq.{name}"' in page
        assert "Durability:" in page

    def test_it_loads_nothing_from_elsewhere(self, site):
        loaded = re.compile(r"<(?:script|link|img)\b[^>]*(?:src|href)=[\"']?https?://[^>]*>")
        found = {
            str(page.relative_to(site)): loaded.findall(page.read_text("utf-8"))
            for page in site.rglob("*.html")
        }
        assert {name: links for name, links in found.items() if links} == {}

    def test_examples_in_docstrings_are_code(self, site):
        page = (site / "reference" / "engine" / "index.html").read_text("utf-8")
        assert "::" not in re.sub(r"(?s)<(pre|code)\b.*?</\1>", "", page)
