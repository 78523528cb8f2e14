"""Causes planted in a real engine on the embedded box, and what the night key calls each of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import httpx

from console.analysis.explain import explain
from console.box.connection import connect
from console.box.target import Target
from console.experiments import client_side
from console.experiments.conduct import Bench, run
from console.experiments.playbook import built_in_folder, read_playbook
from console.experiments.remote import EngineUnderTest
from console.experiments.result import judge
from console.experiments.store import Store

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "playbooks")]

from loopback import LoopbackBox, OneKey  # noqa: E402 both lie beside tests, not in a package
from speaking_engine import DATA, speaking_model  # noqa: E402

# A token is a letter here: below some 100 of them a prompt holds its salt and its question, and nothing of its kind.
SIZES = {"tokens": 40, "short": 160, "long": 1024, "wait": 5, "budget_seconds": 100}
BURST = {"tokens": 240, "prompt": 64, "first": 8, "last": 100, "reps": 2, "budget_seconds": 20}
MAX_CONTEXT = 2048
GOLDEN_TRIES = 3
JUDGED = ("done", "failed_check", "inconclusive")  # ends of a run whose samples the analysis looks at


@dataclass(frozen=True)
class Cause:
    """Something wrong, and the classes that name it rightly."""

    name: str
    expected: tuple[str, ...]
    plant: Mapping[str, Any] = field(default_factory=dict)
    beside: str = ""  # what happens beside the engine


CAUSES = (
    Cause("nothing at all", ("healthy",)),
    Cause("context slope doubled", ("step_regression",), {"slope_factor": 2.5}),
    Cause("acceptance dropped on one kind", ("acceptance_regression",), {"drop_kind": "code"}),
    Cause("graph fallback above a context", ("step_regression",), {"jump_from": 600}),
    Cause("queueing by a second client", ("contention",), beside="second client"),
    Cause("network delay at the client", ("network",), beside="slow client"),
    Cause("throttled clock", ("throttled",), {"clock_mhz": 1320}),
    Cause("wrong tokens", ("broken",), {"reseed": 1}),
    Cause("repetition loop", ("void:degenerate_output",), {"loop": True}),
    Cause("warm prefix cache", ("void:warm_cache",), {"cached_share": 0.98}),
    Cause("speculation off mid-run", ("void:speculation_off",), {"off_after": 16}),
    Cause("burst against full", ("not_comparable",), beside="burst"),
    Cause("parser gathers chunks", ("buffered_stream",), {"gather": 6}),
)


@contextmanager
def planted_engine(folder: Path, plant: Path) -> Iterator[int]:
    """The port of the real server with the plant in it, once it serves."""
    model = speaking_model(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    config = folder / "engine.toml"
    config.write_text(
        f'[model]\npath = "{model}"\ndrafter = "{DATA}/drafter"\ndtype = "float32"\n[server]\nport = {port}\n'
    )
    script = Path(__file__).with_name("planted_engine.py")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, script, plant, "serve", "--config", config],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while not _ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@asynccontextmanager
async def loopback_bench(folder: Path, port: int) -> AsyncIterator[Bench]:
    """A bench over real SSH on this machine's loopback."""
    home = folder / "home"
    home.mkdir()
    key, host_key = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    box = LoopbackBox(home, key)
    acceptor = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=lambda: OneKey(box), server_host_keys=[host_key], process_factory=box.handle,
        sftp_factory=lambda chan: asyncssh.SFTPServer(chan), encoding=None,
    )  # fmt: skip
    ssh_port = acceptor.get_port()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{ssh_port} {host_key.export_public_key().decode()}")
    key.write_private_key(folder / "key")
    (folder / "key").chmod(0o600)
    target = Target(
        name="loop", ssh_name="127.0.0.1", address="127.0.0.1", port=ssh_port, user="ops",
        own_known_hosts=folder / "known_hosts", identity_files=(folder / "key",), only_these_keys=True,
    )  # fmt: skip
    under_test = EngineUnderTest(port=port, unit="ddtree-engine.service", max_context=MAX_CONTEXT)
    try:
        async with await connect(target) as connection:
            with Store(folder / "state") as store:
                yield Bench(connection, "loop", under_test, store, python=sys.executable)
    finally:
        acceptor.close()
        box.drop()


