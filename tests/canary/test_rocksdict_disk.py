"""Facts 1, 4, 5 and 7: what happens between rocksdict and the kernel.

A hook in front of libc looks at every write and sync of the log from inside the call, so nothing
is measured: either the thread holds the GIL at that moment or it does not. It also makes the disk
fail. The same failures, as the engine meets them, are in ``tests/fault``.
"""

import sys

import pytest
from canary import hooked

pytestmark = pytest.mark.skipif(
    hooked.compiler() is None or not sys.platform.startswith("linux"),
    reason="the hook needs Linux and a C compiler: FACTS 1, 4, 5 AND 7 HAVE NOT BEEN LOOKED AT",
)


@pytest.fixture(scope="module")
def hook(tmp_path_factory):
    return hooked.compiled(tmp_path_factory.mktemp("hook"))


@pytest.fixture
def run(hook, tmp_path):
    return lambda script: hooked.run(hook, script, str(tmp_path / "db"))


# --- fact 1 -------------------------------------------------------------------------------------

IN_THE_CALL = """
db = opened()
db.write(batch(b"first"))  # whatever is written once
before = [counts(WRITE), counts(SYNC)]
{call}
after = [counts(WRITE), counts(SYNC)]
tell(**{{name: [new - old for new, old in zip(b, a)]
        for name, a, b in zip(("writes", "syncs"), before, after)}})
db.close()
"""
SYNCED = "options = WriteOptions(); options.sync = True; db.write(batch(b'k'), options)"


def test_gil_is_held_in_write(run):
    """So a write costs the loop what it takes; a thread would not make it cheaper."""
    told = run(IN_THE_CALL.format(call="db.write(batch(b'k'))"))
    assert told == {"writes": [1, 0], "syncs": [0, 0]}


def test_gil_is_held_while_a_write_syncs(run):
    """Why ``write_options`` never asks for it."""
    told = run(IN_THE_CALL.format(call=SYNCED))
    assert told == {"writes": [1, 0], "syncs": [1, 0]}


def test_gil_is_released_in_flush_wal(run):
    """Why a sync in a thread leaves the loop running."""
    told = run(IN_THE_CALL.format(call="db.write(batch(b'k')); db.flush_wal(True)"))
    assert told == {"writes": [1, 0], "syncs": [0, 1]}


# --- facts 4, 5 and 7 ---------------------------------------------------------------------------

FAILING = """
db = opened()
db.write(batch(b"before"))
db.flush_wal(True)
{failure}
failed = error_of({failed})
visible = db.get(b"failed") is not None
later = [error_of(db.write, batch(b"later%d" % n)) for n in range(3)]
properties = [db.property_int_value("rocksdb." + name)
              for name in ("background-errors", "is-write-stopped")]
reads = db.get(b"before") is not None
closing = error_of(db.close)
del db
again = opened()
tell(failed=failed, visible=visible, later=later, properties=properties, reads=reads,
     there=[again.get(key) is not None for key in (b"before", b"failed", b"later0")],
     writes=error_of(again.write, batch(b"again")))
again.close()
"""
SYNC_FAILS = FAILING.format(
    failure="db.write(batch(b'failed')); hook.canary_fail(SYNC, errno.EIO)",
    failed="db.flush_wal, True",
)
WRITE_FAILS = FAILING.format(
    failure="hook.canary_fail(WRITE, errno.EIO)", failed="db.write, batch(b'failed')"
)
WRITE_IS_FULL = """
import select
db = opened()
hook.canary_fail(WRITE, errno.ENOSPC)
failed = error_of(db.write, batch(b"failed"))
visible = db.get(b"failed") is not None
tries = 0
while error_of(db.write, batch(b"again")) and tries < 1000:
    tries += 1
    select.select([], [], [], 0.02)  # RocksDB looks now and then, in a thread of its own
healed = tries < 1000
db.close()
del db
db = opened()
tell(failed=failed, visible=visible, healed=healed,
     there=[db.get(key) is not None for key in (b"failed", b"again")])
db.close()
"""


@pytest.mark.parametrize("script", [SYNC_FAILS, WRITE_FAILS], ids=["sync", "write"])
def test_an_io_error_stays_until_the_database_is_opened_again(run, script):
    """Every later write fails although the disk is well again; reads go on."""
    told = run(script)
    assert told["failed"][0] == "Exception"
    assert told["failed"][1].startswith("IO error")
    assert [error[1].startswith("IO error") for error in told["later"]] == [True] * 3
    assert told["reads"]
    assert told["writes"] is None
    assert told["there"][0]
    assert not told["there"][2]


@pytest.mark.parametrize("script", [SYNC_FAILS, WRITE_FAILS], ids=["sync", "write"])
def test_no_property_tells_of_it(run, script):
    """Why the engine keeps a mark of its own (``FAILED``)."""
    assert run(script)["properties"] == [0, 0]


def test_a_batch_whose_sync_failed_is_there_all_the_same(run):
    """Visible at once, and after the next open: a failed commit is unknown, not undone."""
    told = run(SYNC_FAILS)
    assert told["visible"]
    assert told["there"] == [True, True, False]


@pytest.mark.slow
def test_a_full_disk_heals_by_itself(run):
    """Nothing of the refused batch is applied, and writes go on without a reopen: retry it."""
    told = run(WRITE_IS_FULL)
    assert "No space left on device" in told["failed"][1]
    assert not told["visible"]
    assert told["healed"]
    assert told["there"] == [False, True]
