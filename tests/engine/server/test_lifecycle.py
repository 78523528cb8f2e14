"""From start to stop: readiness, the service manager's datagrams, a busy port, bad input, and gentle ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_process import Server, eventually

LONG = {"prompt": [9], "max_tokens": 400, "temperature": 0, "ignore_eos": True, "speculation": {"mode": "off"}}


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(0.2)
        self.messages: list[str] = []
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                self.messages.append(self.socket.recv(4096).decode())
            except TimeoutError:
                continue

    def close(self) -> None:
        self._closing.set()
        self._reader.join(5.0)
        self.socket.close()

    def first(self, beginning: str) -> int | None:
        """Index of the first message that begins so."""
        return next((i for i, message in enumerate(list(self.messages)) if message.startswith(beginning)), None)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    manager = Manager(str(tmp_path_factory.mktemp("notify") / "socket"))
    yield manager
    manager.close()


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server], manager: Manager) -> Server:
    environment = {
        "NOTIFY_SOCKET": manager.socket.getsockname(),
        "WATCHDOG_USEC": "200000",
        "INVOCATION_ID": "0123456789abcdef0123456789abcdef",
    }
    return start_server(environment=environment).until_ready()


def test_the_manager_hears_of_each_loading_phase_before_readiness(server: Server, manager: Manager) -> None:
    ready = eventually(lambda: manager.first("READY=1"))
    loading = manager.messages[:ready]
    assert "loading the target's weights" in loading[0]
    assert "warming up" in loading[-1]
    assert all(message.startswith("STATUS=") and "\nEXTEND_TIMEOUT_USEC=" in message for message in loading)
    assert manager.messages[ready] == f"READY=1\nSTATUS=serving tiny-speaking on {server.url.removeprefix('http://')}"


def test_the_idle_engine_feeds_the_watchdog_after_readiness_only(server: Server, manager: Manager) -> None:
    pings = eventually(lambda: [i for i, message in enumerate(manager.messages) if message == "WATCHDOG=1"][2:])
    ready = manager.first("READY=1")
    assert ready is not None
    assert pings[0] > ready


def test_the_decoding_engine_feeds_the_watchdog(server: Server, manager: Manager) -> None:
    def pings() -> int:
        return manager.messages.count("WATCHDOG=1")

    before = pings()
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}, trust_env=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        while pings() < before + 2:
            assert next(lines) != "data: [DONE]", "the answer ended before two pings came"


def test_health_ready_and_invocation_are_told(server: Server) -> None:
    assert server.get("/health").json() == {"status": "serving", "phase": "serving"}
    assert server.get("/ready").json() == {"ready": True, "phase": "serving"}
    assert server.get("/server_info").json()["invocation"] == "0123456789abcdef0123456789abcdef"


def test_a_stop_finishes_what_runs_refuses_what_comes_and_exits_0(server: Server, manager: Manager) -> None:
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", LONG)))
    asking.start()
    eventually(lambda: server.get("/server_info").json()["requests"]["running"] == 1)
    server.process.send_signal(signal.SIGTERM)
    refused = eventually(lambda: [a for a in (server.post("/v1/completions", LONG),) if a.status_code == 503])[0]
    ready = server.get("/ready")
    asking.join(30.0)
    assert server.stop() == 0
    assert refused.json()["error"]["code"] == "shutting_down"
    assert refused.headers["retry-after"]
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] == 400
    assert server.records("request")[-1]["finish"] == "length"
    assert eventually(lambda: manager.first("STOPPING=1")) is not None
    assert server.errors == []


def test_a_stop_ends_a_tree_stream_and_an_idle_engine_at_once(start_server: Callable[..., Server]) -> None:
    server = start_server().until_ready()
    with httpx.stream("GET", f"{server.url}/trees", trust_env=False, timeout=20.0) as feed:
        lines = feed.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        assert [line for line in lines if line] == []
    assert server.stop() == 0
    assert server.errors == []


def test_a_queued_request_is_sent_away_by_a_stop(start_server: Callable[..., Server]) -> None:
    server = start_server().until_ready()
    answers: dict[str, httpx.Response] = {}

    def ask(name: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({name: server.post("/v1/completions", LONG)}))
        thread.start()
        return thread

    threads = [ask("running")]
    eventually(lambda: server.get("/server_info").json()["requests"]["running"] == 1)
    threads.append(ask("queued"))
    eventually(lambda: server.get("/server_info").json()["requests"]["queued"] == 1)
    assert server.stop() == 0
    for thread in threads:
        thread.join(10.0)
    assert answers["running"].json()["usage"]["completion_tokens"] == 400
    assert (answers["queued"].status_code, answers["queued"].json()["error"]["code"]) == (503, "shutting_down")
    assert [record["finish"] for record in server.records("request")] == ["shutdown", "length"]


def test_before_the_model_is_loaded_health_is_up_and_ready_is_not(
    start_server: Callable[..., Server], slow_model: Path
) -> None:
    port = free_port()
    server = start_server(model=slow_model, port=port)
    url = f"http://127.0.0.1:{port}"

    def health() -> Any:
        try:
            return httpx.get(f"{url}/health", trust_env=False, timeout=20.0).json()
        except httpx.TransportError:
            return None

    loading = eventually(lambda: (answer := health()) and answer["status"] == "loading" and answer, 60.0)
    assert loading["phase"]
    ready = httpx.get(f"{url}/ready", trust_env=False, timeout=20.0)
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    refused = httpx.post(f"{url}/v1/completions", json={"prompt": [9]}, trust_env=False, timeout=20.0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
    server.process.send_signal(signal.SIGTERM)
    assert server.stop() == 0
    assert server.records("ready") == []


@pytest.fixture
def slow_model(speaking_model: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer never finishes loading: its file is a pipe that nobody writes to."""
    import os

    folder = tmp_path / "slow"
    folder.mkdir()
    for file in speaking_model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "tokenizer_config.json").unlink()
    os.mkfifo(folder / "tokenizer_config.json")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_busy_port_is_told_with_its_owner_before_anything_is_loaded(start_server: Callable[..., Server]) -> None:
    code = "import socket,time; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        server = start_server(port=port)
        assert server.process.wait(60.0) == 2
        server.stop()
    finally:
        owner.kill()
        owner.wait(10.0)
    (line,) = server.errors
    assert f"port {port} is in use by pid {owner.pid} (" in line
    assert "socket.create_server" in line
    assert server.lines == []


