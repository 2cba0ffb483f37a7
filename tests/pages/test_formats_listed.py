"""Every format and every kind of source that the code lists is on the pages that list them."""

import re
from pathlib import Path

import pytest

from lodeq.segments.detect import FORMATS
from lodeq.service.transfer.export import EXPORT_FORMATS
from lodeq.service.transfer.source_kinds import KINDS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def paragraph(page: str, start: str) -> str:
    """The paragraph in which ``start`` is."""
    [found] = [part for part in (DOCS / page).read_text("utf-8").split("\n\n") if start in part]
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_a_page_that_is_linked(name: str) -> None:
    assert (DOCS / "formats" / f"{name}.md").is_file()
    assert f"](formats/{name}.md)" in (DOCS / "formats.md").read_text("utf-8")


def test_the_command_names_all_of_them() -> None:
    assert [name for name in KINDS if f"`{name}`" not in paragraph("cli.md", "KIND is")] == []
    assert f"`--format {'|'.join(EXPORT_FORMATS)}`" in (DOCS / "cli.md").read_text("utf-8")
    shown = paragraph("cli.md", "[a page each](formats)")
    assert [name for name in FORMATS if f"`{name}`" not in shown] == []


def test_what_an_import_takes_over_is_shown() -> None:
    table = paragraph("import.md", "| source | order |")
    assert re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE) == list(KINDS)


def test_what_an_export_keeps_is_shown() -> None:
    table = paragraph("import.md", "| `--format` | what |").partition("\n")[2]
    assert re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE) == list(EXPORT_FORMATS)
