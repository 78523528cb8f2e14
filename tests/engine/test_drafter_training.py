"""Drafter training on the tiny target: the mask, the labels, the data, the resume, and that it learns."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from engine.draft import DraftRequest, draft_candidates
from engine.draft_head import DraftHead
from engine.drafter import Drafter, load_drafter
from engine.errors import EngineError
from engine.generate import generate
from engine.models.decoder import Decoder
from engine.prefill import prefill, release
from engine.runtime import Runtime, Sampling, Speculation
from engine.train import judge
from engine.train import main as train_drafter
from engine.training.blocks import Blocks, Passage, anchor_positions, draw_anchors, pack_blocks
from engine.training.corpus import Corpus, CorpusKey, CorpusWriter, Record, read_corpus
from engine.training.folder import drafter_config, new_drafter
from engine.training.loop import Plan, Trainer, learning_rate_share
from engine.training.objective import DraftVocabulary, draft_hidden, score_blocks, slot_weights
from engine.training.questions import random_questions
from engine.training.replay import replay
from engine.training.responses import Question, Response, answer, in_a_cycle

TAPS = (1, 4)
KEY = CorpusKey("tiny", TAPS, 128)


@pytest.fixture(scope="module")
def runtime(tiny: Callable[..., Runtime]) -> Runtime:
    return tiny()


@pytest.fixture(scope="module")
def target(runtime: Runtime) -> Decoder:
    return runtime.target


@pytest.fixture
def drafter(target: Decoder) -> Drafter:
    config = drafter_config(target.config, layers=2, taps=TAPS, block_size=8, mask_token_id=63)
    return new_drafter(config, target, seed=0)


def answered(target: Decoder, questions: list[Question], slots: int = 64) -> list[Response]:
    return list(answer(target, questions, taps=TAPS, stop_ids=frozenset(), slots=slots, capacity=128, seed=0))


@pytest.fixture(scope="module")
def passage(target: Decoder) -> Passage:
    """One answer of 40 tokens to a prompt of six."""
    (one,) = answered(target, [Question((5, 9, 2, 33, 17, 60), "ids", 0.8, 40)])
    return Passage(one.token_ids, one.features, 6)


@pytest.fixture(scope="module")
def corpus(target: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Some 9,000 tokens of the tiny target's own greedy text."""
    folder = tmp_path_factory.mktemp("corpus")
    with CorpusWriter(folder, KEY) as writer:
        for response in answered(target, random_questions(Random(1), 64, 48, 240)):
            writer.append(response)
    return read_corpus(folder, KEY)


