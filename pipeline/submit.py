"""``spark-submit pipeline/submit.py JOB …``: what it runs is a file, so its imports are absolute.

The master and the settings are those of ``spark-submit``; lodeq must be installed where the driver
and the executors run.
"""

from __future__ import annotations

import sys

from lodeq.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(is_submitted=True))
