"""``python -m lodeq.pipeline JOB …``."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
