"""``lodeq repair --plan``: do what an audit has proposed."""

from __future__ import annotations

from ....engine.offline.repair_plan import read_plan
from ....repository.maintenance.apply_repair import apply_repair
from ..connection import confirm
from ..display import print_json, print_line
from ..output import shown

__all__ = ["repair_by_plan"]


def repair_by_plan(store: str, plan: str, *, is_sure: bool, as_json: bool = False) -> bool:
    """Apply a plan, and print what was done.

    Args:
        store: its folder, which nobody has open.
        plan: path of the plan.
        is_sure: do not ask first.
        as_json: print one object.

    Returns: False if the plan names findings that are beyond repair.
    """
    wanted = read_plan(plan)
    rows = f"{len(wanted.drop):,} rows are dropped, {len(wanted.move):,} moved"
    confirm(f"Do what the plan says? {rows}.", is_sure=is_sure)
    done = apply_repair(store, wanted)
    if as_json:
        print_json(
            [
                {
                    "dropped": done.dropped,
                    "moved": done.moved,
                    "skipped": done.skipped,
                    "shards": {str(shard): report.describe() for shard, report in done.shards},
                    "beyond": list(wanted.beyond),
                }
            ]
        )
        return not wanted.beyond
    print_line(
        f"{done.dropped} rows dropped, {done.moved} moved, {done.skipped} skipped, "
        "as they have changed since the plan"
    )
    for shard, report in done.shards:
        print_line(f"shard {shard}: {report.describe()}")
    for words in wanted.beyond:
        print_line(f"not repaired: {shown(words)}")
    return not wanted.beyond
