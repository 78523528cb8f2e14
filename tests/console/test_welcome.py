"""The first start: what there is to open, the demo's second start, and the demo's prompts that step aside and come back."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from console.config import Places
from console.demo_file import DemoBox, write_demo
from console.demo_prompts import run_goes_on, send_prompts
from console.welcome import MOST_SHOWN, Choice, Offer, offers, read_answer, welcome_text
from tests.console.conftest import Ddtree

FOUND = (Offer("gpu-01", "hosts.toml"), Offer("lab", "SSH config"))


def test_hosts_of_the_file_come_first_and_each_once(tmp_path: Path) -> None:
    where = Places(tmp_path / "hosts.toml", tmp_path / "kh", tmp_path / "demo.json", tmp_path, (tmp_path / "ssh",))
    assert offers(where) == ()
    where.hosts.write_text('[gpu-01]\ntag = "LAB"\n')
    where.ssh_config[0].write_text("Host lab gpu-01\n  User x\nHost *.wild\n")
    assert offers(where) == FOUND


@pytest.mark.parametrize("count", [0, 2, 300])
@pytest.mark.parametrize("running", [False, True])
def test_the_page_fits_a_small_terminal_and_names_demo_hosts_and_doctor(count: int, running: bool) -> None:
    lines = welcome_text(
        [*FOUND, *(Offer(f"h{n}", "SSH config") for n in range(300))][:count], demo_runs=running
    ).split("\n")
    assert all(len(line) <= 80 for line in lines)
    assert ("   d  the demo: it runs already" in lines) is running
    assert any("doctor HOST" in line for line in lines)
    assert sum(line.endswith(("hosts.toml", "SSH config")) for line in lines) == min(count, MOST_SHOWN)
    assert any(f"and {count - MOST_SHOWN} more" in line for line in lines) is (count > MOST_SHOWN)


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        ("", None),
        ("  ", None),
        ("q", None),
        ("d", Choice("demo", None)),
        ("demo", Choice("demo", None)),
        ("1", Choice(None, "gpu-01")),
        (" lab ", Choice(None, "lab")),
        ("ops@10.0.0.7:2222", Choice(None, "ops@10.0.0.7:2222")),
        ("doctor 2", Choice("doctor", "lab")),
        ("doctor ops@new", Choice("doctor", "ops@new")),
    ],
)
def test_an_answer_is_a_line_a_host_or_doctor(answer: str, choice: Choice | None) -> None:
    assert read_answer(answer, FOUND) == choice


@pytest.mark.parametrize("answer", ["3", "0", "doctor", "status gpu-01", "gpu-01 lab", "doctor 9"])
def test_an_answer_that_means_nothing_is_named(answer: str) -> None:
    with pytest.raises(ValueError, match=r"in the list|neither a line"):
        read_answer(answer, FOUND)


def on_a_terminal(home: Path, answers: bytes) -> tuple[int, str]:
    """`ddtree` without a word, on a terminal, in an empty home."""
    keyboard, terminal = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm", "NO_COLOR": "1"}
    os.write(keyboard, answers)
    with subprocess.Popen(
        [sys.executable, "-m", "console.cli"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as running:
        os.close(terminal)
        said = b""
        while True:
            try:
                data = os.read(keyboard, 4096)
            except OSError:  # the terminal's other end is closed
                break
            if not data:
                break
            said += data
        status = running.wait(30)
    os.close(keyboard)
    return status, said.decode()


def test_the_first_start_asks_what_to_open_and_an_empty_answer_leaves(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host lab\n  HostName 127.0.0.1\n  Port 9\n")
    status, said = on_a_terminal(tmp_path, b"7\n\n")
    assert status == 0, said
    assert "No host has been opened yet" in said and "1  lab  SSH config" in said
    assert "there is no line 7 in the list" in said
    assert "Traceback" not in said


def test_a_host_that_does_not_answer_is_told_as_everywhere(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host lab\n  HostName 127.0.0.1\n  Port 9\n")  # nobody listens there
    status, said = on_a_terminal(tmp_path, b"1\n")
    assert status == 5, said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [("--headless",), ("--run", "quick_probe"), ("--json",)])
def test_a_demo_of_its_own_beside_a_running_one_is_refused_with_what_to_do(
    ddtree: Ddtree, tmp_path: Path, words: tuple[str, ...]
) -> None:
    state = tmp_path / "home" / ".local/state/ddtree"
    demo = DemoBox("127.0.0.1", 9, "ana", tmp_path / "key", tmp_path / "known", os.getpid())
    write_demo(state / "demo.json", demo)
    done = ddtree("demo", *words)
    assert done.returncode == 4, done.stderr
    assert f"a demo is running already, as process {os.getpid()}" in done.stderr
    assert "ddtree run demo quick_probe" in done.stderr and f"kill {os.getpid()}" in done.stderr


def test_without_options_the_console_opens_on_the_demo_that_runs(ddtree: Ddtree, tmp_path: Path) -> None:
    state = tmp_path / "home" / ".local/state/ddtree"
    demo = DemoBox("127.0.0.1", 9, "ana", tmp_path / "key", tmp_path / "known", os.getpid())
    write_demo(state / "demo.json", demo)
    done = ddtree("demo", "--plain")
    assert f"a demo runs already, as process {os.getpid()}: the console opens on it" in done.stdout
    assert done.returncode != 4  # it was tried: nobody listens at this one's port


def test_a_run_goes_on_from_its_pid_to_its_exit(tmp_path: Path) -> None:
    busy = run_goes_on(tmp_path / "runs")
    assert not busy()
    run = tmp_path / "runs" / "r1"
    run.mkdir(parents=True)
    assert not busy()
    (run / "pid").write_text("1")
    assert busy()
    (run / "exit.json").write_text("{}")
    assert not busy()


class Engine:
    """Stands in for the engine: counts requests, tells them, and answers at once."""

    def __init__(self) -> None:
        self.served = self.ours = self.asked = 0
        self.changed = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")), 0
                )
                await reader.readexactly(length)
                if head.startswith(b"POST"):
                    self.served, self.ours = self.served + 1, self.ours + 1
                self.asked += 1
                self.changed.set()
                body = json.dumps({"requests": {"served": self.served, "running": 0, "queued": 0}}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def until(self, there: Callable[[], bool]) -> None:
        """Wait for it, looking after each request."""
        async with asyncio.timeout(20):
            while not there():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def prompting(engine: Engine, busy: Callable[[], bool]) -> AsyncIterator[None]:
    """The demo's prompts on this engine, with no pauses to speak of."""
    async with await asyncio.start_server(engine.answer, "127.0.0.1", 0) as server:
        sending = asyncio.create_task(send_prompts(server.sockets[0].getsockname()[1], busy, quiet_s=0.05))
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.wait([sending])


async def test_the_demos_prompts_stop_for_others_and_for_a_run_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.demo_prompts.PAUSE_S", 0.0)
    monkeypatch.setattr("console.demo_prompts.REST_S", 0.0)
    engine, state = Engine(), {"busy": False}
    async with prompting(engine, lambda: state["busy"]):
        await engine.until(lambda: engine.ours >= 3)
        engine.served += 1  # somebody else's request
        after = engine.ours
        await engine.until(lambda: engine.ours >= after + 3)  # ours go on after it
        state["busy"] = True  # a playbook
        begun, asked = engine.ours, engine.asked
        await engine.until(lambda: engine.asked >= asked + 6)
        assert engine.ours <= begun + 1  # one may have been on its way
        state["busy"] = False
        after = engine.ours
        await engine.until(lambda: engine.ours >= after + 3)
