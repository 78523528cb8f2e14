"""Exact identities of speculative decoding, and what they predict for a generation whose context grows.

A request decodes N tokens in M verify steps of total wall time T. With commit length C = N/M and step time
S = T/M of the *same* window, tok/s = C/S holds with no averaging bias. All times in milliseconds, all
contexts in tokens, all rates in tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import integrate

MS_PER_S = 1000.0


def tokens_per_second(commit_length: float, step_ms: float) -> float:
    """Rate of a window from its commit length (tokens a step) and step time (ms)."""
    return commit_length / step_ms * MS_PER_S


def implied_commit_length(tok_s: float, step_ms: float) -> float:
    """The commit length that a rate and a step time together imply."""
    return tok_s * step_ms / MS_PER_S


def implied_step_ms(tok_s: float, commit_length: float) -> float:
    """The step time that a rate and a commit length together imply."""
    return commit_length / tok_s * MS_PER_S


def harmonic_commit(first: float, last: float) -> float:
    """Commit length of a run whose commit falls linearly with output position from `first` to `last`.

    Steps are spent where commits are short, so the mean over steps is the harmonic mean over tokens:
    (c0 - c1) / ln(c0 / c1).
    """
    if first <= 0 or last <= 0:
        raise ValueError("commit lengths must be positive")
    return first if math.isclose(first, last) else (first - last) / math.log(first / last)


def decode_ms(
    step_ms: Callable[[float], float],
    commit_length: Callable[[float], float],
    prompt_tokens: float,
    output_tokens: float,
) -> float:
    """Decode wall time of one request in ms: the integral over output position n of s(P + n) / c(n)."""
    total, _ = integrate.quad(
        lambda n: step_ms(prompt_tokens + n) / commit_length(n), 0.0, float(output_tokens), limit=200
    )
    return float(total)


def ramp(first: float, last: float, output_tokens: float) -> Callable[[float], float]:
    """Commit length against output position: linear from `first` to `last` over `output_tokens`, then flat."""

    def at(position: float) -> float:
        share = min(max(position / output_tokens, 0.0), 1.0)
        return first + (last - first) * share

    return at


@dataclass(frozen=True)
class RequestLine:
    """Tokens against wall time through two requests: `tok_s` slope, `intercept_s` time at zero tokens."""

    tok_s: float
    intercept_s: float


def two_request_line(tokens_a: float, tok_s_a: float, tokens_b: float, tok_s_b: float) -> RequestLine:
    """Line through two requests of different length. A negative intercept cannot be a time to first token:
    it shows that the rate falls along the run."""
    seconds_a, seconds_b = tokens_a / tok_s_a, tokens_b / tok_s_b
    slope = (tokens_b - tokens_a) / (seconds_b - seconds_a)
    return RequestLine(tok_s=slope, intercept_s=seconds_a - tokens_a / slope)


def burst_bias(step_full_ms: float, step_window_ms: float, commit_window: float, commit_full: float) -> float:
    """How much a short window reads above the full run on the same prompt: [S_full/S_win] x [C_win/C_full]."""
    return (step_full_ms / step_window_ms) * (commit_window / commit_full)
