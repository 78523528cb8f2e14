"""The target answers prompts in full batches, and the features a drafter trains on fall out of the same forward passes.

One forward holds a row for every running response and all rows of the prompts admitted since the last one, so the batch stays full and
no row is computed twice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.decoder import Decoder

# A small model talks in circles for ever under greedy decoding; three turns of a short cycle end the response.
LONGEST_CYCLE = 40
CYCLE_REPEATS = 3


@dataclass(frozen=True)
class Question:
    """A prompt as token ids and how to answer it: `temperature` 0 is greedy; at most `max_tokens` are produced."""

    token_ids: tuple[int, ...]
    kind: str
    temperature: float
    max_tokens: int


@dataclass(frozen=True)
class Response:
    """A question with its answer: prompt and response ids in one row, and features [tokens - 1, taps * hidden] bfloat16.

    The last token was never an input of the target, so it has no features; a drafter never needs them.
    """

    question: Question
    token_ids: tuple[int, ...]
    features: Tensor


@dataclass
class _Running:
    """A response in progress; `fed` tokens of it have been through the target, their features are in `chunks`."""

    question: Question
    slot: int
    token_ids: list[int]
    fed: int = 0
    chunks: list[Tensor] = field(default_factory=list)


class _SlotCache:
    """Values of all running responses: [layers, slots, kv_heads, capacity, head_dim]; keys with the last two the other way round.

    Keys stand in columns because a product of few query rows with them is then nearly twice as fast on a CPU. A latent cache
    (multi-head latent attention) has one head as wide as a latent with its rotary key, here kept as the value too.
    """

    def __init__(self, target: Decoder, slots: int, capacity: int, dtype: torch.dtype) -> None:
        config = target.config
        shape = (config.layers, slots, config.kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=target.device).transpose(-1, -2).contiguous()
        self.values = torch.zeros(shape, dtype=dtype, device=target.device)


@torch.inference_mode()
def answer(
    target: Decoder,
    questions: Iterable[Question],
    *,
    taps: tuple[int, ...],
    stop_ids: frozenset[int],
    slots: int,
    capacity: int,
    seed: int,
) -> Iterator[Response]:
    """Yield each response as it ends, `slots` of them running at a time.

    Questions whose prompt and answer do not fit into `capacity` tokens are skipped. The order of the results is that of finishing.
    """
    dtype = target.dtype
    cache = _SlotCache(target, slots, capacity, dtype)
    dice = torch.Generator("cpu").manual_seed(seed)
    waiting = iter(questions)
    free = list(range(slots))
    running: list[_Running] = []
    while True:
        admitted: list[_Running] = []
        while free and (question := next(waiting, None)) is not None:
            if len(question.token_ids) + question.max_tokens <= capacity:
                admitted.append(_Running(question, free.pop(), list(question.token_ids)))
            if sum(len(one.token_ids) for one in admitted) > 512:  # keeps one forward's activations small
                break
        running_before, running = running, running + admitted
        if not running:
            return
        _step(target, cache, running_before, admitted, taps, dice)
        for one in [one for one in running if _is_over(one, stop_ids)]:
            running.remove(one)
            free.append(one.slot)
            yield Response(one.question, tuple(one.token_ids), torch.cat(one.chunks))


def _step(
    target: Decoder,
    cache: _SlotCache,
    decoding: list[_Running],
    admitted: list[_Running],
    taps: tuple[int, ...],
    dice: torch.Generator,
) -> None:
    """One forward over every decoding response's newest token and every admitted prompt; appends one token to each."""
    everyone = decoding + admitted
    counts = [len(one.token_ids) - one.fed for one in everyone]
    device = target.device
    token_ids = torch.tensor([token for one in everyone for token in one.token_ids[one.fed :]], device=device)
    positions = torch.tensor([place for one in everyone for place in range(one.fed, len(one.token_ids))], device=device)
    latent = target.config.latent
    attend = _Attention(cache, decoding, admitted, latent.rank if latent else 0)
    hidden, features = target(token_ids, positions, attend, taps)
    ends = torch.tensor(counts, device=device).cumsum(0)
    next_ids = _choose(target.logits(hidden[ends - 1]), everyone, dice)
    for one, chunk, token in zip(everyone, features.split(counts), next_ids, strict=True):
        one.chunks.append(chunk.to("cpu", torch.bfloat16, copy=True))
        one.fed = len(one.token_ids)
        one.token_ids.append(token)


