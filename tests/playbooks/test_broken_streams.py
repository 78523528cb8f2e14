"""Streams as engines in trouble send them: reasoning only, gathered by a parser, stuck half-way, healthy but dead."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kit_end import Stop
from kit_engine import Engine, _completion
from kit_run import figures

Chunk = dict[str, Any]


def completed(chunks: list[tuple[float, Chunk]]) -> dict[str, Any]:
    """Figures of a stream whose chunks came at those seconds."""
    lines = [(int(at * 1e9), json.dumps(chunk).encode()) for at, chunk in chunks]
    return figures(_completion([*lines, (int(chunks[-1][0] * 1e9), b"[DONE]")], 0), 100, "chat")


def usage(completion: int, prompt: int = 100, **more: Any) -> Chunk:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


def test_a_stream_of_reasoning_alone_has_a_first_token_and_a_rate() -> None:
    thoughts = [(0.5 + i * 0.01, {"choices": [{"delta": {"reasoning": "so", "content": None}}]}) for i in range(300)]
    found = completed([*thoughts, (3.6, {"choices": [{"delta": {}, "finish_reason": "length"}]}), (3.6, usage(1024))])
    assert found["ttft_s"] == pytest.approx(0.5)
    assert (found["chunks"], found["N_usage"], found["finish"]) == (300, 1024, "length")
    assert found["tok_s"] == pytest.approx(1023 / 2.99, rel=0.01)
    assert found["steps"] is None and found["step_ms"] is None  # and no division by nought


def test_one_chunk_at_the_end_gives_no_client_time_and_no_invented_step() -> None:
    found = completed([(6.4, {"choices": [{"delta": {"content": "all of it"}}]}), (6.4, usage(800))])
    assert found["chunks"] == 1 and found["client_decode_s"] is None
    assert found["tok_s"] is None and found["step_ms"] is None
    counted = completed(
        [
            (6.4, {"choices": [{"text": "all"}], "speculation": {"steps": 300, "decode_s": 6.1, "prefill_s": 0.2}}),
            (6.4, usage(800)),
        ]
    )
    assert (counted["steps"], counted["commit"]) == (300, pytest.approx(799 / 300))
    assert counted["tok_s"] == pytest.approx(799 / 6.1)


def test_reasoning_that_is_counted_and_not_streamed_gives_a_time_to_visible_and_no_inflated_rate() -> None:
    shown = [(5.2 + i / 100, {"choices": [{"delta": {"content": "word"}}]}) for i in range(180)]
    found = completed([*shown, (7.0, usage(4900, completion_tokens_details={"reasoning_tokens": 4720}))])
    assert (found["hidden"], found["ttft_s"], found["visible_s"]) == (4720, None, pytest.approx(5.2))
    assert found["tok_s"] is None and found["client_decode_s"] is None  # 4,899 tokens in 1.8 s would be 2,700 a second
    streamed = [(0.3, {"choices": [{"delta": {"reasoning": "hm"}}]}), *shown]
    open_ = completed([*streamed, (7.0, usage(4900, completion_tokens_details={"reasoning_tokens": 4720}))])
    assert (open_["hidden"], open_["ttft_s"]) == (0, pytest.approx(0.3)) and open_["tok_s"] == pytest.approx(
        4899 / 6.69
    )


def test_an_empty_answer_divides_by_nothing() -> None:
    found = completed([(0.2, {"choices": [{"delta": {}, "finish_reason": "stop"}]}), (0.2, usage(0))])
    assert (found["N"], found["ttft_s"], found["tok_s"], found["commit"]) == (0, None, None, None)


class Handler(http.server.BaseHTTPRequestHandler):
    answer: Callable[[Any], None]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).answer(self)


@contextmanager
def answering(answer: Callable[[Any], None]) -> Iterator[Engine]:
    kind = type("Answering", (Handler,), {"answer": staticmethod(answer)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield Engine(f"http://127.0.0.1:{server.server_port}", limit_s=0.4, stall_s=0.2)
    finally:
        server.shutdown()
        server.server_close()


def begin(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b'data: {"choices": [{"text": "a", "token_ids": [7]}]}\n\n')
    handler.wfile.flush()


def test_an_engine_that_sticks_half_way_is_stalled_and_no_run_waits_for_ever() -> None:
    over = threading.Event()

    def answer(handler: Any) -> None:
        begin(handler)
        over.wait(20)

    with answering(answer) as engine, pytest.raises(Stop, match="the engine is stuck") as stopped:
        engine.complete([1], 8)
    over.set()
    assert (stopped.value.status, stopped.value.code) == ("engine", "engine_stalled")


def test_an_engine_that_is_healthy_and_generates_nothing_is_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr("kit_engine.READY_LIMIT_S", 0.3)
    with answering(lambda _: over.wait(20)) as engine, pytest.raises(Stop) as stopped:
        engine.prove_ready()
    over.set()
    assert stopped.value.code == "engine_stalled"
    assert engine.limit_s == 0.4


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    with answering(begin) as engine, pytest.raises(Stop, match="broke off") as stopped:
        engine.complete([1], 8)
    assert stopped.value.code == "engine_lost"


def test_memory_that_runs_out_in_the_middle_of_the_traffic_is_told_with_the_engines_own_words() -> None:
    def answer(handler: Any) -> None:
        body = json.dumps({"error": {"message": "CUDA out of memory. Tried to allocate 32.00 MiB"}}).encode()
        handler.send_response(500)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with answering(answer) as engine, pytest.raises(Stop, match="HTTP 500: CUDA out of memory") as stopped:
        engine.complete([1], 8)
    assert stopped.value.status == "engine"
