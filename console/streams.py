"""The three standard streams as a shell may hand them over: closed, on a full disk, or read by somebody who has left."""

from __future__ import annotations

import os
import sys
from typing import IO

from console.errors import OperatorError


def open_the_closed() -> None:
    """Put the null device where descriptor 0, 1 or 2 is closed, so that no file or socket of ours is taken for a stream."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def put(line: str) -> None:
    """One line on standard output, at once. Raises OperatorError where it cannot be written, BrokenPipeError as it comes."""
    try:
        print(line, flush=True)  # noqa: T201
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise OperatorError(error.strerror or str(error), where="standard output") from error


def put_beside(line: str) -> None:
    """One line on standard error. Where that is not to be had nobody can be told, and the exit status has to do."""
    try:
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    except OSError:
        silence(sys.stderr)


def silence(stream: IO[str]) -> None:
    """Send what `stream` still holds to the null device: Python would complain once more when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