class _Attention:
    """The `attend` of one mixed forward: the first rows decode (one each), the rest are whole prompts."""

    def __init__(self, cache: _SlotCache, decoding: list[_Running], admitted: list[_Running], latent_rank: int) -> None:
        self.cache, self.latent_rank = cache, latent_rank
        device = cache.keys.device
        self.slots = torch.tensor([one.slot for one in decoding], dtype=torch.int64, device=device)
        self.places = torch.tensor([one.fed for one in decoding], dtype=torch.int64, device=device)
        longest = max((one.fed for one in decoding), default=-1) + 1
        self.longest = longest
        idle = torch.zeros(cache.keys.shape[1], dtype=torch.int64, device=device)
        last_seen = idle.index_put((self.slots,), self.places)
        unseen = torch.arange(longest, device=device) > last_seen[:, None]  # [slots, longest]
        self.unseen = unseen[:, None, None]
        self.prompts = [(one.slot, len(one.token_ids)) for one in admitted]

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.latent_rank:  # the values are the first part of the keys: attended whole, and cut
            whole = self._attend(layer, queries, keys, keys)
            return whole.view(queries.shape)[..., : self.latent_rank].flatten(1)
        return self._attend(layer, queries, keys, values)

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows = len(self.slots)
        outputs = []
        if rows:
            outputs.append(self._decode(layer, queries[:rows], keys[:rows], values[:rows]))
        for slot, length in self.prompts:
            part = slice(rows, rows + length)
            outputs.append(self._prefill(layer, slot, queries[part], keys[part], values[part]))
            rows += length
        return torch.cat(outputs)

    def _decode(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        all_keys, all_values = self.cache.keys[layer], self.cache.values[layer]
        all_keys[self.slots, :, :, self.places] = keys
        all_values[self.slots, :, self.places] = values
        rows, heads, head_dim = queries.shape
        kv_heads = keys.shape[1]
        # A row for every slot, idle ones too: so the cache is read in place, which costs less than gathering the busy slots.
        folded = queries.new_zeros(
            len(all_keys), kv_heads, heads // kv_heads, head_dim
        )  # query heads of a KV head as rows
        folded[self.slots] = queries.view(rows, *folded.shape[1:]) * head_dim**-0.5
        # Slots and KV heads as one batch before the cut, so that the product reads the cache in place.
        scores = torch.bmm(folded.flatten(0, 1), all_keys.flatten(0, 1)[..., : self.longest])
        scores = scores.view(*folded.shape[:3], -1).float().masked_fill_(self.unseen, float("-inf"))
        weights = scores.softmax(dim=-1).to(all_values.dtype).flatten(0, 1)
        attended = torch.bmm(weights, all_values.flatten(0, 1)[:, : self.longest]).view(folded.shape)
        return attended[self.slots].reshape(rows, heads * head_dim)

    def _prefill(self, layer: int, slot: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        length, heads, head_dim = queries.shape
        kv_heads = keys.shape[1]
        self.cache.keys[layer, slot, :, :, :length] = keys.permute(1, 2, 0)
        self.cache.values[layer, slot, :, :length] = values.transpose(0, 1)
        group = heads // kv_heads
        wide_keys = keys.transpose(0, 1).repeat_interleave(group, dim=0)
        wide_values = values.transpose(0, 1).repeat_interleave(group, dim=0)
        attended = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], wide_keys[None], wide_values[None], is_causal=True
        )[0]
        return attended.transpose(0, 1).reshape(length, heads * head_dim)


def _choose(logits: Tensor, everyone: list[_Running], dice: torch.Generator) -> list[int]:
    """Greedy where the temperature is 0, else a draw from the 50 likeliest tokens."""
    chosen = logits.max(dim=-1).indices  # six times as fast as argmax in bfloat16, and the first of equals too
    sampled = [row for row, one in enumerate(everyone) if one.question.temperature > 0]
    if sampled:
        temperatures = torch.tensor([everyone[row].question.temperature for row in sampled], device="cpu")
        top, ids = logits[sampled].float().topk(min(50, logits.shape[-1]), dim=-1)
        drawn = torch.multinomial((top.cpu() / temperatures[:, None]).softmax(dim=-1), 1, generator=dice)
        chosen[sampled] = ids.gather(1, drawn.to(ids.device))[:, 0]
    result: list[int] = chosen.tolist()
    return result


def _is_over(one: _Running, stop_ids: frozenset[int]) -> bool:
    produced = one.token_ids[len(one.question.token_ids) :]
    return produced[-1] in stop_ids or len(produced) >= one.question.max_tokens or in_a_cycle(produced)


def in_a_cycle(tokens: list[int]) -> bool:
    """True where the tail is one cycle of at most LONGEST_CYCLE tokens, CYCLE_REPEATS times over."""
    for period in range(1, min(LONGEST_CYCLE, len(tokens) // CYCLE_REPEATS) + 1):
        span = period * CYCLE_REPEATS
        if span >= 12 and tokens[-span:-period] == tokens[-span + period :]:
            return True
    return False
