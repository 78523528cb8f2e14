"""The training loop: steps over blocks at random anchors, checkpoints, and a resume that continues the very same run.

Everything drawn in a step depends on the seed and the step's number alone, so a run that was killed and resumed takes the same steps.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.drafter import Drafter
from engine.errors import EngineError
from engine.models.decoder import Decoder
from engine.training.blocks import Blocks, Passage, draw_anchors, pack_blocks
from engine.training.corpus import Corpus
from engine.training.objective import BlockScore, DraftVocabulary, score_blocks


@dataclass(frozen=True)
class Plan:
    """How to train. The run ends after `max_steps` or `max_seconds` of training, whichever comes first; 0 sets no limit."""

    max_steps: int
    max_seconds: float
    responses_a_step: int = 8
    anchors_a_response: int = 16
    learning_rate: float = 1e-3
    warmup: float = 0.04  # share of the run
    weight_decay: float = 0.01
    gamma: float = 4.0
    exact_tokens: int = 8192  # the draft vocabulary of the loss: the commonest tokens of the corpus
    others_a_step: int = 1024  # tokens outside it drawn into the loss
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Where the run stands: `done` is a share of the whole; loss and commit length, in all and by text kind, are smoothed."""

    step: int
    done: float
    loss: float
    commit_length: float
    by_kind: Mapping[str, float]
    blocks: int
    seconds: float
    tokens_per_s: float


class Trainer:
    """A drafter in training: weights, optimiser state and progress, as one thing that can be saved and taken up again.

    The optimiser works on float32 copies of the weights; the drafter itself computes in its own dtype, bfloat16 being twice as
    fast on CPUs that have it, and is what the engine will run.
    """

    def __init__(self, drafter: Drafter, target: Decoder, corpus: Corpus, plan: Plan) -> None:
        if not corpus.records:
            raise EngineError("there is no response to train on", mend="generate some first")
        self.drafter, self.target, self.corpus, self.plan = drafter, target, corpus, plan
        vocabulary = DraftVocabulary.of(corpus.answer_ids(), target.config.vocab_size, plan.exact_tokens)
        self.vocabulary = vocabulary.on(target.device)
        self.parameters = list(drafter.parameters())
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]
        self.optimiser = torch.optim.AdamW(
            self.masters, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay, fused=True
        )
        self.step, self.blocks, self.seconds = 0, 0, 0.0
        self.loss, self.commit_length = 0.0, 1.0
        self.by_kind: dict[str, float] = {}

    def done(self) -> float:
        """Share of the run that is behind, 0 to 1."""
        by_steps = self.step / self.plan.max_steps if self.plan.max_steps else 0.0
        by_time = self.seconds / self.plan.max_seconds if self.plan.max_seconds else 0.0
        return min(1.0, max(by_steps, by_time))

    def run(self, on_step: Callable[[Progress], None]) -> None:
        """Train to the end of the plan; `on_step` is told after every step and may save, print or raise."""
        while self.done() < 1.0:
            began = time.monotonic()
            blocks, others, kinds = self._draw(self.step)
            score = self._take_step(blocks, others)
            took = time.monotonic() - began
            self.seconds += took
            self.step += 1
            self.blocks += len(blocks.anchors)
            keep = min(0.98, 1 - 1 / self.step)  # an average that starts plain and becomes a moving one
            self.loss = keep * self.loss + (1 - keep) * float(score.loss.detach())
            self.commit_length = keep * self.commit_length + (1 - keep) * score.commit_length
            self._count_kinds(kinds, score.kept, blocks)
            labels = int(blocks.trained.sum())
            on_step(
                Progress(
                    self.step,
                    self.done(),
                    self.loss,
                    self.commit_length,
                    dict(sorted(self.by_kind.items())),
                    self.blocks,
                    self.seconds,
                    labels / took,
                )
            )

    def _count_kinds(self, kinds: Sequence[str], kept: torch.Tensor, blocks: Blocks) -> None:
        """Move each kind's mean towards what its blocks of this step would have kept."""
        for owner, kind in enumerate(kinds):
            own = kept[blocks.block_owners == owner]
            if len(own):
                before = self.by_kind.get(kind, float(own.mean()))
                self.by_kind[kind] = 0.98 * before + 0.02 * float(own.mean())

    def _take_step(self, blocks: Blocks, others: torch.Tensor) -> BlockScore:
        rate = self.plan.learning_rate * learning_rate_share(self.done(), self.plan.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        score = score_blocks(self.drafter, self.target, blocks, self.vocabulary, others=others, gamma=self.plan.gamma)
        gradients = torch.autograd.grad(score.loss, self.parameters)
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient.float()
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimiser.step()
        self._publish()
        return score

    @torch.no_grad()
    def _publish(self) -> None:
        """The drafter's weights from the float32 ones."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.copy_(master)

    def _draw(self, step: int) -> tuple[Blocks, torch.Tensor, list[str]]:
        """The blocks of a step, other tokens, and the responses' kinds; the order is shuffled anew each epoch, anchors are random."""
        dice = torch.Generator("cpu").manual_seed(self.plan.seed * 1_000_003 + step)
        records, wanted = self.corpus.records, self.plan.responses_a_step
        passages, anchors, kinds = [], [], []
        for turn in range(step * wanted, (step + 1) * wanted):
            epoch = torch.Generator("cpu").manual_seed(self.plan.seed + turn // len(records))
            order = torch.randperm(len(records), generator=epoch, device="cpu")
            record = records[int(order[turn % len(records)])]
            passage = Passage(record.token_ids, self.corpus.features(record), record.prompt_tokens)
            passages.append(passage)
            kinds.append(record.kind)
            anchors.append(draw_anchors(passage, self.plan.anchors_a_response, dice))
        blocks = pack_blocks(passages, anchors, self.drafter.config.block_size).on(self.target.device)
        return blocks, self.vocabulary.draw_others(self.plan.others_a_step, dice), kinds

    def save(self, path: Path) -> None:
        """Write the whole state; an interrupted write leaves the earlier file."""
        state = {
            "masters": self.masters,
            "optimiser": self.optimiser.state_dict(),
            "progress": {
                "step": self.step,
                "blocks": self.blocks,
                "seconds": self.seconds,
                "loss": self.loss,
                "commit_length": self.commit_length,
                "by_kind": self.by_kind,
            },
            "records": len(self.corpus.records),
        }
        fresh = path.with_suffix(".new")
        torch.save(state, fresh)
        fresh.replace(path)

    def load(self, path: Path) -> None:
        """Take up a saved state. Raises EngineError where the corpus is not the one it was trained on."""
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location=self.target.device)
        if state["records"] != len(self.corpus.records):
            raise EngineError(
                f"the checkpoint was trained on {state['records']} responses, the corpus holds {len(self.corpus.records)}",
                where=str(path),
                mend="start anew without --resume",
            )
        with torch.no_grad():
            for master, saved in zip(self.masters, state["masters"], strict=True):
                master.copy_(saved)
        self._publish()
        self.optimiser.load_state_dict(state["optimiser"])
        progress = state["progress"]
        self.step, self.blocks, self.seconds = progress["step"], progress["blocks"], progress["seconds"]
        self.loss, self.commit_length, self.by_kind = (
            progress["loss"],
            progress["commit_length"],
            progress["by_kind"],
        )


def learning_rate_share(done: float, warmup: float) -> float:
    """Linear warm-up over the first `warmup` of the run, then a cosine from 1 down to 0.01."""
    if done < warmup:
        return max(done / warmup, 1e-3)
    past = (done - warmup) / (1 - warmup)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * past))