@pytest.mark.parametrize(
    ("tables", "model", "says"),
    [
        ("[kv]\npage_size = 0\n", None, "page_size"),
        ("[kv]\npagesize = 16\n", None, "page_size"),
        ("", Path("nowhere"), "nowhere"),
        ('api_key_file = "missing.key"\n', None, "missing.key"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    start_server: Callable[..., Server], speaking_model: Path, tables: str, model: Path | None, says: str
) -> None:
    server = start_server(tables, model=model or speaking_model)
    assert server.process.wait(60.0) == 2
    server.stop()
    (line,) = server.errors
    assert says in line


def test_a_key_file_that_others_may_read_is_refused(start_server: Callable[..., Server], tmp_path: Path) -> None:
    key = tmp_path / "api.key"
    key.write_text("s3cret")
    key.chmod(0o644)
    server = start_server(f'api_key_file = "{key}"\n')
    assert server.process.wait(60.0) == 2
    server.stop()
    assert "mode 0644" in server.errors[0]
    assert "s3cret" not in server.errors[0]


def test_host_gives_one_sample_without_an_engine() -> None:
    command = [sys.executable, "-m", "engine", "host", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True)
    sample = json.loads(done.stdout)
    assert set(sample) == {"host", "gpus"}
    assert 0.0 <= sample["host"]["cpu_percent"] <= 100.0
    assert sample["host"]["cpu_count"] >= 1
    assert sample["host"]["memory_total_bytes"] > 0
