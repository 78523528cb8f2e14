"""A tiny model that speaks, and a real server process over it.

The model is tests/data/tiny-ddtree with a 64-piece alphabet written beside its weights; token 1 ends a text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from engine_process import Server
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

DATA = Path(__file__).parents[2] / "data" / "tiny-ddtree"

SPECIAL = ["<|start|>", "<|end|>"]
# One piece a token: letters, a blank, a comma, whole words, and the two bytes of é and the four of 😀 apart.
BYTES = ["Ã", "©", "ð", "Ł", "ĺ", "Ģ"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
WORDS = [left + right for left in "klmnp" for right in "aeiou"]
PIECES = [*SPECIAL, *BYTES, *LETTERS, "Ġ", ",", ":", "Ċ", *WORDS, "!"]

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ bos_token }}{{ message.role }}\n{{ message.content }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def speaking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with config, weights, tokenizer.json and a chat template; vocabulary 64."""
    folder = tmp_path_factory.mktemp("models") / "tiny-speaking"
    shutil.copytree(DATA / "target", folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    assert len(PIECES) == 64
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    merges = [(word[0], word[1]) for word in WORDS]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1]}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def start_server(speaking_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers: `tables` is TOML text that goes on from [server]."""
    started: list[Server] = []

    def start(
        tables: str = "",
        environment: Mapping[str, str] | None = None,
        model: Path = speaking_model,
        drafter: Path | None = DATA / "drafter",
        port: int = 0,
    ) -> Server:
        config = tmp_path_factory.mktemp("config") / "engine.toml"
        drafting = f'drafter = "{drafter}"\n' if drafter else ""
        config.write_text(f'[model]\npath = "{model}"\n{drafting}[server]\nport = {port}\n{tables}')
        server = Server(config, environment or {})
        started.append(server)
        return server

    yield start
    for server in started:
        server.process.kill()
        server.process.wait(10.0)
