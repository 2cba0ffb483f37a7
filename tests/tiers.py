"""Two tiers of the suite, and a floor under what ran.

``--tier=commit`` is what `make test` runs: all that is quick, and of each proof marked ``sample`` a
small one, from the seed ``LODEQ_SEED`` on. Without one it is drawn, once for all processes of the
run, so that each run tries other worlds; the run says how it is repeated. It is drawn from seeds
that the proofs have been through: a run fails for what was changed. The folders of this tier
are in memory where there is room: thousands of stores wait for a disk longer than for anything
else. Of a property it tries few examples. ``--tier=rest`` runs what that leaves, and the same
proofs and properties in full. Without a tier everything runs in full. ``--at-least=N`` fails a run
in which fewer tests passed. In the end it says which tests made their process larger than ever.
"""

import gc
import os
import random
import resource
import secrets
import shutil
from collections.abc import Generator, Iterator

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

LATE = {"crash", "slow", "spark"}
SMALL = {
    "LODEQ_CLUSTER_SEEDS": "10",
    "LODEQ_CRASH_CYCLES": "12",
    "LODEQ_FAULT_SITES": "7",
    "LODEQ_FLIPS": "1",
    "LODEQ_FUZZ_EXAMPLES": "8",
    "LODEQ_KILL_POINTS": "10",
    "LODEQ_LOOK_SEEDS": "4",
    "LODEQ_MODEL_RUNS": "10",
    "LODEQ_MOVE_SEEDS": "2",
    "LODEQ_POWER_IMAGES": "100",
    "LODEQ_ROT": "10",
    "LODEQ_SIM_SEEDS": "100",
}
EXAMPLES = 20  # of a property that sets no number of its own

MEMORY = "/dev/shm"
MEMORY_BYTES = 4 << 30  # left there, before folders are made in it
PEAK = pytest.StashKey[int]()
# One of these is the first, where none is given.
STARTS = list(range(0, 2000, 100))
TRIES = 3  # of a test that bounds what one callback takes
GROWTH_MIB = 128  # of one test, that is worth a line


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=("commit", "rest"), help="run this tier only")
    group.addoption("--shuffle", type=int, help="run them in the order of this seed")
    group.addoption("--at-least", type=int, default=0, help="fail if fewer tests passed")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier") == "commit":
        for name, size in SMALL.items():
            os.environ.setdefault(name, size)  # before the modules that read it
        # A deadline per example measures the machine, not the code.
        hypothesis.settings.register_profile("few", deadline=None, max_examples=EXAMPLES)
        hypothesis.settings.load_profile("few")
        if has_room_in_memory():
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
        # Before ``support_seeds``; workers inherit it.
        os.environ.setdefault("LODEQ_SEED", str(secrets.choice(STARTS)))
    gc.disable()  # until all is collected: it would look through what stays, again and again
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Floor(config.getoption("--at-least")))
        config.pluginmanager.register(Growth())


def has_room_in_memory() -> bool:
    """Whether the folders of the quick tests can be in memory."""
    try:
        free = shutil.disk_usage(MEMORY).free
    except OSError:
        return False
    return min(free, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")) >= MEMORY_BYTES


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str | None:
    return seed_line() if config.getoption("--tier") == "commit" else None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--tier") == "commit":
        terminalreporter.write_line(seed_line())
        stats = terminalreporter.stats
        failed = [*stats.get("failed", ()), *stats.get("error", ())]
        if failed:
            files = sorted({report.nodeid.partition("::")[0] for report in failed})
            terminalreporter.write_line(f"to repeat what failed: {repeat_line(files)}", red=True)


def seed_line() -> str:
    """Where the samples of this run begin."""
    return f"the samples of the proofs begin at seed {os.environ['LODEQ_SEED']}"


def repeat_line(files: list[str]) -> str:
    """The command that runs these files with the same samples."""
    return f'LODEQ_SEED={os.environ["LODEQ_SEED"]} make test ARGS="{" ".join(files)}"'


def peak_mib() -> int:
    """The most memory this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test marked ``turns`` has three tries at its bound, and at nothing else.

    What holds a loop does so each time. On a machine that is shared the same work takes twice the
    CPU time now and then.
    """
    if item.get_closest_marker("turns") is None:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(TRIES):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed and "LoopHeldError" in report.longreprtext for report in reports):
            break
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[PEAK] = peak_mib()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append(("grown_mib", peak_mib() - item.stash[PEAK]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Names and marks of what passed are of no use to the process that counts it."""
    report = yield
    if report.passed:
        report.keywords = {}
    return report


def marks_of(item: pytest.Item) -> set[str]:
    """A property is a sample of itself: more examples are tried in full."""
    marks = {mark.name for mark in item.iter_markers()}
    if hasattr(getattr(item, "obj", None), "hypothesis") and not LATE & marks:
        marks.add("sample")
    return marks


def is_in(tier: str, marks: set[str]) -> bool:
    return "sample" in marks or (tier == "rest") is bool(LATE & marks)


@pytest.hookimpl(trylast=True)  # a folder may mark its items
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier is not None:
        marks = {item: marks_of(item) for item in items}
        config.hook.pytest_deselected(items=[i for i in items if not is_in(tier, marks[i])])
        items[:] = [item for item in items if is_in(tier, marks[item])]
    if (order := config.getoption("--shuffle")) is not None:
        random.Random(order).shuffle(items)


class Floor:
    """Nothing passes by running nothing."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed += report.when == "call" and report.passed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        if self._is_below() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._is_below():
            text = f"{self._passed} tests passed, at least {self._least} have to"
            terminalreporter.write_line(text, red=True)

    def _is_below(self) -> bool:
        return self._passed < self._least


class Growth:
    """Names the tests that need much memory: no duration shows them."""

    def __init__(self) -> None:
        self._grown: list[tuple[int, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            mib = int(dict(report.user_properties).get("grown_mib", 0))
            if mib >= GROWTH_MIB:
                self._grown.append((mib, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for mib, name in sorted(self._grown, reverse=True)[:10]:
            terminalreporter.write_line(f"{mib:,} MiB more than ever before: {name}")
