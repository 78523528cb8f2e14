"""`make bench`, second part: what the night key calls each planted cause, over several seeds, as a confusion matrix.

Run it on a quiet machine: the steps are paced, and work beside it shows up as what it is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "console" / "experiments"))

from planted_causes import CAUSES, confusion, table

ENOUGH = 0.95


def main() -> int:
    """Print the matrix; the exit status says whether 95 % are right and nothing is blamed where nothing was planted."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.confusion", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs of every cause (default: 10)")
    parser.add_argument("--only", nargs="*", default=(), help="names of causes")
    parser.add_argument("--pace", type=float, default=1.0, help="steps last so many times as long (default: 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(confusion(Path(folder), options.seeds, tuple(options.only), options.pace))
    sys.stdout.write(table(found) + "\n")
    right = sum(klass in cause.expected for cause, _, klass, _ in found)
    sound = [klass for cause, _, klass, _ in found if cause is CAUSES[0]]
    blamed = any(klass not in (*CAUSES[0].expected, "inconclusive") for klass in sound)
    return int(right < ENOUGH * len(found) or blamed)


if __name__ == "__main__":
    sys.exit(main())
