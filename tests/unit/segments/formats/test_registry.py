"""Descriptions of foreign formats go together: nothing of one can be taken for another."""

import pytest
from support_service import MAKERS

from lodeq.segments.detect import FORMATS, detect
from lodeq.segments.formats.foreign import ForeignFormat
from lodeq.segments.formats.registry import FOREIGN, foreign_format


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda foreign: foreign.name)
class TestEach:
    def test_its_name_is_that_of_its_codec(self, foreign: ForeignFormat) -> None:
        assert foreign.codec().name == foreign.name
        assert foreign_format(foreign.name) is foreign
        assert foreign.name in FORMATS

    def test_its_suffix_is_that_of_its_codec(self, foreign: ForeignFormat) -> None:
        assert foreign.suffix in ("", foreign.codec().suffix)

    def test_it_is_known_by_something(self, foreign: ForeignFormat) -> None:
        assert foreign.magic or foreign.suffix
        assert all(len(magic) == 4 for magic in (foreign.magic, *foreign.beside) if magic)

    def test_the_tests_have_an_example(self, foreign: ForeignFormat, tmp_path) -> None:
        places = [make(tmp_path / name) for name, make in MAKERS.items()]
        assert foreign.name in {detect(place.path).format for place in places}


def test_no_two_are_known_by_the_same() -> None:
    magics = [magic for one in FOREIGN for magic in (one.magic, *one.beside) if magic]
    assert len(set(magics)) == len(magics)
    suffixes = [one.suffix for one in FOREIGN if one.suffix]
    assert len(set(suffixes)) == len(suffixes)
    assert len(set(FORMATS)) == len(FORMATS) == len(FOREIGN) + 2


@pytest.mark.parametrize("name", ["sqs", "journal", "zip"])
def test_ours_and_what_is_none_are_not_foreign(name: str) -> None:
    assert foreign_format(name) is None
