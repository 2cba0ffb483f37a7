"""The power is cut at thousands of points of recorded lives; the engine must lose nothing.

``LODEQ_POWER_IMAGES`` (1,500) images, spread over traces of both modes, one and four shards, and
all policies; ``LODEQ_SEED`` repeats the choices of a run (a trace is up to the scheduler,
too: that of a failure is kept, and the message says how to judge its image again).
"""

from __future__ import annotations

import os
import random
import sys
import time

import pytest
from power import crew
from power.bugs import BUGS
from power.disk import POLICIES
from power.shim import NEEDS, library
from support_seeds import FIRST

IMAGES = int(os.environ.get("LODEQ_POWER_IMAGES", "1500"))
SEED = FIRST or random.SystemRandom().randrange(1 << 20)
IMAGES_A_TRACE = 250
BUG_TRACES = 2
BUG_IMAGES = 80
# What a bug needs to show at all: whatever a seed draws, there are payloads that lie in files.
NEEDED = {"bodies_are_not_synced_first": {"body_bytes_min": 64, "sizes": (900, 2000)}}

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(300 + IMAGES / 5),
    pytest.mark.skipif(library() is None, reason=NEEDS),
]


@pytest.mark.sample
def test_a_power_cut_at_any_point_loses_nothing_durable() -> None:
    traces = max(2, -(-IMAGES // IMAGES_A_TRACE))
    started = time.monotonic()
    seeds = [SEED + i for i in range(traces)]
    told = crew.run(
        "power.campaign",
        crew.shares(seeds, images=-(-IMAGES // traces), keep=str(crew.KEEP)),
        timeout=250 + IMAGES / 5,
    )
    took = time.monotonic() - started
    images = sum(one["images"] for one in told)
    sys.stdout.write(
        f"{images} images of {len(told)} traces in {took:.0f} s ({images / took:.0f} a second), "
        f"LODEQ_SEED={SEED}\n{crew.table(told)}\n"
    )
    failed = [crew.describe(one) for one in told if one["failed"]]
    assert not failed, "\n".join([f"LODEQ_SEED={SEED}", *failed])
    assert len(told) == traces
    assert images >= IMAGES
    assert {name.split()[0] for one in told for name in one["counts"]} == set(POLICIES)


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str) -> None:
    told = crew.run(
        "power.campaign",
        crew.shares(
            [2 * i for i in range(BUG_TRACES)],
            images=BUG_IMAGES,
            fixed={**NEEDED.get(bug, {}), "bug": bug},
        ),
        timeout=200,
    )
    counts = [name for one in told for name in one["counts"]]
    assert any(one["failed"] for one in told)
    expected = {
        "sync_does_nothing": "drop refused",
        "sync_does_nothing_unseen": "drop",
        "ack_before_sync": "drop lost",
        "watermark_before_sync": "drop refused",
        "names_are_not_synced": "names lost",
        "batches_in_two": "",
        "bodies_are_not_synced_first": "",
    }[bug]
    assert any(name.startswith(expected) and not name.endswith("plain") for name in counts)


def test_what_is_recorded_is_what_is_on_the_disk() -> None:
    """With everything kept, the model equals the real folder, byte by byte."""
    told = crew.run("power.campaign", crew.shares(list(range(6)), control=True), timeout=200)
    assert sorted(one["seed"] for one in told) == list(range(6))
    assert [one["differs"] for one in told] == [[]] * 6
    assert all(one["files"] > 8 for one in told)


def test_a_process_that_vanishes_has_recorded_all_that_its_threads_did() -> None:
    """Found by the test above: a file whose creation was missing from the trace."""
    (told,) = crew.run("power.vanish", [{"times": 60}], timeout=60)
    assert told == {"times": 60, "differs": 0}
