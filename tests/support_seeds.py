"""The first seed of the proofs: ``LODEQ_SEED=123 make test`` tries other worlds than 0 and on."""

import os

FIRST = int(os.environ.get("LODEQ_SEED", "0"))
