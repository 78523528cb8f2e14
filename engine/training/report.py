"""A live line on a terminal, a line now and then anywhere else."""

from collections.abc import Callable
from typing import TextIO


class Ticker:
    """Shows the newest state of something long. `clock` gives seconds; the stream is a terminal or a file."""

    def __init__(
        self, stream: TextIO, clock: Callable[[], float], *, terminal_s: float = 0.2, file_s: float = 15.0
    ) -> None:
        self._stream, self._clock = stream, clock
        self._live = stream.isatty()
        self._interval = terminal_s if self._live else file_s
        self._shown_at: float | None = None
        self._width = 0

    def show(self, text: str) -> None:
        """Show `text` in place of the last one, unless that was a moment ago."""
        now = self._clock()
        if self._shown_at is not None and now - self._shown_at < self._interval:
            return
        self._shown_at = now
        if self._live:
            self._stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        start = "\r" if self._live and self._width else ""
        self._stream.write(f"{start}{text.ljust(self._width)}\n")
        self._width = 0
        self._stream.flush()
