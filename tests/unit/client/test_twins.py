"""The blocking client's forwarding modules are as their async sources make them."""

import pytest
from generate_twins import BY_HAND, GENERATED, SOURCES, TWINS, twin_of
from support_sources import none_of


@pytest.mark.parametrize("name", GENERATED)
def test_a_twin_is_as_generated(name):
    assert (TWINS / f"{name}.py").read_text("utf-8") == twin_of(name), "run make twins"


def test_every_blocking_module_is_generated_or_written_beside_its_source():
    names = {path.stem for path in TWINS.glob("*.py")} - {"__init__"}
    assert names == {*GENERATED, *BY_HAND}
    none_of(name for name in names if not (SOURCES / f"{name}.py").is_file())


def test_a_twin_has_no_trace_of_async():
    words = ("async ", "await ", "anyio", "Link, ", "RemoteEngine")
    for name in GENERATED:
        text = twin_of(name).replace("SyncRemoteEngine", "")
        assert not [word for word in words if word in text.replace("SyncLink", "")], name
