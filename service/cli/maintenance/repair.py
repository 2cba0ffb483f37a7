"""``lodeq repair --plan``: do what an audit has proposed."""

from __future__ import annotations

from ....engine.offline.repair_plan import read_plan
from ....repository.maintenance.apply_repair import apply_repair
from ..connection import confirm
from ..display import tell, tell_json
from ..output import shown

__all__ = ["repair_by_plan"]


def repair_by_plan(store: str, plan: str, *, is_sure: bool, as_json: bool = False) -> bool:
    """Apply a plan, and tell of it. False: there is more than a repair can do."""
    wanted = read_plan(plan)
    rows = f"{len(wanted.drop):,} rows are dropped, {len(wanted.move):,} moved"
    confirm(f"Do what the plan says? {rows}.", is_sure=is_sure)
    done = apply_repair(store, wanted)
    if as_json:
        tell_json(
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
    tell(f"{done.dropped} rows dropped, {done.moved} moved, {done.skipped} not as planned any more")
    for shard, report in done.shards:
        tell(f"shard {shard}: {report.describe()}")
    for words in wanted.beyond:
        tell(f"not repaired: {shown(words)}")
    return not wanted.beyond
