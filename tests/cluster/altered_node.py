"""``lodeq`` with something about it changed that no user can change: nodes of the tests run it.

    python altered_node.py --no-session-check -- serve PATH …

``--no-session-check``: this node never counts its session as over by itself, so that nothing but
the log's fence keeps it from what a deposed leader must not do. ``--clock-off S``: its wall clock
is so many seconds ahead. ``--level N``: a release that knows feature levels up to N.
"""

from __future__ import annotations

import argparse
import sys


def without_session_check() -> None:
    from lodeq.replication.etcd.session import Session

    Session._left_s = lambda self: self._ttl_s  # type: ignore[method-assign]


def with_clock_off(seconds: float) -> None:
    from lodeq.engine.runtime.clock import SystemClock

    wall_us = SystemClock.wall_us
    SystemClock.wall_us = lambda self: wall_us(self) + int(seconds * 1e6)  # type: ignore[method-assign]


def with_level(level: int) -> None:
    from lodeq.replication import record

    record.LEVEL = level
    from lodeq.replication import replicator  # which takes it from there

    replicator.LEVEL = level


def main() -> int:
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-session-check", action="store_true")
    parser.add_argument("--clock-off", type=float, default=0.0)
    parser.add_argument("--level", type=int)
    told = parser.parse_args(sys.argv[1:at])
    sys.argv[1:] = sys.argv[at + 1 :]
    if told.level is not None:
        with_level(told.level)
    if told.no_session_check:
        without_session_check()
    if told.clock_off:
        with_clock_off(told.clock_off)
    from lodeq.service.cli.entry import main as lodeq

    return lodeq()


if __name__ == "__main__":
    raise SystemExit(main())
