"""The pages agree with the code: links lead somewhere, names in the code map exist."""

import inspect
import re

import code_map
from support_sources import ROOT, name_of, none_of, text_of

import lodeq
from lodeq.repository.api.runtime import DISK_FREE_BYTES_MIN, REAPER_LAG_S_MAX

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
ADR = re.compile(r"\d{8}-[a-z0-9-]+\.md")


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(text_of(page))]
    assert len(links) > 100
    none_of(f"{name_of(page)}: {link}" for page, link in links if not (page.parent / link).exists())


def test_decisions_are_dated_and_each_has_its_four_parts() -> None:
    found = sorted((ROOT / "docs" / "adr").iterdir())
    assert found
    for page in found:
        assert ADR.fullmatch(page.name), page.name
        parts = re.findall(r"^\*\*(.+?)\.\*\*", page.read_text("utf-8"), re.MULTILINE)
        assert parts[:2] == ["Before", "Now"], page.name
        assert parts[-1] == "What it costs", page.name


def test_decisions_named_in_the_code_exist() -> None:
    titles = {page.stem.partition("-")[2] for page in (ROOT / "docs" / "adr").iterdir()}
    named = {
        name
        for folder in ("engine", "coalescer", "repository")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\(ADR ([^)]+)\)", path.read_text("utf-8"))
    }
    assert named <= titles


def test_the_code_map_is_that_of_the_sources() -> None:
    assert code_map.PAGE.read_text("utf-8") == code_map.page(), "make code-map writes it"


def test_the_readme_quotes_the_worst_cell_of_the_grid_next_to_the_best() -> None:
    def pairs(page: str) -> list[tuple[str, str]]:
        lines = text_of(ROOT / page).splitlines()
        cells = [line for line in lines if line.startswith(("- worst cell:", "- best cell:"))]
        assert [line[2] for line in cells] == ["w", "b"] * (len(cells) // 2), page
        return list(zip(cells[::2], cells[1::2], strict=True))

    quoted, measured = pairs("README.md"), pairs("docs/benchmarks-hard.md")
    assert bool(quoted) == bool(measured), "both lines of docs/benchmarks-hard.md go into README.md"
    assert set(quoted) <= set(measured), "copy both lines from docs/benchmarks-hard.md"


def test_the_defaults_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    shown = dict(re.findall(r"^\| `([\w.]+)`[^|]*\| `?([^|`]+?)`? \|", page, re.MULTILINE))
    opened = inspect.signature(lodeq.open).parameters
    queue = inspect.signature(lodeq.Engine.queue).parameters
    assert (
        shown.items()
        >= {
            "sync_interval": f"{opened['sync_interval'].default:g} s",
            "commit_batch_max": f"{opened['commit_batch_max'].default}",
            "submit_queue_max": f"{opened['submit_queue_max'].default:,}",
            "block_cache_bytes": f"{opened['block_cache_bytes'].default >> 20} MiB",
            "Limits.results_max": f"{lodeq.Limits().results_max:,}",
            "retention": f"{queue['retention'].default / 3600:g} h",
            "lease": f"{queue['lease'].default:g} s",
        }.items()
    )
    assert f"less than {DISK_FREE_BYTES_MIN >> 20} MiB free" in page
    assert f"more than {REAPER_LAG_S_MAX:g} s behind" in page
