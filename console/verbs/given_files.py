"""Local files that verbs read; `-` is standard input. A wait for input ends at once when the operator interrupts it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from console.errors import UsageError


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file as bytes. Raises UsageError when it cannot be read."""
    try:
        stream = sys.stdin.buffer if str(path) == "-" else path.open("rb")
    except FileNotFoundError:
        raise UsageError("no such file", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    # asyncio turns the first interrupt into a cancellation, which a blocking read would never see.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stream:
            yield stream
    finally:
        signal.signal(signal.SIGINT, before)


def read_json(path: Path) -> Any:
    """The JSON value in the file. Raises UsageError with line and column when it is none."""
    with opened(path) as stream:
        data = stream.read()
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError("is not UTF-8 text", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"is not JSON: {error.msg}", where=f"{path}, line {error.lineno}, col {error.colno}"
        ) from error
    except RecursionError as error:
        raise UsageError("is nested too deeply to be read", where=str(path)) from error
    except ValueError as error:  # a number of more digits than Python reads
        raise UsageError(f"is not JSON that can be read: {error}", where=str(path)) from error
