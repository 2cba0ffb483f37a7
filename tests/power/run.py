"""Power cuts and kill points on demand, in pieces: the ledger knows where to go on.

python tests/power/run.py --images 100000     gate "power": until that many have been judged
python tests/power/run.py --kills             gate "kill-points": a script of 2,000 operations
python tests/power/run.py --again FILE CUT POLICY SEED     one image of a kept trace
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zlib
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ledger import Ledger
from power import crew
from power.shim import NEEDS, library, scratch

IMAGES_A_TRACE = 500
TRACES_A_PIECE = 8
SEGMENTS = 20
SEGMENT_OPS = 100
PIECE_S_MAX = 3000


def power(images: int, seconds: float) -> int:
    """Judge images until so many have been, all runs together, or the time is over."""
    ledger, until, failed = Ledger.default(), time.monotonic() + seconds, 0
    while ledger.next_start("power") < images and time.monotonic() < until:
        start, begun = ledger.next_start("power"), time.monotonic()
        left = -(-(images - start) // IMAGES_A_TRACE)
        first = start // IMAGES_A_TRACE
        seeds = list(range(first, first + min(TRACES_A_PIECE, left)))
        orders = crew.shares(seeds, images=IMAGES_A_TRACE, keep=str(crew.KEEP))
        told = crew.run("power.campaign", orders, PIECE_S_MAX)
        took = time.monotonic() - begun
        done = sum(one["images"] for one in told)
        bad = [one for one in told if one["failed"]]
        failed += len(bad)
        outcomes: dict[str, int] = {}
        for one in told:
            for name, n in one["counts"].items():
                outcomes[name] = outcomes.get(name, 0) + n
        ledger.add(
            "power",
            start=start,
            done=done,
            failed=sum(one["failed"] for one in told),
            seconds=took,
            outcomes=outcomes,
        )
        print(f"{start + done:,} images, {done / took:.0f} a second", flush=True)
        print("\n".join([crew.table(told), *map(crew.describe, bad)]), flush=True)
    return failed


def kills(seconds: float) -> int:
    """Every kill point of the script, both modes, one and four shards."""
    from power.kills import COMBINATIONS

    ledger, until, failed = Ledger.default(), time.monotonic() + seconds, 0
    pieces = [(each, segment) for segment in range(SEGMENTS) for each in COMBINATIONS]
    while (start := ledger.next_start("kill-points")) < len(pieces) and time.monotonic() < until:
        begun = time.monotonic()
        orders = [
            {"combinations": [each], "segments": [segment], "ops": SEGMENT_OPS, "n_max": 1 << 30}
            for each, segment in pieces[start : start + crew.cores()]
        ]
        told = crew.run("power.kills", orders, PIECE_S_MAX)
        bad = [one for one in told if one["failed"]]
        failed += len(bad)
        ledger.add(
            "kill-points",
            start=start,
            done=len(orders),
            failed=len(bad),
            seconds=time.monotonic() - begun,
            kills=sum(one["kills"] for one in told),
        )
        print(f"{start + len(orders)} of {len(pieces)} segments", *bad, sep="\n", flush=True)
    return failed


def again(path: str, at: int, policy: str, seed: int) -> int:
    """One image of a kept trace."""
    from power.campaign import judge_cuts
    from power.record import read

    config, events = read(zlib.decompress(Path(path).read_bytes()))
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        (told,) = judge_cuts(config, events, [(at, policy, seed)], Path(folder))
    print(json.dumps(told, indent=1).replace("\\n", "\n"))
    return told["outcome"] in {"refused", "lost"}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--again", nargs=4, metavar=("FILE", "CUT", "POLICY", "SEED"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after")
    options = parser.parse_args()
    if library() is None:
        sys.exit(NEEDS)
    failed = 0
    if options.again:
        path, at, policy, seed = options.again
        failed += again(path, int(at), policy, int(seed))
    if options.images:
        failed += power(options.images, options.seconds)
    if options.kills:
        failed += kills(options.seconds)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
