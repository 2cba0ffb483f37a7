"""Python's garbage collector in a process of ours: fewer objects in its passes, and fewer passes.

A pass runs in the midst of whatever allocates, on the loop's thread, and goes over every object of
its generation: modules, code and schemas as well, which live as long as the process. Only the
commands that own their process set it; a service that embeds the engine decides for itself
(docs/operations.md says how).
"""

from __future__ import annotations

import gc

__all__ = ["THRESHOLDS", "settle_collector"]

# New objects before a young pass, young passes before a middle one, middle ones before a full one.
# So a middle pass goes over 25,000 objects or so, and 2.5 million come before one over all.
THRESHOLDS = (5_000, 5, 100)
_AS_STARTED = gc.get_threshold()


def settle_collector() -> bool:
    """Take all that exists out of the collector's passes, and have it pass less often.

    Call it once, when all that stays is loaded and opened. False: whoever wrote the process's code
    has set the collector (its thresholds are not those it started with, or it is off); it stays so.
    """
    if not gc.isenabled() or gc.get_threshold() != _AS_STARTED:
        return False
    gc.collect()  # what is frozen is never freed by a pass
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    return True
