"""The door to the `ddtree` command: it loads next to nothing itself, so that Ctrl-C while the rest loads is one line too."""

from __future__ import annotations

import sys


def main() -> int:
    """Run one command line and return its exit status."""
    try:
        from console.cli import main as run
    except KeyboardInterrupt:
        print("ddtree: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
