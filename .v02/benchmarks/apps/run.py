"""All applications of `prismm.applications`, and the tuner against exhaustive search.

Run: python benchmarks/apps/run.py [--device cuda] [--seconds 170] [--out DIR]; writes apps.csv and tuning.csv, by
default to benchmarks/results. `prismm bench apps` runs the same.
"""

import sys
from pathlib import Path

from prismm.applications.run import main

RESULTS = Path(__file__).parents[1] / "results"

if __name__ == "__main__":
    sys.exit(main(["--out", str(RESULTS), *sys.argv[1:]]))
