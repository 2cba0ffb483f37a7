"""What the site needs beside the pages: mkdocs calls these functions (``hooks`` in mkdocs.yml).

The pages are written for a reader of the checkout: they link to each other, to pages at the root,
to folders, and to sources. On the site, pages of the root are pages too, a folder is the list of
its pages, and a source is its name.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OF_THE_ROOT = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS = {"adr": "Decisions", "formats": "Formats of files"}
LINK = re.compile(
    r"(?<!!)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_startup(**_: Any) -> None:
    """Link the packages where mkdocstrings reads them."""
    link_packages(ROOT / "build" / "docs-src" / "lodeq")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write folders of the navigation out."""
    config.nav = [expanded(entry) for entry in config.nav or []]
    return config


def link_packages(target: Path) -> None:
    """The root is the package, and holds much else: link what is installed, and nothing more."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    folders = {name.split(".")[1] for name in listed["packages"] if "." in name}
    modules = {path.name for path in ROOT.glob("*.py")} - {"setup.py"}
    target.mkdir(parents=True, exist_ok=True)
    wanted, there = folders | modules, {link.name for link in target.iterdir()}
    for name in there - wanted:
        (target / name).unlink()
    for name in wanted - there:
        (target / name).symlink_to(Path("../../..") / name)


def expanded(entry: Any) -> Any:
    """An entry of the navigation; one that names a folder is all pages in it."""
    if isinstance(entry, dict):
        return {title: expanded(what) for title, what in entry.items()}
    if isinstance(entry, list):
        return [found for one in entry for found in in_folder(one)]
    return in_folder(entry) if str(entry).endswith("/") else entry


def in_folder(entry: Any) -> list[Any]:
    """An entry of a list in the navigation; a folder is as many entries as it has pages."""
    if not isinstance(entry, str) or not entry.endswith("/"):
        return [expanded(entry)]
    pages = sorted((ROOT / "docs" / entry).glob("*.md"))
    return [f"{entry}index.md", *(f"{entry}{page.name}" for page in pages)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and a list of pages for each folder that is linked to."""
    for name in OF_THE_ROOT:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name, content=text))
    for folder, title in FOLDERS.items():
        lines = [
            f"- [{page.read_text('utf-8').partition(chr(10))[0].lstrip('# ')}]({page.name})"
            for page in sorted((ROOT / "docs" / folder).glob("*.md"))
        ]
        text = "\n".join([f"# {title}", "", *lines, ""])
        files.append(File.generated(config, f"{folder}/index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to what there is on the site."""
    uri = page.file.src_uri
    at_root = uri in OF_THE_ROOT
    here = "" if at_root else posixpath.join("docs", posixpath.dirname(uri))
    base = posixpath.dirname(uri)

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, found["path"]))
        on_site = target.removeprefix("docs/")
        if on_site in FOLDERS:
            on_site += "/index.md"
        if files.get_file_from_path(on_site) is None:
            return found["text"] if (ROOT / target).exists() else found[0]
        path = posixpath.relpath(on_site, base or ".")
        return f"[{found['text']}]({path}{found['anchor'] or ''})"

    return LINK.sub(lead, markdown)
