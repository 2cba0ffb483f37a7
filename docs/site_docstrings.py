"""Docstrings end a line before an example with ``::``, for plain readers; on the site it goes."""

from __future__ import annotations

import re
from typing import Any

import griffe

LITERAL = re.compile(r"(?m)^::\n+|(?<=\w)::$")


class PlainExamples(griffe.Extension):
    """Leave out the mark: Markdown takes what is indented as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that has been read."""
        if obj.docstring is not None:
            obj.docstring.value = LITERAL.sub(
                lambda found: ":" if found[0] == "::" else "", obj.docstring.value
            )
