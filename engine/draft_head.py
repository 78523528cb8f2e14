"""DraftHead: the rows of the target's head that a drafter chooses among.

Reading the whole head is a good part of a small model's draft, and nearly all of what a drafter proposes are common words. A drafter
folder may list those in `draft_vocabulary.json`; the head then has their rows only. A token outside is never proposed, so the
target says it itself: output does not change, only what is guessed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import EngineError
from engine.models.decoder import Decoder
from engine.models.layers import Linear

FILE = "draft_vocabulary.json"


@dataclass(frozen=True)
class DraftHead:
    """`token_ids` int64 [rows], ascending: the token each row of `rows` stands for. Without them, the target's own head."""

    token_ids: Tensor | None = None
    rows: Linear | None = None

    def on(self, device: torch.device) -> DraftHead:
        """The same head on `device`."""
        if self.token_ids is None or self.rows is None:
            return self
        return DraftHead(self.token_ids.to(device), self.rows.to(device))

    def logits(self, target: Decoder, hidden: Tensor) -> Tensor:
        """hidden [n, hidden] -> [n, rows], or [n, vocabulary]."""
        return target.logits(hidden) if self.rows is None else self.rows(hidden)

    def tokens(self, chosen: Tensor) -> Tensor:
        """Row numbers of the logits -> token ids, the shape kept."""
        return chosen if self.token_ids is None else self.token_ids[chosen]

    def ranks(self, wanted: int) -> int:
        """How many candidates a position can have: `wanted`, if there are so many rows."""
        return wanted if self.token_ids is None else min(wanted, len(self.token_ids))


def draft_head(target: Decoder, token_ids: Tensor | None, *, packed: bool = False) -> DraftHead:
    """The head for a draft vocabulary; None is the target's own. Take it before the target's weights are packed."""
    if token_ids is None:
        return DraftHead()
    head = target.embed_tokens.weight if target.lm_head is None else target.lm_head.weight
    rows = Linear(head.shape[1], len(token_ids))
    rows.weight = torch.nn.Parameter(head.detach()[token_ids.to(head.device)], requires_grad=False)
    if packed:
        rows.pack()
    return DraftHead(token_ids.to(head.device), rows)


def read_draft_vocabulary(folder: Path, vocab_size: int) -> Tensor | None:
    """The token ids of a drafter folder's list, int64 ascending; None where it has no list. Raises EngineError for a wrong one."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"is no JSON: {error}", where=str(path)) from error
    ids = value.get("token_ids") if isinstance(value, dict) else None
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise EngineError("token_ids is no list of whole numbers", where=str(path))
    outside = next((token for token in ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise EngineError(f"token {outside} lies outside the vocabulary of {vocab_size}", where=str(path))
    if len(set(ids)) != len(ids):
        raise EngineError("token_ids names a token twice", where=str(path))
    return torch.tensor(sorted(ids))


def write_draft_vocabulary(folder: Path, token_ids: Tensor | None) -> None:
    """Write the list, one line; None takes an earlier list away."""
    path = folder / FILE
    if token_ids is None:
        path.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"token_ids": token_ids.tolist()}) + "\n", encoding="utf-8")
