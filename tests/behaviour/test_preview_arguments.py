"""Patterns for arguments are held against previews: right or unsure, and never wrong."""

import fnmatch
import random
import re

import pytest

from lodeq.engine.records.face import PREVIEW_BYTES_MAX
from lodeq.repository.model.calls.previews import preview_of
from lodeq.repository.model.preview_arguments import arguments_fit, plain_piece
from lodeq.repository.model.preview_cuts import fit_preview

NAMES = ("to", "n", "note", "rows", "über")
TEXTS = (
    "ann@bad.example",
    "ann@bad.example.org",
    "it's",
    'she said "no"',
    'it\'s "both"',
    "a, to='eve@bad.example'",
    "wait…",
    "wait…, n=3",
    "…', n='3",
    "back\\slash\\",
    "two\nlines\x00",
    "Zoë Straße \U0001f600",
    "[1, 2",
    "",
)


def some_text(rng):
    return rng.choice(TEXTS) * rng.choice((1, 1, 1, 1, 4)) + "x" * rng.choice((0, 0, 0, 40, 200))


def some_value(rng, depth=0):
    kind = rng.randrange(8 if depth < 2 else 5)
    if kind < 3:
        return some_text(rng)
    if kind == 3:
        return rng.choice((3, -1.5, None, True, 10**20))
    if kind == 4:
        return b"bytes'" * rng.randrange(3)
    members = [some_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {f"k{i}": one for i, one in enumerate(members)} if kind == 5 else members


def some_pattern(rng, text):
    """Of a text, or of a part of it; at times of another."""
    if rng.randrange(3) == 0:
        text = some_text(rng)
    a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return rng.choice((text, text[a:] and "*" + text[a:], text[:b] + "*", f"*{text[a:b]}*", "*"))


def is_meant(pattern, text):
    parts = (re.escape(part) for part in pattern.casefold().split("*"))
    return re.fullmatch(".*".join(parts), text.casefold(), re.DOTALL) is not None


@pytest.mark.parametrize("first", range(3))
def test_what_is_said_of_a_call_is_true_of_its_arguments(first):
    n_true = 0
    for seed in range(first * 500, first * 500 + 500):
        rng = random.Random(seed)
        names = rng.sample(NAMES, rng.randrange(1, len(NAMES)))
        call = {name: some_value(rng) for name in names}
        preview = fit_preview(preview_of(call, rng.choice((PREVIEW_BYTES_MAX, 4096))))
        name = rng.choice(NAMES)
        value = call.get(name, "")
        # Anything but a text is compared as it is shown.
        text = value if type(value) is str else preview_of({"": value}, 1 << 20)[1:]
        pattern = some_pattern(rng, text)
        said = arguments_fit({name: pattern}, preview)
        if type(value) in (list, dict) and "…" in text:
            continue  # what it would be compared with is cut itself
        truth = name in call and is_meant(pattern, text)
        assert said in (truth, None), (seed, name, pattern, preview)
        if "…" not in preview:
            assert said is truth, (seed, name, pattern, preview)
        if said:
            n_true += 1
            piece = plain_piece({name: pattern})
            assert piece is None or piece.casefold() in preview.casefold(), (seed, pattern, preview)
    assert n_true > 50  # it is not unsure of everything


def test_a_text_in_front_that_was_cut_hides_nothing_behind_it():
    preview = fit_preview(f"body='{'x' * 300}', to='ann@bad.example', n=7")
    assert arguments_fit({"to": "*@bad.example"}, preview) is True
    assert arguments_fit({"to": "*@BAD.example", "n": "7"}, preview) is True
    assert arguments_fit({"to": "*@good.example"}, preview) is False
    assert arguments_fit({"body": "xx*"}, preview) is True
    assert arguments_fit({"body": "*y"}, preview) is None
    assert arguments_fit({"body": "y*"}, preview) is False


@pytest.mark.parametrize(
    "preview",
    ["", "anything", "to=it's, n=1", "to='", "=3", "to", "to=,", "'to=1, to='2'", r"to='\d\777'"],
)
def test_a_preview_of_another_hand_is_no_error(preview):
    for pattern in ("*", "it's", "'"):
        arguments_fit({"to": pattern}, preview)
    assert arguments_fit({"to": "it's"}, "to=it's, n=1") is True


def test_patterns_are_not_those_of_file_names():
    assert fnmatch.fnmatch("a", "?")
    assert arguments_fit({"to": "?"}, "to='a'") is False
    assert arguments_fit({"to": "[a]"}, "to='a'") is False
    assert arguments_fit({"to": "a*a"}, "to='a'") is False
