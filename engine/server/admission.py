"""A checked body and its prompt's ids -> what the engine is asked to do, or a refusal that says why not."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import cast

from engine.grammar.constraint import Form
from engine.requests import GenerationRequest
from engine.runtime import Sampling, Speculation
from engine.server.errors import ApiError
from engine.server.message import MARKERS
from engine.server.schema import GenerationBody, LookupChoice, Mode
from engine.server.service import Serving

MAX_SEED = 2**63


def admit(
    engine: Serving,
    body: GenerationBody,
    prompt_ids: Sequence[int],
    request_id: str,
    *,
    parses: bool = False,
    form: Form | None = None,
) -> GenerationRequest:
    """Check everything that needs the loaded engine. `parses`: the answer's markers are wanted as text. `form`: what it must be.

    Raises ApiError 400 and 404.
    """
    check_model(engine, body.model)
    _check_prompt(engine, prompt_ids)
    if body.stop and engine.tokenizer is None:
        raise ApiError(
            400, "stop: this model has no tokenizer; use stop_token_ids", code="unsupported_parameter", param="stop"
        )
    _check_ids(engine, "stop_token_ids", body.stop_token_ids)
    ends = frozenset() if body.ignore_eos else engine.end_ids
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(
            temperature=body.temperature,
            seed=secrets.randbelow(MAX_SEED) if body.seed is None else body.seed % MAX_SEED,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),  # -1 is what some clients write for "no limit"
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=_logit_bias(engine, body),
            form=form,
        ),
        speculation=_speculation(engine, body),
        max_tokens=_max_tokens(engine, body, len(prompt_ids)),
        min_tokens=body.min_tokens,
        stop_ids=ends | frozenset(body.stop_token_ids),
        stop=tuple(body.stop),
        logprobs=body.alternatives,
        shown=engine.tokenizer.special_ids(MARKERS) if parses and engine.tokenizer is not None else {},
    )


def check_model(engine: Serving, asked: str | None) -> None:
    """A request may leave the model out; one that names another is told which is served."""
    if asked is not None and asked != engine.model_name:
        raise ApiError(
            404, f"model: this service has {engine.model_name} and no other", code="model_not_found", param="model"
        )


def _check_prompt(engine: Serving, prompt_ids: Sequence[int]) -> None:
    if not prompt_ids:
        raise ApiError(400, "prompt: it holds no token", code="invalid_value", param="prompt")
    _check_ids(engine, "prompt", prompt_ids)


def _check_ids(engine: Serving, param: str, token_ids: Iterable[int]) -> None:
    vocabulary = engine.runtime.target.config.vocab_size
    strange = next((token for token in token_ids if not 0 <= token < vocabulary), None)
    if strange is not None:
        message = f"{param}: token id {strange} is outside the vocabulary of {vocabulary}"
        raise ApiError(400, message, code="invalid_value", param=param)


def _logit_bias(engine: Serving, body: GenerationBody) -> tuple[tuple[int, float], ...]:
    _check_ids(engine, "logit_bias", map(int, body.logit_bias))
    return tuple((int(name), bias) for name, bias in body.logit_bias.items())


def _max_tokens(engine: Serving, body: GenerationBody, prompt_tokens: int) -> int:
    """Tokens the answer may have: as asked where the context holds them, else refused with the numbers."""
    context = engine.runtime.max_context
    left = context - prompt_tokens
    wanted = body.limit if body.limit is not None else max(1, body.min_tokens)
    if wanted > left:
        raise ApiError(
            400,
            f"the prompt has {prompt_tokens} tokens and the answer may need {wanted}, {prompt_tokens + wanted} together; "
            f"this service holds {context} (context_length)",
            code="context_length_exceeded",
            param="prompt" if left < 1 else "max_tokens",
        )
    return left if body.limit is None else body.limit


def _speculation(engine: Serving, body: GenerationBody) -> Speculation:
    """The request's own choice over the service's settings in force."""
    asked, service = body.speculation, engine.runtime.config.speculation
    mode = asked.mode or cast(Mode, service.mode)
    if mode != "off" and engine.runtime.drafter is None:
        raise ApiError(
            400,
            f"speculation.mode: {mode} needs a drafter and this service has none",
            code="invalid_value",
            param="speculation.mode",
        )
    if asked.tree_budget is not None and mode != "ddtree":
        raise ApiError(
            400,
            f"speculation.tree_budget: it belongs to mode ddtree, not to {mode}",
            code="invalid_value",
            param="speculation.tree_budget",
        )
    if asked.lookup not in (None, "off") and mode == "off":
        raise ApiError(
            400,
            "speculation.lookup: it belongs to the modes that draft, dflash and ddtree, not to off",
            code="invalid_value",
            param="speculation.lookup",
        )
    lookup = asked.lookup or cast(LookupChoice, service.lookup)
    return Speculation(mode, asked.tree_budget or service.tree_budget, lookup)