async def result_of(
    bench: Bench, playbook: str, params: Mapping[str, Any], seed: int, beside: str = "", port: int = 0
) -> dict[str, Any]:
    """The result event of one run, with what happens beside it."""
    script = read_playbook(built_in_folder() / f"{playbook}.py")
    task: asyncio.Task[None] | None = None
    last: dict[str, Any] = {}
    async for event in run(bench, script, params, seed=seed):
        last = event
        if beside == "second client" and task is None and event["type"] == "table":
            task = asyncio.create_task(_other_client(port))
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
    return last


async def _other_client(port: int) -> None:
    """Somebody else's requests, one after another."""
    body = {"prompt": [5, 9, 12, 7], "max_tokens": 16, "temperature": 0.0, "ignore_eos": True}
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
        while True:
            await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)


@contextmanager
def slow_client() -> Iterator[None]:
    """A client that takes its time over every chunk, as a busy laptop does."""
    real = client_side._stamps

    async def slowly(client: httpx.AsyncClient, url: str) -> list[float]:
        stamps, sent = [], time.perf_counter()
        async with client.stream("GET", url) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    await asyncio.sleep(0.045)
                    stamps.append(round(time.perf_counter() - sent, 6))
        return stamps

    client_side._stamps = slowly
    try:
        yield
    finally:
        client_side._stamps = real


async def golden(bench: Bench, seed: int) -> dict[str, Any]:
    """Measure the sound engine, pin the run, and give its result. As an operator would, it pins no run that was disturbed:
    it tries again, three times at most."""
    while (last := bench.store.golden("diagnose", bench.host)) is not None:
        bench.store.unpin(last.record.id)
    for _ in range(GOLDEN_TRIES):
        result = await result_of(bench, "diagnose", {**SIZES, "reps": 4}, seed)
        if not any(one["code"] == "unsteady" for one in result["verdict"]["warnings"]):
            break
    bench.store.pin(result["run_id"], "2026-11-30T20:00:00Z")
    return result


async def trial(bench: Bench, cause: Cause, plant: Path, seed: int, port: int, pace: float) -> dict[str, Any]:
    """`{"run_id", "status", "class", "headline"}`: what the night key calls the engine with the cause planted in it.

    `pace`: steps last so many times as long, which keeps work beside the engine out of them on a busy machine."""
    plant.write_text(json.dumps({**cause.plant, "pace": pace}))
    try:
        if cause.beside == "burst":
            result = await result_of(bench, "burst_vs_full", BURST, seed)
        elif cause.beside == "slow client":
            with slow_client():
                result = await result_of(bench, "diagnose", SIZES, seed)
        else:
            result = await result_of(bench, "diagnose", SIZES, seed, cause.beside, port)
    finally:
        plant.write_text(json.dumps({"pace": pace}))
    events = bench.store.show(result["run_id"]).events
    verdict = result["verdict"] or {"class": result["status"], "headline": result["message"]}
    found = named(cause, events) if result["status"] in JUDGED else verdict
    return {
        "run_id": result["run_id"],
        "status": result["status"],
        "class": found["class"],
        "headline": found["headline"],
    }


def named(cause: Cause, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The verdict on a run's events alone, so that kept ones can be judged again."""
    verdict = _burst_against_full(events) if cause.beside == "burst" else judge("diagnose", events)
    assert verdict is not None, "a run that came to its end has samples"
    return verdict


def _burst_against_full(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `explain` says to one side measured by a burst and the other by whole answers, from a run's own figures."""
    one = next(event["req"] for event in events if event["type"] == "sample")
    rows = [
        {"label": "burst", "context": one["burst"]["context"], "tok_s": one["burst"]["tok_s"], "step_ms": one["burst"]["step_ms"],
         "commit_length": one["burst"]["commit"], "method": "burst", "bonus_included": True},
        {"label": "full", "prompt_tokens": one["P"], "output_tokens": one["N"], "tok_s": one["tok_s"], "steps": one["steps"],
         "method": "full", "bonus_included": True},
    ]  # fmt: skip
    verdict: dict[str, Any] = explain({"observations": rows, "compare": ["burst", "full"]})["verdict"]
    return verdict
