"""A drafter can be trained for every kind of target the engine runs, in one weight file or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import KINDS, VOCAB, write_models

from engine.config import EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.drafter import load_drafter
from engine.generate import generate
from engine.models.loader import load_target, read_model_config
from engine.runtime import Sampling, Speculation, load_runtime
from engine.train import main
from engine.training.responses import Question, answer

STEPS = ["--tokens", "300", "--answer-tokens", "16", "--steps", "2", "--threads", "1"]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_made_in_batches_are_those_of_the_engine(kind: str, tmp_path: Path) -> None:
    folder, _ = write_models(kind, tmp_path)
    target = load_target(folder, torch.float32)
    off = EngineConfig(
        model=ModelTable(path=str(folder), dtype="float32"),
        kv=KvTable(page_size=4, pages=16),
        speculation=SpeculationTable(mode="off"),
    )
    runtime = load_runtime(off)
    prompts = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7, 9), (3, 2)]
    questions = [Question(prompt, "ids", 0.0, 9) for prompt in prompts]
    found = list(answer(target, questions, taps=(0, 2), stop_ids=frozenset(), slots=3, capacity=32, seed=0))
    assert sorted(one.question.token_ids for one in found) == sorted(prompts)
    for one in found:
        alone = generate(runtime, one.question.token_ids, Sampling(), Speculation("off"), max_tokens=9)
        made = list(one.token_ids[len(one.question.token_ids) :])
        assert made == alone.token_ids[: len(made)] and len(made) > 3  # a cycle may have ended it


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_makes_a_drafter_that_decodes_losslessly(kind: str, tmp_path: Path) -> None:
    folder, _ = write_models(kind, tmp_path)
    words = ["--model", str(folder), "--out", str(tmp_path / "made"), "--work", str(tmp_path / "work")]
    assert main([*words, "--mask-token-id", str(VOCAB - 1), *STEPS]) == 0
    config = read_model_config(folder)
    made = load_drafter(tmp_path / "made", config, torch.float32)
    assert made.config.heads % made.config.kv_heads == 0
    runtime = load_runtime(
        EngineConfig(
            model=ModelTable(path=str(folder), drafter=str(tmp_path / "made"), dtype="float32"),
            kv=KvTable(page_size=4, pages=32),
            speculation=SpeculationTable(mode="ddtree"),
        )
    )
    texts = [
        generate(runtime, (3, 1, 4), Sampling(), way, max_tokens=24, ignore_eos=True).token_ids
        for way in (Speculation("off"), Speculation("ddtree", 12))
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 24


def test_weights_in_several_files_are_trained_on_and_named(tmp_path: Path) -> None:
    folder, _ = write_models("llama", tmp_path)
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in halves.items():
        save_file({name: whole[name] for name in own}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, own in halves.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    words = ["--model", str(folder), "--out", str(tmp_path / "made"), "--work", str(tmp_path / "work")]
    assert main([*words, "--mask-token-id", str(VOCAB - 1), *STEPS]) == 0
    first = json.loads((tmp_path / "made" / "card.json").read_text())["target"]["weights_sha256"]
    save_file({name: whole[name] + 1 for name in halves["b.safetensors"]}, folder / "b.safetensors")
    assert main([*words[:4], "--work", str(tmp_path / "other"), "--mask-token-id", str(VOCAB - 1), *STEPS]) == 0
    second = json.loads((tmp_path / "made" / "card.json").read_text())["target"]["weights_sha256"]
    assert len(first) == len(second) == 64 and first != second
