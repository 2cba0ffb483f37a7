"""The blocking client's forwarding modules are as their async sources make them."""

import re

import pytest
from generate_twins import BY_HAND, GENERATED, SOURCES, TWINS, twin_of
from support_sources import none_of


@pytest.mark.parametrize("name", GENERATED)
def test_a_twin_is_as_generated(name):
    assert (TWINS / f"{name}.py").read_text("utf-8") == twin_of(name), "run make twins"


def test_every_blocking_module_is_generated_or_written_beside_its_source():
    found = (path.relative_to(TWINS).with_suffix("") for path in TWINS.rglob("*.py"))
    names = {path.as_posix() for path in found if path.name != "__init__"}
    assert names == {*GENERATED, *BY_HAND}
    none_of(name for name in names if not (SOURCES / f"{name}.py").is_file())


def test_a_twin_has_no_trace_of_async():
    words = ("async ", "await ", "anyio", "Transport, ", "RemoteEngine")
    for name in GENERATED:
        text = twin_of(name).replace("SyncRemoteEngine", "")
        text = re.sub(r"Sync(FramedLink|ClusterTransport|Transport)", "", text)
        assert not [word for word in words if word in text], name
