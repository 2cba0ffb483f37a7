"""What tests of lodeq and of its users share.

::

    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        ...
        clock.advance(60)
"""

from .clock import ManualClock
from .engine import open

__all__ = ["ManualClock", "open"]