def logits_at(drafter: Drafter, target: Decoder, passage: Passage, anchors: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return target.logits(draft_hidden(drafter, target, pack_blocks([passage], [anchors], 8)))


def test_what_stands_at_or_after_the_anchor_does_not_reach_its_block(
    drafter: Drafter, target: Decoder, passage: Passage
) -> None:
    anchor = 20
    features = passage.features.clone()
    features[anchor:] = 50.0
    tokens = [*passage.token_ids[: anchor + 1], *[(token + 1) % 63 for token in passage.token_ids[anchor + 1 :]]]
    # Later anchors make the changed rows part of the same forward.
    before = logits_at(drafter, target, passage, [anchor, 30, 35])
    after = logits_at(drafter, target, Passage(tokens, features, 6), [anchor, 30, 35])
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_what_stands_before_the_anchor_and_the_anchors_own_token_do_reach_it(
    drafter: Drafter, target: Decoder, passage: Passage
) -> None:
    features, tokens = passage.features.clone(), list(passage.token_ids)
    features[19] += 5.0
    tokens[20] = (tokens[20] + 1) % 63
    before = logits_at(drafter, target, passage, [20])
    assert not torch.allclose(before, logits_at(drafter, target, replace(passage, features=features), [20]))
    assert not torch.allclose(before, logits_at(drafter, target, replace(passage, token_ids=tokens), [20]))


def test_blocks_do_not_see_each_other_nor_another_response(drafter: Drafter, target: Decoder, passage: Passage) -> None:
    other = Passage(passage.token_ids[:30], torch.randn(29, 128).bfloat16(), 6)
    with torch.no_grad():
        packed = draft_hidden(drafter, target, pack_blocks([other, passage], [[10, 20], [15, 25]], 8))
    alone = draft_hidden(drafter, target, pack_blocks([passage], [[25]], 8))
    assert torch.allclose(packed[3], alone[0], atol=1e-5)


def test_slot_k_is_trained_on_the_token_at_anchor_plus_k_and_slot_0_on_nothing(
    drafter: Drafter, target: Decoder, passage: Passage
) -> None:
    anchors = [10, 42]  # the second one's block reaches past the end of 46 tokens
    blocks = pack_blocks([passage], [anchors], 8)
    everything = DraftVocabulary.of(torch.arange(64), 64)
    score = score_blocks(drafter, target, blocks, everything, others=torch.empty(0, dtype=torch.int64), gamma=4.0)
    logits = logits_at(drafter, target, passage, anchors)
    total = weights = 0.0
    for row, anchor in enumerate(anchors):
        for slot in range(1, 8):
            if anchor + slot < len(passage.token_ids):
                weight = float(torch.exp(torch.tensor(-(slot - 1) / 4.0)))
                label = torch.tensor(passage.token_ids[anchor + slot])
                total += weight * float(F.cross_entropy(logits[row, slot], label))
                weights += weight
    assert blocks.trained[1].tolist() == [False, True, True, True, False, False, False, False]
    assert float(score.loss.detach()) == pytest.approx(total / weights, rel=1e-4)
    assert slot_weights(4, 2.0).tolist() == pytest.approx([1.0, 0.6065, 0.3679], abs=1e-4)


def test_other_tokens_stand_for_all_that_the_vocabulary_leaves_out(
    drafter: Drafter, target: Decoder, passage: Passage
) -> None:
    blocks = pack_blocks([passage], [[12, 18, 24]], 8)
    small = DraftVocabulary.of(torch.tensor(passage.token_ids), 64)
    everything = DraftVocabulary.of(torch.arange(64), 64)
    nothing = torch.empty(0, dtype=torch.int64)
    whole = score_blocks(drafter, target, blocks, everything, others=nothing, gamma=4.0)
    dice = torch.Generator().manual_seed(0)
    all_others = score_blocks(drafter, target, blocks, small, others=small.draw_others(64, dice), gamma=4.0)
    assert float(all_others.loss.detach()) == pytest.approx(float(whole.loss.detach()), rel=1e-5)
    drawn = small.draw_others(8, dice)
    assert len(drawn) == 8
    assert not set(drawn.tolist()) & set(passage.token_ids)


def test_a_label_outside_the_vocabulary_still_counts_in_full(
    drafter: Drafter, target: Decoder, passage: Passage
) -> None:
    blocks = pack_blocks([passage], [[12, 18, 24]], 8)
    everything = DraftVocabulary.of(torch.arange(64), 64)
    whole = score_blocks(drafter, target, blocks, everything, others=torch.empty(0, dtype=torch.int64), gamma=4.0)
    five = DraftVocabulary.of(torch.tensor(passage.token_ids), 64, most=5)
    assert len(five.token_ids) == 5
    assert not set(blocks.token_ids[:, 1:].flatten().tolist()) <= set(five.token_ids.tolist())
    rest = five.draw_others(64, torch.Generator().manual_seed(0))
    capped = score_blocks(drafter, target, blocks, five, others=rest, gamma=4.0)
    assert float(capped.loss.detach()) == pytest.approx(float(whole.loss.detach()), rel=1e-5)
    assert capped.commit_length == whole.commit_length


def test_the_commonest_tokens_make_the_vocabulary_and_the_lower_id_wins_a_tie() -> None:
    vocabulary = DraftVocabulary.of(torch.tensor([7, 7, 7, 3, 3, 9, 5, 5]), 12, most=2)
    assert vocabulary.token_ids.tolist() == [3, 7]
    assert vocabulary.places[[3, 7, 5]].tolist() == [0, 1, -1]


def test_anchors_are_response_tokens_with_a_successor(passage: Passage) -> None:
    assert anchor_positions(passage) == range(6, 45)
    drawn = draw_anchors(passage, 100, torch.Generator().manual_seed(1))
    assert drawn == list(range(6, 45))
    assert len(set(draw_anchors(passage, 10, torch.Generator().manual_seed(1)))) == 10


def test_the_training_forward_gives_the_engines_own_draft(runtime: Runtime, target: Decoder, tiny_folder: Path) -> None:
    drafter = load_drafter(tiny_folder / "drafter", target.config, torch.float32)
    generation = prefill(runtime, [5, 9, 2, 33, 17, 60], Sampling(), Speculation("ddtree", 16))
    try:
        assert runtime.drafting is not None and generation.draft is not None
        generation.table.grow(32)
        seed = generation.token_ids[0]
        asked = DraftRequest(generation.table, generation.draft, seed, 64)
        ((token_ids, log_probs),) = draft_candidates(runtime.drafting, target, [asked])
    finally:
        release(runtime, generation)
    (one,) = answered(target, [Question((5, 9, 2, 33, 17, 60), "ids", 0.0, 12)])
    # Features are kept in bfloat16 for training; here they are taken exactly, so that the two forwards can be compared.
    with torch.no_grad():
        _, features = target(torch.tensor(one.token_ids[:6]), torch.arange(6), causal, TAPS)
    blocks = pack_blocks([Passage(one.token_ids, torch.cat((features, torch.zeros(11, 128))), 6)], [[6]], 8)
    with torch.no_grad():
        own = target.logits(draft_hidden(drafter, target, blocks))[0, 1:].log_softmax(-1)
    engine = torch.empty(7, 64).scatter_(1, torch.tensor(token_ids), torch.tensor(log_probs))
    assert one.token_ids[6] == seed
    assert torch.allclose(own, engine, atol=1e-4)


def causal(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Plain causal attention over the rows of one sequence."""
    group = queries.shape[1] // keys.shape[1]
    q, k, v = (
        tensor.transpose(0, 1) for tensor in (queries, *(t.repeat_interleave(group, dim=1) for t in (keys, values)))
    )
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0].transpose(0, 1).flatten(1)


def test_answers_made_in_batches_are_those_the_engine_gives_one_by_one(runtime: Runtime, target: Decoder) -> None:
    questions = random_questions(Random(3), 64, 20, 11)
    batched = {one.question.token_ids: one for one in answered(target, questions, slots=4)}
    assert len(batched) == 11
    for question in questions:
        alone = generate(runtime, question.token_ids, Sampling(), Speculation("off"), max_tokens=20).token_ids
        mine = batched[question.token_ids]
        produced = list(mine.token_ids[len(question.token_ids) :])
        assert produced == alone[: len(produced)]
        assert len(produced) == 20 or in_a_cycle(produced)
        with torch.no_grad():
            ids = torch.tensor(mine.token_ids[:-1])
            _, features = target(ids, torch.arange(len(ids)), causal, TAPS)
        assert torch.allclose(mine.features.float(), features, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("tokens", "cyclic"),
    [([1, 2, 3, 4] * 3, True), ([7] * 12, True), ([1, 2, 3, 4] * 2, False), (list(range(90)), False)],
)
def test_three_turns_of_a_cycle_end_an_answer(tokens: list[int], cyclic: bool) -> None:
    assert in_a_cycle([50, 51, *tokens]) == cyclic


def test_a_corpus_cut_short_by_a_kill_keeps_its_whole_responses_and_goes_on(target: Decoder, tmp_path: Path) -> None:
    first, second, third = answered(target, random_questions(Random(5), 64, 16, 3))
    with CorpusWriter(tmp_path, KEY) as writer:
        writer.append(first)
        writer.append(second)
    lines = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(lines[:-20])  # the second line is torn, its features are all there
    assert len(read_corpus(tmp_path, KEY).records) == 1
    with CorpusWriter(tmp_path, KEY) as writer:
        assert writer.response_tokens == len(first.token_ids) - len(first.question.token_ids)
        writer.append(third)
    kept = read_corpus(tmp_path, KEY)
    assert [record.token_ids for record in kept.records] == [first.token_ids, third.token_ids]
    assert torch.equal(kept.features(kept.records[1]), third.features)


def test_a_corpus_of_other_taps_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with CorpusWriter(tmp_path, KEY) as writer:
        writer.append(Response(Question((1,), "ids", 0.0, 4), (1, 2, 3), torch.zeros(2, 128).bfloat16()))
    with pytest.raises(EngineError, match="another target or other tapped layers"):
        read_corpus(tmp_path, replace(KEY, taps=(0, 4)))


def test_training_raises_the_chains_commit_length_from_about_1_to_above_2_5(
    drafter: Drafter, target: Decoder, corpus: Corpus
) -> None:
    """On the text it trains on: the tiny target's weights are random, and what it has not said yet nobody foresees."""
    seen = Corpus(corpus.records[:40], corpus.rows)
    before = judge(drafter, target, DraftHead(), seen)["all"]
    trainer = Trainer(drafter, target, seen, Plan(230, 0.0, learning_rate=3e-3, others_a_step=8))
    losses: list[float] = []
    trainer.run(lambda progress: losses.append(progress.loss))
    after = judge(drafter, target, DraftHead(), seen)["all"]
    assert before["chain"] < 1.1
    assert after["chain"] > 2.5
    assert after["tree 7"] < after["tree 16"] < after["tree 32"]
    assert losses[-1] < losses[20]
    assert trainer.by_kind.keys() == {"ids"}
    assert 2.5 < trainer.by_kind["ids"] < 8


def test_a_killed_and_resumed_run_ends_with_the_very_weights_of_one_that_ran_through(
    target: Decoder, corpus: Corpus, tmp_path: Path
) -> None:
    config = drafter_config(target.config, layers=2, taps=TAPS, block_size=8, mask_token_id=63)
    plan = Plan(12, 0.0, others_a_step=4)
    through = Trainer(new_drafter(config, target, 0), target, corpus, plan)
    through.run(lambda progress: None)

    class KilledError(Exception):
        pass

    killed = Trainer(new_drafter(config, target, 0), target, corpus, plan)

    def die_in_step_8(progress: object) -> None:
        if killed.step == 5:
            killed.save(tmp_path / "checkpoint.pt")
        if killed.step == 8:
            raise KilledError

    with pytest.raises(KilledError):
        killed.run(die_in_step_8)
    resumed = Trainer(new_drafter(config, target, 1), target, corpus, plan)
    resumed.load(tmp_path / "checkpoint.pt")
    assert resumed.step == 5
    resumed.run(lambda progress: None)
    for name, weight in through.drafter.state_dict().items():
        assert torch.equal(weight, resumed.drafter.state_dict()[name]), name
    assert (resumed.loss, resumed.blocks) == (through.loss, through.blocks)


def test_a_checkpoint_of_another_corpus_is_refused(target: Decoder, corpus: Corpus, tmp_path: Path) -> None:
    config = drafter_config(target.config, layers=2, taps=TAPS, block_size=8, mask_token_id=63)
    Trainer(new_drafter(config, target, 0), target, corpus, Plan(1, 0.0)).save(tmp_path / "checkpoint.pt")
    smaller = Corpus(corpus.records[:10], corpus.rows)
    with pytest.raises(EngineError, match="trained on 240 responses, the corpus holds 10"):
        Trainer(new_drafter(config, target, 0), target, smaller, Plan(1, 0.0)).load(tmp_path / "checkpoint.pt")


def test_the_learning_rate_warms_up_and_then_falls_to_a_hundredth() -> None:
    shares = [learning_rate_share(done, 0.1) for done in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert shares == pytest.approx([0.001, 0.5, 1.0, 0.505, 0.01])


def test_replayed_rounds_are_the_rounds_the_engine_takes(runtime: Runtime, target: Decoder, tiny_folder: Path) -> None:
    drafter = load_drafter(tiny_folder / "drafter", target.config, torch.float32)
    prompt = (5, 9, 2, 33, 17, 60)
    for budget in (0, 7, 16):
        way = Speculation("ddtree", budget) if budget else Speculation("dflash")
        run = generate(runtime, prompt, Sampling(), way, max_tokens=64, ignore_eos=True)
        token_ids = (*prompt, *run.token_ids)
        with torch.no_grad():
            _, features = target(torch.tensor(token_ids), torch.arange(len(token_ids)), causal, TAPS)
        count = replay(drafter, target, DraftHead(), Passage(token_ids, features, 6), [budget])[budget]
        whole = run.commit_lengths[: count.rounds]
        assert count.tokens == sum(whole)
        assert list(count.hist) == [whole.count(kept) for kept in range(1, 9)]
        assert 1 + sum(count.survival) == pytest.approx(count.commit_length)
        assert 0 <= count.branch_gain <= count.commit_length - 1
        assert count.spine_hit_rate == 1.0 or budget > 0
        assert len(run.commit_lengths) - count.rounds <= 8
        assert count.rounds > 5


def test_replayed_rounds_with_lookup_are_the_engines_too(runtime: Runtime, target: Decoder, tiny_folder: Path) -> None:
    drafter = load_drafter(tiny_folder / "drafter", target.config, torch.float32)
    prompt = (5, 9, 2, 33, 17, 60)
    for budget in (0, 7):
        way = Speculation("ddtree", budget, "auto") if budget else Speculation("dflash", lookup="auto")
        run = generate(runtime, prompt, Sampling(), way, max_tokens=96, ignore_eos=True)
        token_ids = (*prompt, *run.token_ids)
        with torch.no_grad():
            _, features = target(torch.tensor(token_ids), torch.arange(len(token_ids)), causal, TAPS)
        passage = Passage(token_ids, features, 6)
        count = replay(drafter, target, DraftHead(), passage, [budget], lookup=True)[budget]
        assert count.tokens == sum(run.commit_lengths[: count.rounds])
        assert 0 < count.lookup_tokens <= run.lookup_tokens
        assert count.rounds < replay(drafter, target, DraftHead(), passage, [budget])[budget].rounds


@pytest.fixture
def trained(tiny_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """What the command makes of the tiny target in a few steps."""
    arguments = [
        "--model",
        str(tiny_folder / "target"),
        "--out",
        str(tmp_path / "drafter"),
        "--work",
        str(tmp_path / "work"),
    ]
    arguments += ["--taps", "1,4", "--mask-token-id", "63", "--tokens", "600", "--answer-tokens", "24", "--steps", "3"]
    assert train_drafter([*arguments, "--threads", "1"]) == 0
    yield tmp_path / "drafter"


def test_the_command_writes_a_folder_the_engine_loads_with_a_card(trained: Path, target: Decoder) -> None:
    drafter = load_drafter(trained, target.config, torch.float32)
    readme = (trained / "README.md").read_text()
    assert drafter.config.target_layer_ids == TAPS
    assert drafter.config.block_size == 8
    assert "| text | chain | tree 7 | tree 16 | tree 32 |" in readme
    assert "3 steps" in readme


def test_a_tap_outside_the_target_is_refused_by_number(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="layer 6 is outside 0-5"):
        train_drafter(["--model", str(tiny_folder / "target"), "--out", str(tmp_path), "--taps", "1,6"])


def test_a_drafter_to_start_from_must_read_the_layers_of_the_corpus(
    trained: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    arguments = [
        "--model",
        str(tiny_folder / "target"),
        "--out",
        str(tmp_path / "again"),
        "--work",
        str(tmp_path / "other"),
    ]
    arguments += [
        "--tokens",
        "100",
        "--answer-tokens",
        "24",
        "--steps",
        "1",
        "--threads",
        "1",
        "--start-from",
        str(trained),
    ]
    with pytest.raises(EngineError, match=r"reads layers 1,4.*say --taps 1,4"):
        train_drafter([*arguments, "--taps", "0,4"])


def test_training_goes_on_from_a_drafter_that_is_there(trained: Path, tiny_folder: Path, tmp_path: Path) -> None:
    arguments = [
        "--model",
        str(tiny_folder / "target"),
        "--out",
        str(tmp_path / "again"),
        "--work",
        str(tmp_path / "work"),
    ]
    arguments += [
        "--taps",
        "1,4",
        "--tokens",
        "600",
        "--answer-tokens",
        "24",
        "--steps",
        "1",
        "--learning-rate",
        "1e-9",
    ]
    assert train_drafter([*arguments, "--threads", "1", "--start-from", str(trained)]) == 0
    before, after = load_file(trained / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.allclose(before[name].float(), after[name].float(), atol=1e-6) for name in before)


def test_blocks_know_their_rows() -> None:
    features = torch.zeros(9, 4)
    blocks: Blocks = pack_blocks([Passage(range(10), features, 3)], [[3, 5]], 4)
    assert blocks.inputs(99).tolist() == [3, 99, 99, 99, 5, 99, 99, 99]
    assert blocks.block_positions().tolist() == [3, 4, 5, 6, 5, 6, 7, 8]
    assert blocks.visible_context().tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert Record((1, 2, 3), 1, "ids", 0.0, 0).response_tokens == 2
