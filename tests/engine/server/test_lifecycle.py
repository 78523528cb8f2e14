"""From start to stop: readiness, the service manager's datagrams, a busy port, bad input, and gentle ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_process import Server, eventually

from engine.errors import EngineError
from engine.server.auth import read_api_key
from engine.server.listen import listen
from engine.server.main import serve

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


def test_a_stop_finishes_what_runs_sends_the_rest_away_and_exits_0(server: Server, manager: Manager) -> None:
    answers: dict[str, httpx.Response] = {}

    def ask(name: str, load: tuple[int, int], **wishes: bool) -> threading.Thread:
        body = {**LONG, **wishes}
        thread = threading.Thread(target=lambda: answers.update({name: server.post("/v1/completions", body)}))
        thread.start()
        eventually(lambda: tuple(server.get("/server_info").json()["requests"].values())[:2] == load)
        return thread

    with httpx.stream("GET", f"{server.url}/trees", trust_env=False, timeout=20.0) as feed:
        threads = [ask("running", (1, 0)), ask("queued", (1, 1)), ask("queued stream", (1, 2), stream=True)]
        server.process.send_signal(signal.SIGTERM)
        refused = eventually(lambda: [a for a in (server.post("/v1/completions", LONG),) if a.status_code == 503])[0]
        ready = server.get("/ready")
        assert any(line.startswith("data: ") for line in feed.iter_lines()), "trees came, and the stream ended"
    for thread in threads:
        thread.join(30.0)
    assert server.stop() == 0
    assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == ("shutting_down", "10")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert answers["running"].json()["usage"]["completion_tokens"] == 400
    assert (answers["queued"].status_code, answers["queued"].json()["error"]["code"]) == (503, "shutting_down")
    *events, done = [line for line in answers["queued stream"].text.splitlines() if line]
    assert done == "data: [DONE]"
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert [record["finish"] for record in server.records("request")][-3:] == ["shutdown", "shutdown", "length"]
    assert eventually(lambda: manager.first("STOPPING=1")) is not None
    assert server.errors == []


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
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30.0) == 0
    assert server.records("ready") == []


@pytest.fixture
def slow_model(speaking_model: Path, tmp_path: Path) -> Path:
    """A model whose tokenizer never finishes loading: its file is a pipe that nobody writes to."""
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


def test_a_model_that_is_not_there_is_one_line_and_exit_2(start_server: Callable[..., Server]) -> None:
    server = start_server(model=Path("nowhere"), drafter=None)
    assert server.process.wait(60.0) == 2
    server.stop()
    (line,) = server.errors
    assert "nowhere" in line
    assert [line for line in server.lines if line.startswith("<3>error ")] == server.lines


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("[kv]\npage_size = 0\n", "page_size"),
        ('[server]\napi_key_file = "missing.key"\n', "missing.key: cannot be read"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(
    speaking_model: Path, tmp_path: Path, tables: str, says: str
) -> None:
    config = tmp_path / "engine.toml"
    config.write_text(f'[model]\npath = "{speaking_model}"\n{tables}')
    with pytest.raises(EngineError, match=says):
        serve(config)


@pytest.mark.parametrize(("content", "mode", "says"), [("s3cret", 0o644, "mode 0644"), ("\n", 0o600, "empty")])
def test_a_key_file_must_hold_a_key_and_be_its_owners_alone(tmp_path: Path, content: str, mode: int, says: str) -> None:
    key = tmp_path / "api.key"
    key.write_text(content)
    key.chmod(mode)
    with pytest.raises(EngineError, match=says) as refused:
        read_api_key(str(key))
    assert "s3cret" not in str(refused.value)


def test_a_socket_file_serves_its_owner_without_a_key(start_server: Callable[..., Server], tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # what a service that was killed leaves behind
    server = start_server(f'host = "unix:{path}"\n').until_ready()
    assert server.records("ready")[0]["address"] == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://engine", timeout=20.0) as client:
        body = {"prompt": [9], "max_tokens": 3, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3
    with pytest.raises(EngineError, match="a service listens there already; stop it, or name another file"):
        listen(f"unix:{path}", 0)
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("unix:engine.sock", "named by its whole path; begin it with /"),
        ("unix:/nowhere/at/all.sock", r"cannot listen there \(No such file or directory\)"),
        ("unix:/" + "a" * 200, r"cannot listen there \(AF_UNIX path too long\)"),
        ("unix:/etc", r"cannot listen there \(Address already in use\)"),
    ],
)
def test_a_socket_file_that_cannot_be_is_refused_in_one_line(host: str, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        listen(host, 0)


def test_host_gives_one_sample_without_an_engine() -> None:
    command = [sys.executable, "-m", "engine", "host", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True)
    sample = json.loads(done.stdout)
    assert set(sample) == {"host", "gpus"}
    assert 0.0 <= sample["host"]["cpu_percent"] <= 100.0
    assert sample["host"]["cpu_count"] >= 1
    assert sample["host"]["memory_total_bytes"] > 0
