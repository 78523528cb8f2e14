"""Asking the operator on the terminal: a yes, a host key's fingerprint, a passphrase typed without echo."""

from __future__ import annotations

import asyncio
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from console.box.prompts import HostKeyQuestion
from console.errors import OperatorError


def can_ask() -> bool:
    """Whether there is somebody at a terminal, to read questions (standard error) and to answer (standard input)."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def ask(question: str) -> str:
    """Put `question` on standard error and return the line typed. Standard output stays free for data."""
    print(question, end="", file=sys.stderr, flush=True)  # noqa: T201
    await _line_ready()
    line = sys.stdin.readline()
    if not line:
        raise OperatorError("no answer: the input has ended")
    return line.rstrip("\n")


class TerminalPrompts:
    """The SSH layer's questions, put on the terminal."""

    async def trust_host_key(self, question: HostKeyQuestion) -> bool:
        """Show what would be trusted; only the whole word yes is a yes."""
        answer = await ask(
            f"{question.host} ({question.address}:{question.port}) shows a host key never seen before:\n"
            f"  {question.key_type} {question.fingerprint}\n"
            "Compare it with the box's own. Trust it and remember it? Type yes to go on: "
        )
        return answer.strip() == "yes"

    async def secret(self, title: str, prompt: str) -> str | None:
        """A line typed without echo; None when it is left empty."""
        with _no_echo():
            typed = await ask(f"{title}\n{prompt} ")
        print(file=sys.stderr)  # noqa: T201
        return typed or None


async def _line_ready() -> None:
    """Wait for a line without holding up the loop, so that Ctrl-C ends the wait and the link stays up meanwhile."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())


@contextmanager
def _no_echo() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)
