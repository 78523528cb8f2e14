"""Load for as long as asked, from clients of which many vanish: what an engine must bear for days, in half an hour.

A real engine process over the tiny model of the tests, in float32: small pages, a pool that several requests fill, prefix cache and
lookup on. Clients ask with every mode, with lookup and without, greedily and sampled, with penalties, biases, stop strings,
log-probabilities, streamed and whole; some leave in their own body, some before an answer, some in the middle of one, some read slowly,
some ask for what must be refused. The same question must always have the same answer, whatever ran beside it: every token
that comes is held against what was told before. At the end no page may be held, no log line missing, nothing have failed, and a
stop with requests under way must exit 0. Exit status 1 where something is not so.

Not part of `make bench`: it takes its time. It runs on one processor beside other work; nothing in it is a speed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.playbooks.speaking_engine import DATA, speaking_model

CONTEXT = 384
VOCABULARY = 64
SETTINGS = """[model]
path = "{model}"
drafter = "{drafter}"
dtype = "float32"
[context]
context_length = {context}
[kv]
page_size = {page_size}
pages = {pages}
[speculation]
mode = "ddtree"
tree_budget = 12
lookup = "auto"
[server]
port = 0
max_running_requests = 6
"""
WAYS = ("stays",) * 12 + ("in its body", "before an answer", "in the answer", "in the answer", "in the answer", "slow")
GONE = (ConnectionError, http.client.HTTPException, TimeoutError)


@dataclass
class Seen:
    """What all clients have met so far."""

    ends: Counter[str] = field(default_factory=Counter)
    answers: dict[str, list[int]] = field(default_factory=dict)
    compared: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self, how: str) -> None:
        with self.lock:
            self.ends[how] += 1

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    def compare(self, question: str, tokens: list[int]) -> None:
        """What came must agree with what the same question brought before, as far as both go."""
        with self.lock:
            known = self.answers.setdefault(question, tokens)
            both = min(len(known), len(tokens))
            self.compared += both if known is not tokens else 0
            if known[:both] != tokens[:both]:
                self.faults.append(f"{question} brought {known[:both]} and now {tokens[:both]}")
            elif len(tokens) > len(known):
                self.answers[question] = tokens


def main(argv: Sequence[str]) -> int:
    """Soak and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long clients ask (default: 30)")
    parser.add_argument("--clients", type=int, default=12, help="clients at a time (default: 12)")
    parser.add_argument("--page-size", type=int, default=7, help="tokens a page (default: 7)")
    parser.add_argument("--pages", type=int, default=240, help="pages of the pool (default: 240)")
    parser.add_argument("--seed", type=int, default=1, help="of the clients' choices (default: 1)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        return soak(Path(name), options)


def soak(folder: Path, options: argparse.Namespace) -> int:
    """One engine, its load, its end; prints as it goes and gives the exit status."""
    model = speaking_model(folder / "model")
    settings = folder / "engine.toml"
    settings.write_text(
        SETTINGS.format(
            model=model, drafter=DATA / "drafter", context=CONTEXT, page_size=options.page_size, pages=options.pages
        )
    )
    seen, log = Seen(), folder / "log"
    command = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "engine", "serve", "--config", str(settings)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            port = wait_until_ready(process, log)
            load(process.pid, port, seen, options)
            judge_rest(port, seen)
            judge_stop(process, port, seen)
        finally:
            if process.poll() is None:
                process.kill()
    judge_log(log, seen)
    print(f"compared {seen.compared:,} tokens of {len(seen.answers)} questions with an earlier answer of the same")
    print("clients: " + ", ".join(f"{how} {count:,}" for how, count in sorted(seen.ends.items())))
    for fault in seen.faults[:20]:
        print(f"FAULT {fault}")
    print(f"{len(seen.faults)} faults")
    return 1 if seen.faults else 0


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> int:
    """The engine's port, once it serves."""
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("<6>ready "):
                return int(line.partition(" address=")[2].split(" ")[0].rpartition(":")[2])
        time.sleep(0.1)
    raise SystemExit(f"the engine ended: {log.read_text()}")


def load(pid: int, port: int, seen: Seen, options: argparse.Namespace) -> None:
    """Clients for as long as asked; every half minute a line tells how the engine stands."""
    began = time.monotonic()
    until = began + options.minutes * 60
    threads = [
        threading.Thread(target=client, args=(port, random.Random(f"{options.seed}.{number}"), until, seen))
        for number in range(options.clients)
    ]
    for thread in threads:
        thread.start()
    told = -1
    print("minute   served  refused  MB in memory  pages held  kept", flush=True)
    while any(thread.is_alive() for thread in threads):
        half_minute = int((time.monotonic() - began) / 30)
        if half_minute > told:
            told = half_minute
            now = info(port)
            kv, requests = now["kv"], now["requests"]
            print(
                f"{half_minute / 2:6.1f} {requests['served']:8,} {requests['refused']:8,} {resident_mb(pid):13.1f}"
                f" {kv['pages_used']:11} {kv['pages_kept']:5}",
                flush=True,
            )
        threads[0].join(0.5)
        threads = [thread for thread in threads if thread.is_alive()] or threads[:1]


def client(port: int, dice: random.Random, until: float, seen: Seen) -> None:
    """One after the other, until time is up. What it cannot explain is a fault."""
    while time.monotonic() < until:
        try:
            ask(port, dice, dice.choice(WAYS), seen)
        except Exception as error:  # noqa: BLE001 - reported: the soak fails by it
            seen.fault(f"a client met {type(error).__name__}: {error}")


def ask(port: int, dice: random.Random, way: str, seen: Seen) -> None:
    """One request of one client, which stays, or leaves on its `way`."""
    path, body, question = wish(dice)
    raw = json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(len(raw)))
        connection.endheaders()
        if way == "in its body":
            connection.send(raw[: dice.randrange(len(raw))])
            return
        connection.send(raw)
        if way == "before an answer":
            time.sleep(dice.random() * 0.05)
            return
        answer = connection.getresponse()
        if answer.status != 200:
            check_refusal(answer, question, seen)
            way = f"refused with {answer.status}"
        elif body["stream"]:
            patience = dice.randrange(1, 30) if way == "in the answer" else 0
            told = read_stream(answer, patience, 0.01 if way == "slow" else 0.0, seen)
            if question is not None:
                seen.compare(question, told)
        else:
            read_whole(json.loads(answer.read()), question, seen)
            way = "stays"
    finally:
        seen.end(way)
        leave(connection, dice, abruptly=way not in ("stays", "slow") and not way.startswith("refused"))


