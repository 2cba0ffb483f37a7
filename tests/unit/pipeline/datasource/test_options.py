"""Options are checked before anything is read or written."""

import pytest

from lodeq.errors import UsageError
from lodeq.pipeline.datasource.options import Options


def test_names_are_taken_in_any_case() -> None:
    options = Options({"MAXROWSPERTRIGGER": "5", "columns": " a , b ,", "failondataloss": "FALSE"})
    assert options.count("maxRowsPerTrigger") == 5
    assert options.names("columns") == ["a", "b"]
    assert options.flag("failOnDataLoss", default=True) is False
    assert options.text("journal") is None


def test_a_misspelt_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no option 'tabel': did you mean 'table'\?"):
        Options({"tabel": "tasks"})
    with pytest.raises(UsageError, match=r"no option 'q'"):
        Options({"q": "1"})


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "٣"])
def test_numbers_are_whole_and_above_0(value: str) -> None:
    with pytest.raises(UsageError, match="must be a whole number above 0"):
        Options({"batchRows": value}).count("batchRows")


def test_flags_and_choices_are_what_they_can_be() -> None:
    with pytest.raises(UsageError, match="must be true or false"):
        Options({"failOnDataLoss": "maybe"}).flag("failOnDataLoss", default=True)
    with pytest.raises(UsageError, match="is not one of a, b"):
        Options({"table": "c"}).choice("table", ("a", "b"), "a")
    with pytest.raises(UsageError, match="needs the option 'path'"):
        Options({"path": ""}).needed("path", "a store")


def test_a_cluster_is_no_folder() -> None:
    options = Options({"path": "lodeq://a:7000,b:7000"})
    with pytest.raises(UsageError, match="take a snapshot at one of them"):
        options.needed("path", "the folder of a store")
