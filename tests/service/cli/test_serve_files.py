"""``lodeq serve`` and ``lodeq worker`` ask for the files that they may have."""

import resource

import pytest

from lodeq.service.shared.open_files import FILES, allow_files

FREE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 1 << 20, FILES),
        (1024, 4096, 4096),
        (1024, FREE, FILES),
        (1 << 20, FREE, None),
        (FREE, FREE, None),
        (1024, 1024, None),
    ],
)
def test_as_many_files_as_callers_and_a_store_need(monkeypatch, soft, hard, then):
    told = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: told.append(both))
    allow_files()
    assert told == ([] if then is None else [(then, hard)])