def leave(connection: http.client.HTTPConnection, dice: random.Random, *, abruptly: bool) -> None:
    """Close, now and then with a reset instead of a farewell."""
    if abruptly and connection.sock is not None and dice.random() < 0.5:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def wish(dice: random.Random) -> tuple[str, dict[str, Any], str | None]:
    """(path, body, what the answer's tokens depend on, or None where it must be refused)."""
    number = dice.randrange(40)
    fixed = random.Random(number)  # the same forty prompts for all, some of them the beginning of others
    stem = [fixed.randrange(2, VOCABULARY) for _ in range(7)]
    length = fixed.choice((1, 5, 20, 63, 150))
    prompt = ((stem * 40)[:length] if number % 2 else [(number // 8 + i * i) % 60 + 2 for i in range(length)]) or [2]
    sampling = dice.choice(
        (
            {"temperature": 0},
            {"temperature": 0},
            {"temperature": 0, "repetition_penalty": 1.3},
            {"temperature": 0.8, "seed": number},
            {"temperature": 1.2, "seed": 7, "top_p": 0.9, "top_k": 20},
            {"temperature": 0.7, "seed": 8, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.2},
            {"temperature": 0, "logit_bias": {"5": 3.0, "9": -4.0}},
        )
    )
    mode = dice.choice(("off", "dflash", "ddtree", "ddtree"))
    speculation: dict[str, Any] = {"mode": mode}
    if mode != "off":
        speculation["lookup"] = dice.choice(("off", "auto", "on"))
    if mode == "ddtree":
        speculation["tree_budget"] = dice.choice((1, 3, 8, 16, 40))
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": dice.choice((1, 2, 16, 60, 120)),
        "stream": dice.random() < 0.6,
        "return_token_ids": True,
        "speculation": speculation,
        **sampling,
    }
    if dice.random() < 0.2:
        body["logprobs"] = dice.randrange(4)
    if dice.random() < 0.2:
        body["stop"] = ["".join(dice.choice("abcdefghijklmnopqrst") for _ in range(dice.choice((1, 2))))]
    if dice.random() < 0.1:
        body["min_tokens"] = 1
    if dice.random() < 0.04:
        body |= dice.choice(({"max_tokens": CONTEXT + 1}, {"prompt": [VOCABULARY]}, {"beams": 4}, {"temperature": -1}))
        return "/v1/completions", body, None
    question = json.dumps([prompt, sampling])
    if dice.random() < 0.2:
        del body["prompt"]
        text = f"tell of {number}"
        body["messages"] = [{"role": "user", "content": text}]
        if "logprobs" in body:
            body["logprobs"] = True
        return "/v1/chat/completions", body, json.dumps([text, sampling])
    return "/v1/completions", body, question


def check_refusal(answer: http.client.HTTPResponse, question: str | None, seen: Seen) -> None:
    """What must be refused is, by name; what need not be only where the queue is full."""
    error, retry = json.loads(answer.read())["error"], answer.getheader("Retry-After")
    if not (answer.status == 400 and question is None and error["message"]) and not (answer.status == 429 and retry):
        seen.fault(f"status {answer.status} for {question}: {error}")


def read_stream(answer: http.client.HTTPResponse, patience: int, pause_s: float, seen: Seen) -> list[int]:
    """Token ids of a stream, of so many events where `patience` is not 0; its end must be whole."""
    tokens: list[int] = []
    for number, event in enumerate(events(answer)):
        if event is None:
            return tokens
        if "error" in event:
            seen.fault(f"a stream ended with {event['error']}")
            return tokens
        for choice in event["choices"]:
            tokens += choice.get("token_ids", [])
        if "speculation" in event:
            check_figures(event["speculation"], len(tokens), seen)
        if number + 1 == patience:
            return tokens
        time.sleep(pause_s)
    seen.fault(f"a stream broke off after {len(tokens)} tokens")
    return tokens


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any] | None]:
    """Each event of a stream, and None for its proper end."""
    while line := answer.readline():
        data = line.removeprefix(b"data: ").strip()
        if data:
            yield None if data == b"[DONE]" else json.loads(data)


