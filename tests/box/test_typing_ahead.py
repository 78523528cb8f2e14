"""A real terminal, a real box, and a slow ProxyCommand between them: what is typed meanwhile belongs to the console."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from box_machine import Box

from tests.tui.test_terminal import ROOT, Terminal

pytestmark = [pytest.mark.box, pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]

SLOW_BRIDGE = """
import os, socket, sys, threading, pathlib
print("the bridge says something on its error output", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[2]).touch()
while not pathlib.Path(sys.argv[3]).exists():
    threading.Event().wait(0.05)
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def back():
    while data := sock.recv(65536):
        os.write(1, data)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    sock.sendall(data)
"""
"""Connects only once the third file is there; the second says that it runs."""


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal of 80 by 24."""
    one = Terminal()
    yield one
    one.close()


def test_no_key_is_lost_to_a_proxy_command_and_its_words_do_not_spoil_the_screen(
    box: Box, terminal: Terminal, tmp_path: Path
) -> None:
    bridge, runs, go = tmp_path / "bridge.py", tmp_path / "runs", tmp_path / "go"
    bridge.write_text(SLOW_BRIDGE)
    config, ssh = tmp_path / ".config" / "ddtree", tmp_path / ".ssh"
    config.mkdir(parents=True)
    ssh.mkdir(mode=0o700)
    command = f"{sys.executable} {bridge} {box.port} {runs} {go}"
    (ssh / "config").write_text(f"Host behind\n  HostName 127.0.0.1\n  Port {box.port}\n  ProxyCommand {command}\n")
    (config / "hosts.toml").write_text(f'[box]\naddress = "behind"\nuser = "ops"\nkey = "{box.key}"\n')
    (config / "known_hosts").write_text(box.known_hosts.read_text())
    terminal.until("ready>")
    terminal.type(f"cd {ROOT} && HOME={tmp_path} {sys.executable} -m console.cli box; echo status $?")
    terminal.wait(runs.exists)
    terminal._tmux("send-keys", "-l", "3")  # Log, while nobody but the proxy listens
    go.touch()
    terminal.until("LIVE")
    terminal.until(" records")  # Log is in front, with what other tests left in the journal
    assert "the bridge says" not in terminal.screen()
    terminal._tmux("send-keys", "C-q")
    terminal.until("status 0")
