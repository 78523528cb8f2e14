"""The draft's head: a list of words it may propose, which changes what is guessed and never what is said."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.draft_head import FILE, draft_head, read_draft_vocabulary, write_draft_vocabulary
from engine.errors import EngineError
from engine.generate import generate
from engine.runtime import Runtime, Sampling, Speculation, load_runtime

PROMPT = (5, 9, 2, 33, 17, 60)


@pytest.fixture
def listed(
    tiny_config: Callable[..., EngineConfig], tiny_folder: Path, tmp_path: Path
) -> Callable[[list[int]], Runtime]:
    """The tiny models with a list of words in the drafter's folder."""

    def load(token_ids: list[int]) -> Runtime:
        copy = tmp_path / "drafter"
        shutil.copytree(tiny_folder / "drafter", copy)
        write_draft_vocabulary(copy, torch.tensor(token_ids))
        config = tiny_config()
        return load_runtime(replace(config, model=replace(config.model, drafter=str(copy))))

    return load


def test_rows_of_the_head_are_those_of_the_tokens_they_stand_for(tiny: Callable[..., Runtime]) -> None:
    target = tiny().target
    ids = torch.tensor([3, 17, 40])
    head = draft_head(target, ids)
    hidden = torch.randn(5, target.config.hidden_size, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(head.logits(target, hidden), target.logits(hidden)[:, ids], atol=1e-6)
    assert head.tokens(torch.tensor([[2, 0]])).tolist() == [[40, 3]]
    assert (head.ranks(2), head.ranks(64)) == (2, 3)
    whole = draft_head(target, None)
    assert torch.equal(whole.logits(target, hidden), target.logits(hidden))
    assert whole.ranks(64) == 64


@pytest.mark.parametrize("mode", ["dflash", "ddtree"])
def test_only_words_of_the_list_are_proposed_and_the_same_is_said(
    tiny: Callable[..., Runtime], listed: Callable[[list[int]], Runtime], mode: str
) -> None:
    said = generate(tiny(), PROMPT, Sampling(), Speculation("off"), max_tokens=48, ignore_eos=True).token_ids
    never_said = sorted(set(range(64)) - set(said))
    way = Speculation("ddtree", 16) if mode == "ddtree" else Speculation("dflash")
    run = generate(listed(never_said), PROMPT, Sampling(), way, max_tokens=48, ignore_eos=True)
    assert run.token_ids == said
    assert set(run.commit_lengths) == {1}
    whole = generate(tiny(), PROMPT, Sampling(), way, max_tokens=48, ignore_eos=True)
    assert max(whole.commit_lengths) > 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[1, 2]", "token_ids is no list of whole numbers"),
        ('{"token_ids": []}', "token_ids is no list of whole numbers"),
        ('{"token_ids": [1, true]}', "token_ids is no list of whole numbers"),
        ('{"token_ids": [1, 64]}', "token 64 lies outside the vocabulary of 64"),
        ('{"token_ids": [1, 5, 1]}', "names a token twice"),
    ],
)
def test_a_list_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(EngineError, match=words):
        read_draft_vocabulary(tmp_path, 64)


def test_the_list_is_kept_ascending_and_can_be_taken_away(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"token_ids": [9, 2, 5]}))
    read = read_draft_vocabulary(tmp_path, 64)
    assert read is not None
    assert read.tolist() == [2, 5, 9]
    write_draft_vocabulary(tmp_path, None)
    assert read_draft_vocabulary(tmp_path, 64) is None
