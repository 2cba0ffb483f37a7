"""What every test shares."""

import gc
import signal

import hypothesis
import pytest

import lodeq

# A deadline per example measures the machine, not the code. The quick tier has its own profile.
hypothesis.settings.register_profile("lodeq", deadline=None)
hypothesis.settings.load_profile("lodeq")

# A shell that starts the suite in the background has its children ignore the interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues keep no history: a test of what goes with the retention itself."""
    init = lodeq.Limits.__init__
    fields = lodeq.Limits.__slots__
    defaults = [
        0 if f == "history_s" else d for f, d in zip(fields, init.__defaults__, strict=True)
    ]
    monkeypatch.setattr(init, "__defaults__", tuple(defaults))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The compiled build takes no stand-ins for its parts, and none of its functions is patched."""
    if lodeq.COMPILED:
        out = [item for item in items if item.get_closest_marker("interpreted")]
        items[:] = [item for item in items if item not in set(out)]
        config.hook.pytest_deselected(items=out)


def pytest_collection_finish() -> None:
    """Keep what stays for the whole run (modules, thousands of items) out of garbage searches."""
    gc.collect()
    gc.freeze()
