"""Where warnings of the libraries beneath go: to a file of the operator's own, never onto a screen or into a pipe."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

LARGEST_BYTES = 1_000_000


class _LateFile(RotatingFileHandler):
    """Makes its folder and file (0600) with the first record, so that a console that has nothing to say leaves nothing."""

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def keep_own_log(path: Path) -> None:
    """Send every warning and worse that is logged in this process to `path`, two files of a megabyte at most."""
    handler = _LateFile(path, maxBytes=LARGEST_BYTES, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False  # a full disk must not turn into tracebacks on the screen either
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
