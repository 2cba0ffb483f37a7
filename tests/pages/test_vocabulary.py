"""Public names are made of the glossary's words and of common ones.

The glossary (docs/glossary.md) has the terms; ``common_words.txt`` beside this file has the English
words that need no entry. A name with a word that is in neither needs a decision: another word, an
entry in the glossary, or a common word.
"""

import inspect
import re
from pathlib import Path

import click
import pytest
from support_sources import ROOT

import lodeq
import lodeq.journal
import lodeq.lifecycle
import lodeq.testing
import lodeq.worker
from lodeq.service.cli.app import lodeq as command

MODULES = (lodeq, lodeq.worker, lodeq.journal, lodeq.lifecycle, lodeq.testing)
COMMON = set((Path(__file__).parent / "common_words.txt").read_text("utf-8").split())
PRIVATE = {  # words this project once used in a sense of its own
    "bucket",
    "doors",
    "ground",
    "housing",
    "hub",
    "keeper",
    "lane",
    "patience",
    "place",
    "places",
    "pump",
    "room",
    "tell",
    "telling",
    "tells",
    "told",
    "topic",
}
ENDINGS = ("", "s", "es", "d", "ed", "r", "er", "ing")


def words_in(name):
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def glossary():
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    terms = {word for bold in re.findall(r"\*\*(.+?)\*\*", page) for word in words_in(bold)}
    ends = {word + ending for word in terms for ending in ENDINGS}
    return ends | {word[:-1] + end for word in terms if word.endswith("e") for end in ("ing", "ed")}


def parameters_of(thing):
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return set()


def names_of_the_api():
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            yield name
            yield from parameters_of(thing)
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    if not member.startswith("_"):
                        yield member
                        yield from parameters_of(value)


def names_of_commands(found=command):
    for option in found.params:
        yield option.name
    if isinstance(found, click.Group):
        for name, below in found.commands.items():
            yield name
            yield from names_of_commands(below)


def names_of_metrics_and_events():
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    return set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) | set(
        re.findall(r"`(lodeq_\w+)`", page)
    )


SOURCES = {
    "the API": names_of_the_api,
    "commands": names_of_commands,
    "metrics and events": names_of_metrics_and_events,
}


@pytest.mark.parametrize("source", SOURCES)
def test_names_are_made_of_words_that_are_known(source):
    names = {name for name in SOURCES[source]() if not name.startswith("_")}
    assert len(names) > 40
    known = glossary() | COMMON
    unknown = {name: words - known for name in names if (words := words_in(name)) - known}
    assert unknown == {}
    assert {name for name in names if words_in(name) & PRIVATE} == set()


def test_common_words_are_common():
    page = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    terms = {word for bold in re.findall(r"\*\*(.+?)\*\*", page) for word in words_in(bold)}
    assert not COMMON & (PRIVATE | terms), "the glossary has them"
