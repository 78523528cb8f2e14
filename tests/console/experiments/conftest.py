"""A box on loopback with a real engine on it: an SSH server in the test's own loop, and the tiny model served for real."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import httpx
import pytest
from loopback import LoopbackBox, OneKey, TinyEngine
from planted_causes import planted_engine

from console.box.connection import Connection, connect
from console.box.target import Target
from console.box.timing import Timing
from console.experiments.conduct import Bench
from console.experiments.remote import EngineUnderTest
from console.experiments.store import Store

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests" / "data" / "tiny-ddtree"
MAX_CONTEXT = 2048


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    """The tiny model with its drafter under `python -m engine serve`; it has no tokenizer."""
    folder = tmp_path_factory.mktemp("engine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "engine.toml").write_text(
        f'[model]\npath = "{TINY}/target"\ndrafter = "{TINY}/drafter"\ndtype = "float32"\n[server]\nport = {port}\n'
    )
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "serve", "--config", str(folder / "engine.toml")],
        cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield TinyEngine(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        log.close()


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[tuple[LoopbackBox, Target]]:
    """The server, and the Target that leads to it. Everything that was started on it and still runs is ended at the end."""
    home = tmp_path / "home"
    home.mkdir()
    key, host_key = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    server = LoopbackBox(home, key)
    acceptor = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=lambda: OneKey(server), server_host_keys=[host_key],
        process_factory=server.handle, sftp_factory=lambda chan: asyncssh.SFTPServer(chan), encoding=None,
    )  # fmt: skip
    port = acceptor.get_port()
    known_hosts, key_file = tmp_path / "known_hosts", tmp_path / "key"
    known_hosts.write_text(f"[127.0.0.1]:{port} {host_key.export_public_key().decode()}")
    key.write_private_key(key_file)
    key_file.chmod(0o600)
    target = Target(
        name="loop", ssh_name="127.0.0.1", address="127.0.0.1", port=port, user="ops", own_known_hosts=known_hosts,
        identity_files=(key_file,), only_these_keys=True,
    )  # fmt: skip
    yield server, target
    acceptor.close()
    server.drop()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            ours = str(home).encode() in environ.read_bytes()
        except OSError:
            continue
        if ours:
            os.kill(int(environ.parent.name), signal.SIGKILL)


@pytest.fixture
async def connection(box: tuple[LoopbackBox, Target]) -> AsyncIterator[Connection]:
    """A connection that comes back at once after a drop."""
    async with await connect(box[1], timing=Timing(first_retry_s=0.05, last_retry_s=0.2)) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "state") as found:
        yield found


@pytest.fixture
def bench(connection: Connection, store: Store, engine: TinyEngine) -> Bench:
    """Everything that a run needs, on the tiny engine."""
    under_test = EngineUnderTest(port=engine.port, unit="ddtree-engine.service", max_context=MAX_CONTEXT)
    return Bench(connection, "loop", under_test, store, python=sys.executable)


@pytest.fixture(scope="session")
def drawn_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The real server on the tiny model with a tokenizer; its answers are drawn, since greedy ones of so small a model loop."""
    folder = tmp_path_factory.mktemp("drawn")
    plant = folder / "plant.json"
    plant.write_text('{"unpaced": true}')
    with planted_engine(folder, plant) as found:
        yield found


@pytest.fixture
def drawn(bench: Bench, drawn_port: int) -> Bench:
    """Everything that a run needs, on an engine whose answers do not loop."""
    return dataclasses.replace(bench, engine=dataclasses.replace(bench.engine, port=drawn_port))
