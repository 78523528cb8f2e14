"""A real engine whose tiny model has a tokenizer and a chat template, and where the playbooks lie."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "playbooks"
DATA = ROOT / "tests" / "data" / "tiny-ddtree"

PIECES = ["<|start|>", "<|end|>", "?", *"abcdefghijklmnopqrstuvwxyz", *"0123456789", *" .,:;/()[]{}\"'_-=*+#<>\n"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def speaking_model(folder: Path) -> Path:
    """The tiny target with a tokenizer of single letters and a chat template beside its weights."""
    shutil.copytree(DATA / "target", folder)
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    assert len(vocabulary) <= 64
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The engine's base URL, once it is ready; the engine ends with the context."""
    model = speaking_model(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "engine.toml").write_text(
        f'[model]\npath = "{model}"\ndrafter = "{DATA}/drafter"\ndtype = "float32"\n[server]\nport = {port}\n'
    )
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", "serve", "--config", str(folder / "engine.toml")],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 90
            while not _is_ready(url):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
