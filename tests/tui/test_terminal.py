"""The console in a real terminal (tmux): what a test without a driver cannot see."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Terminal:
    """A tmux server of its own with one shell in it."""

    def __init__(self) -> None:
        self._socket = f"ddtree-{uuid.uuid4().hex[:8]}"
        shell = "env -i PATH=/usr/bin:/bin TERM=screen-256color LANG=C.UTF-8 PS1='ready> ' sh"
        self._tmux("new-session", "-d", "-x", "80", "-y", "24", shell)

    def type(self, line: str) -> None:
        """Type a line and press enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def screen(self) -> str:
        """What is on screen."""
        return self._tmux("capture-pane", "-p")

    def flag(self, name: str) -> str:
        """A fact that tmux knows of the terminal, such as `alternate_on`."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def until(self, words: str) -> None:
        """Wait until `words` are on screen."""
        self.wait(lambda: words in self.screen(), f"{words!r} on screen")

    def wait(self, condition: Callable[[], bool], what: str = "what was waited for") -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what}:\n{self.screen()}")
            time.sleep(0.05)

    def close(self) -> None:
        """End the server and what runs in it."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        argv = ["tmux", "-L", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal of 80 by 24."""
    one = Terminal()
    yield one
    one.close()


def start_console(terminal: Terminal, folder: Path) -> int:
    """The console on recorded data, in the foreground of the terminal; its process id."""
    pid_file = folder / "pid"
    code = f"import os, pathlib; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid())); "
    code += "import asyncio; from tests.tui.recorded import main; asyncio.run(main())"
    terminal.until("ready>")
    terminal.type(f'cd {ROOT} && {sys.executable} -c "{code}"; echo status $?')
    terminal.until("LIVE")
    assert terminal.flag("alternate_on") == "1"
    return int(pid_file.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, tmp_path: Path, number: signal.Signals) -> None:
    pid = start_console(terminal, tmp_path)
    os.kill(pid, number)
    terminal.until("status 0")
    assert terminal.flag("alternate_on") == "0"
    assert terminal.flag("cursor_flag") == "1"
    assert terminal.flag("mouse_any_flag") == "0"
    assert "Traceback" not in terminal.screen()
    terminal.type("stty -a | tr ';' '\\n' | grep -c -w -e '-echo' -e '-icanon'; echo typed")
    terminal.until("0\ntyped")


def test_ctrl_q_leaves_and_the_shell_goes_on(terminal: Terminal, tmp_path: Path) -> None:
    start_console(terminal, tmp_path)
    terminal._tmux("send-keys", "C-q")
    terminal.until("status 0")
    assert terminal.flag("alternate_on") == "0"


def test_the_terminal_takes_no_control_character_from_the_log(terminal: Terminal, tmp_path: Path) -> None:
    start_console(terminal, tmp_path)
    terminal._tmux("send-keys", "3")
    terminal.until("␛]0;owned␇")
    assert "owned" not in terminal.flag("pane_title")
