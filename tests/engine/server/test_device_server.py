"""The whole service with its device rounds forced, eagerly and on the processor, beside one with the host's rounds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA
from engine_process import Server

FORCED = """
import sys
import engine.device.serving
engine.device.serving.decodes_on = lambda device: True
from engine.__main__ import main
sys.exit(main())
"""
PROMPT = [(7 * i + 3) % 64 for i in range(37)]
ASKED: tuple[dict[str, Any], ...] = (
    {"prompt": PROMPT, "max_tokens": 40},
    {"prompt": PROMPT, "max_tokens": 40, "temperature": 0.9, "seed": 7, "top_p": 0.9},
    {"prompt": PROMPT[:20], "max_tokens": 30, "speculation": {"mode": "dflash"}},
    {"prompt": PROMPT[:9], "max_tokens": 30, "temperature": 1.0, "seed": 2, "speculation": {"mode": "off"}},
    {"prompt": PROMPT, "max_tokens": 24, "speculation": {"mode": "ddtree", "tree_budget": 5}},
)


@pytest.fixture(scope="module")
def servers(speaking_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """(on the host's rounds, on device rounds)"""
    started = []
    for program in (("-m", "engine"), ("-c", FORCED)):
        config = tmp_path_factory.mktemp("config") / "engine.toml"
        config.write_text(
            f'[model]\npath = "{speaking_model}"\ndrafter = "{DATA / "drafter"}"\n[kv]\npage_size = 7\n'
            "[server]\nport = 0\nmax_running_requests = 3\n[log]\ninterval_s = 0.01\n"
        )
        started.append(Server(config, {}, program))
    for server in started:
        server.until_ready()
    yield started[0], started[1]
    for server in started:
        server.process.kill()
        server.process.wait(10.0)


def answered(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    response = server.post("/v1/completions", {"model": "tiny-speaking", "ignore_eos": True, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def counters(server: Server) -> dict[str, float]:
    """Counts that no clock touches."""
    lines = [line.rsplit(" ", 1) for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if "seconds" not in name and "_created" not in name}


def test_answers_commit_lengths_and_counters_are_the_host_rounds(servers: tuple[Server, Server]) -> None:
    """Asked one at a time, then all at once: what is asked together may share beginnings in another order."""
    told = []
    for server in servers:
        answers = [answered(server, body) for body in ASKED]
        told.append(
            [
                (a["choices"], a["usage"], a["speculation"]["commit_lengths_hist"], a["speculation"]["steps"])
                for a in answers
            ]
        )
    assert told[1] == told[0]
    assert any(len(hist) > 2 for _, _, hist, _ in told[1]), "drafts are accepted at all"
    host, device = map(counters, servers)
    assert device == host
    with ThreadPoolExecutor(len(ASKED)) as pool:
        together = list(pool.map(lambda body: answered(servers[1], body), ASKED))
    assert [answer["choices"] for answer in together] == [choices for choices, *_ in told[0]]


def test_what_the_device_does_not_cover_is_answered_alike_and_named_once_in_the_log(
    servers: tuple[Server, Server],
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "logprobs": 2}
    host, device = (answered(server, body)["choices"][0] for server in servers)
    assert device["text"] == host["text"]
    assert device["logprobs"]["tokens"] == host["logprobs"]["tokens"]
    answered(servers[1], body)
    lines = [line for line in servers[1].lines if ">warn " in line]
    assert [line.partition(" what=")[2] for line in lines] == ['host_rounds why="requests with logprobs"']
    assert lines[0].startswith("<4>warn seq=")
    assert not [line for line in servers[0].lines if ">warn " in line]


def test_a_stop_exits_0_and_no_step_claims_a_graph(servers: tuple[Server, Server]) -> None:
    kv = servers[1].get("/server_info").json()["kv"]
    assert kv["pages_used"] == 0 and kv["pages_kept"] > 0
    decoded = servers[1].records("decode")
    assert decoded and {record["graph"] for record in decoded} == {"0"}
    assert all(float(record["verify_ms"]) > 0 and float(record["draft_ms"]) >= 0 for record in decoded)
    assert servers[1].stop() == 0
    assert not servers[1].errors
