"""A drafter can be trained for every kind of target the engine runs, in one weight file or several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import KINDS, VOCAB, write_models

from engine.config import EngineConfig, KvTable, ModelTable, SpeculationTable
from engine.draft_head import DraftHead
from engine.drafter import load_drafter
from engine.drafter_config import read_drafter_config
from engine.generate import generate
from engine.models.loader import load_target, read_model_config
from engine.runtime import Sampling, Speculation, load_runtime
from engine.train import judge, main
from engine.training.corpus import CorpusKey, CorpusWriter, read_corpus
from engine.training.folder import drafter_config, hf_config, new_drafter
from engine.training.loop import Plan, Trainer
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_computes_by_the_very_config_that_its_folder_tells(kind: str, tmp_path: Path) -> None:
    folder, _ = write_models(kind, tmp_path)
    target = read_model_config(folder)
    stretched = replace(target, rope=replace(target.rope, kind="llama3", factor=8.0))
    own = drafter_config(stretched, layers=2, taps=(0, 2), block_size=5, mask_token_id=7)
    (tmp_path / "told").mkdir()
    (tmp_path / "told" / "config.json").write_text(json.dumps(hf_config(own, stretched, torch.float32)))
    assert read_drafter_config(tmp_path / "told", stretched) == own


def test_answers_training_and_judging_name_the_device_of_every_tensor(tmp_path: Path) -> None:
    """As on a GPU: where the target lives is never torch's default, which here has no values at all."""
    folder, _ = write_models("llama", tmp_path)
    target = load_target(folder, torch.float32)
    taps = (0, 2)
    drafter = new_drafter(drafter_config(target.config, layers=1, taps=taps, block_size=5, mask_token_id=7), target, 0)
    questions = [Question((number, 1, 4), "ids", heat, 12) for number, heat in enumerate((0.0, 0.8, 0.8, 0.0))]
    key = CorpusKey("random", taps, len(taps) * target.config.hidden_size)
    with torch.device("meta"):
        made = answer(target, questions, taps=taps, stop_ids=frozenset(), slots=2, capacity=32, seed=0)
        with CorpusWriter(tmp_path / "corpus", key) as writer:
            for response in made:
                writer.append(response)
        corpus = read_corpus(tmp_path / "corpus", key)
        trainer = Trainer(drafter, target, corpus, Plan(max_steps=3, max_seconds=0, exact_tokens=20, others_a_step=8))
        losses: list[float] = []
        trainer.run(lambda progress: losses.append(progress.loss))
        trainer.save(tmp_path / "checkpoint.pt")
        trainer.load(tmp_path / "checkpoint.pt")
        figures = judge(trainer.drafter, target, DraftHead(), corpus)
    assert len(corpus.records) == 4 and len(losses) == 3 and 1.0 <= figures["all"]["tree 16"] <= 5.0


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
