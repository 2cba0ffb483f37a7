"""``spark-submit pipeline/submit.py JOB …``: the jobs as a script, with absolute imports.

``spark-submit`` sets the master and the settings. lodeq must be installed where the driver and the
executors run.
"""

from __future__ import annotations

import sys

from lodeq.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main(is_submitted=True))
