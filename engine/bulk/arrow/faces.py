"""Faces of tasks and results as columns; null where a row has none."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow as pa

from ...records.face import Face, unpack_face
from .page import TYPES, Page, Slices

__all__ = ["FacePage"]


class FacePage(Page):
    """A page of records that may have a face."""

    def packed_faces(self) -> Slices:
        """The face of each record as stored, empty for none."""
        raise NotImplementedError

    @cached_property
    def _faces(self) -> list[Face]:
        return [unpack_face(raw) for raw in self.packed_faces()]

    def function(self) -> Any:
        return pa.array([face.function or None for face in self._faces], pa.string())

    def preview(self) -> Any:
        return pa.array([face.preview or None for face in self._faces], pa.string())

    def labels(self) -> Any:
        maps = [
            [(key, value) for key, _, value in [label.partition("=") for label in face.labels]]
            for face in self._faces
        ]
        return pa.array([one or None for one in maps], TYPES["map"])
