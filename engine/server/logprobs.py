"""Log-probabilities in the two shapes OpenAI's clients know. They are the model's own, before anything of the sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.sampling import TokenLogprob
from engine.tokenizer import Tokenizer


@dataclass
class LogprobWriter:
    """Writes one answer's, piece by piece. Without a tokenizer a token's text is `token_id:N`."""

    tokenizer: Tokenizer | None
    chat: bool
    _offset: int = 0  # characters of the answer written so far

    def write(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The `logprobs` of a choice; None where there are none."""
        if not tokens:
            return None
        return (
            {"content": [self._chat(token) for token in tokens], "refusal": None} if self.chat else self._plain(tokens)
        )

    def _chat(self, token: TokenLogprob) -> dict[str, Any]:
        best = [self._entry(other, logprob) for other, logprob in token.best]
        return {**self._entry(token.token, token.logprob), "top_logprobs": best}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._bytes(token)
        return {"token": text.decode(errors="replace"), "logprob": logprob, "bytes": list(text)}

    def _plain(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        texts, offsets = [], []
        for token in tokens:
            texts.append(self._bytes(token.token).decode(errors="replace"))
            offsets.append(self._offset)
            self._offset += len(texts[-1])
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {self._bytes(other).decode(errors="replace"): logprob for other, logprob in token.best}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token) if self.tokenizer is not None else f"token_id:{token}".encode()