def read_whole(answer: dict[str, Any], question: str | None, seen: Seen) -> None:
    tokens = answer["choices"][0]["token_ids"]
    if answer["usage"]["completion_tokens"] != len(tokens):
        seen.fault(f"usage tells of {answer['usage']['completion_tokens']} tokens, and there are {len(tokens)}")
    check_figures(answer["speculation"], len(tokens), seen)
    if question is not None:
        seen.compare(question, tokens)


def check_figures(told: dict[str, Any], tokens: int, seen: Seen) -> None:
    """The histogram's tokens and the prefill's one are the answer's."""
    counted = 1 + sum((kept + 1) * steps for kept, steps in enumerate(told["commit_lengths_hist"]))
    if counted != tokens:
        seen.fault(f"the histogram {told['commit_lengths_hist']} makes {counted} tokens, and there are {tokens}")


def judge_rest(port: int, seen: Seen) -> None:
    """With nobody asking, nothing may run and no page be held."""
    deadline = time.monotonic() + 10
    while (now := info(port))["requests"]["running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    kv, requests = now["kv"], now["requests"]
    print(f"at rest: running {requests['running']}, queued {requests['queued']}, pages held {kv['pages_used']}")
    if requests["running"] or requests["queued"] or kv["pages_used"]:
        seen.fault("something is left at rest")


def judge_stop(process: subprocess.Popen[bytes], port: int, seen: Seen) -> None:
    """A stop while requests run: they come to their end or are sent away with 503, and the exit status is 0."""
    statuses: Counter[int] = Counter()

    def last() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"prompt": [9], "max_tokens": 150, "temperature": 0, "ignore_eos": True, "speculation": {"mode": "off"}}
        connection.request("POST", "/v1/completions", json.dumps(body))
        statuses[connection.getresponse().status] += 1
        connection.close()

    threads = [threading.Thread(target=last) for _ in range(9)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while info(port)["requests"]["running"] < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    status = process.wait(60)
    print(f"stop with requests under way: answers {dict(statuses)}, exit status {status}")
    if status or statuses.keys() - {200, 503} or statuses[200] < 6:
        seen.fault("the stop was not gentle")


def judge_log(log: Path, seen: Seen) -> None:
    """No failure, no line lost, every line a record."""
    lines = log.read_text().splitlines()
    kinds = Counter(line[3:].split(" ")[0] if line.startswith("<") else "stray" for line in lines)
    ends = Counter(line.partition(" finish=")[2].split(" ")[0] for line in lines if line[3:].startswith("request "))
    numbers = [int(line.partition(" seq=")[2].split(" ")[0]) for line in lines if " seq=" in line]
    print("log: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())))
    print("ends: " + ", ".join(f"{end} {count:,}" for end, count in sorted(ends.items())))
    if kinds["error"] or kinds["stray"] or ends["error"]:
        seen.fault(
            f"the log tells of {kinds['error']} errors, {ends['error']} failed requests, {kinds['stray']} strays"
        )
    if numbers != list(range(numbers[0], numbers[0] + len(lines))):
        seen.fault("log lines are missing or out of order")


def info(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/server_info")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def resident_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
