"""The first seed of the proofs. Each run of `make test` draws one and prints it: other worlds.

``LODEQ_SEED=123 make test`` repeats that run's. Without a tier proofs begin at 0.
"""

import os

FIRST = int(os.environ.get("LODEQ_SEED", "0"))
