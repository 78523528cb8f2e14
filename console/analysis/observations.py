"""Observations: numbers about a deployment, from anywhere, checked and put on one footing (contracts.md section 6)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from console.errors import UsageError

Method = Literal["full", "burst", "step", "client"]
METHODS: tuple[Method, ...] = ("full", "burst", "step", "client")
KEYS = (
    "label",
    "prompt_tokens",
    "output_tokens",
    "tok_s",
    "steps",
    "commit_length",
    "commit_length_ci",
    "step_ms",
    "context",
    "method",
    "window",
    "bonus_included",
    "text_kind",
    "max_commit",
)
TOP_KEYS = ("observations", "compare", "model_config", "hardware")


@dataclass(frozen=True)
class Observation:
    """One measurement of one workload.

    `context` is the mean context of its steps in tokens. `commit_length` counts the bonus token; it is *stated*
    unless it was counted (`commit_counted`: tokens over steps). `commit_half_width` is the half-width of what the
    figure can mean: half a unit of its last digit for a stated one.
    """

    label: str
    method: Method
    context: float | None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    window: tuple[float, float] | None = None
    tok_s: float | None = None
    steps: float | None = None
    commit_length: float | None = None
    commit_half_width: float = 0.0
    commit_counted: bool = False
    bonus_known: bool = False
    step_ms: float | None = None
    text_kind: str | None = None
    max_commit: float | None = None


@dataclass(frozen=True)
class Observations:
    """The whole input of an explanation."""

    rows: tuple[Observation, ...]
    compare: tuple[str, str] | None
    model_config: Mapping[str, Any] | None
    hardware: Mapping[str, Any] | None

    def row(self, label: str) -> Observation:
        """The row with that label (it exists: `read_observations` has checked)."""
        return next(r for r in self.rows if r.label == label)


def half_unit(value: float | int) -> float:
    """Half a unit in the last digit a number was written with: 5 -> 0.5, 2.9 -> 0.05, 3.366 -> 0.0005."""
    if isinstance(value, int):
        return 0.5
    text = repr(float(value))
    if "e" in text or "." not in text:
        return 0.0
    return 0.5 * 10.0 ** -len(text.split(".")[1])


def read_observations(data: Any) -> Observations:
    """Check the parsed JSON of an observations file; UsageError names the row, the key and the nearest right one."""
    if not isinstance(data, Mapping):
        raise UsageError("the file must hold one JSON object", mend='start with {"observations": [...]}')
    _refuse_unknown(data, TOP_KEYS, "observations file")
    rows = data.get("observations")
    if not isinstance(rows, list) or not rows:
        raise UsageError('"observations" must be a list with at least one row', where="observations file")
    parsed = tuple(_read_row(row, index) for index, row in enumerate(rows))
    labels = [row.label for row in parsed]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"two rows are called {label!r}", where="observations", mend="give each row its own label")
    return Observations(
        rows=parsed,
        compare=_read_compare(data.get("compare"), labels),
        model_config=_mapping(data, "model_config"),
        hardware=_mapping(data, "hardware"),
    )


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{key!r} must be an object", where="observations file")
    return value


def _nearest(word: str, known: tuple[str, ...] | list[str]) -> str | None:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"known: {', '.join(known)}"


def _refuse_unknown(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            raise UsageError(f"unknown key {key!r}", where=where, mend=_nearest(str(key), known))


def _read_compare(value: Any, labels: list[str]) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(v, str) for v in value):
        raise UsageError('"compare" must be a list of two labels', where="observations file")
    for label in value:
        if label not in labels:
            raise UsageError(f"no row is called {label!r}", where="compare", mend=_nearest(label, labels))
    return value[0], value[1]


def _read_row(row: Any, index: int) -> Observation:
    if not isinstance(row, Mapping):
        raise UsageError("each observation must be an object", where=f"observation {index + 1}")
    label = row.get("label")
    where = f"observation {index + 1}" if not isinstance(label, str) or not label else f"observation {label!r}"
    _refuse_unknown(row, KEYS, where)
    if not isinstance(label, str) or not label:
        raise UsageError('"label" must be a text', where=where)
    method = row.get("method", "full")
    if method not in METHODS:
        raise UsageError(f"method {method!r} is not known", where=where, mend=_nearest(str(method), METHODS))

    prompt = _number(row, "prompt_tokens", where, least=0)
    output = _number(row, "output_tokens", where, least=0)
    window = _pair(row, "window", where)
    steps = _number(row, "steps", where, above=0)
    tok_s = _number(row, "tok_s", where, above=0)
    step_ms = _number(row, "step_ms", where, above=0)
    commit, half, counted, bonus_known = _read_commit(row, where, output, steps)
    if step_ms is None and steps is not None and output and tok_s is not None and method == "full":
        step_ms = output / tok_s / steps * 1000.0
    return Observation(
        label=label,
        method=method,
        context=_mean_context(_number(row, "context", where, least=0), prompt, output, window, method),
        prompt_tokens=prompt,
        output_tokens=output,
        window=window,
        tok_s=tok_s,
        steps=steps,
        commit_length=commit,
        commit_half_width=half,
        commit_counted=counted,
        bonus_known=bonus_known,
        step_ms=step_ms,
        text_kind=_text(row, "text_kind", where),
        max_commit=_number(row, "max_commit", where, least=1),
    )


def _read_commit(
    row: Mapping[str, Any], where: str, output: float | None, steps: float | None
) -> tuple[float | None, float, bool, bool]:
    """(commit length with its bonus token, half-width, counted from steps?, is the bonus convention known?)."""
    bonus = row.get("bonus_included")
    if bonus is not None and not isinstance(bonus, bool):
        raise UsageError("bonus_included must be true or false", where=where)
    stated = _number(row, "commit_length", where, above=0)
    interval = _pair(row, "commit_length_ci", where)
    if stated is None:
        if steps is not None and output:
            # Counted by us: tokens over steps always include the bonus.
            return output / steps, 0.0, True, True
        return None, 0.0, False, True
    extra = 1.0 if bonus is False else 0.0
    if stated + extra < 1.0:
        raise UsageError(
            f"commit_length {stated:g} is below 1, but every step keeps at least the bonus token",
            where=where,
            mend='set "bonus_included": false if the figure leaves the bonus out',
        )
    half = (interval[1] - interval[0]) / 2.0 if interval else half_unit(row["commit_length"])
    return stated + extra, half, steps is not None or interval is not None, bonus is not None


def _mean_context(
    context: float | None,
    prompt: float | None,
    output: float | None,
    window: tuple[float, float] | None,
    method: Method,
) -> float | None:
    """Mean context of the steps: P + N/2 for a whole run, P + the middle of the window for a burst."""
    if context is not None:
        return context
    if prompt is None:
        return None
    if window is not None:
        return prompt + (window[0] + window[1]) / 2.0
    return prompt if method == "step" or output is None else prompt + output / 2.0


def _number(
    row: Mapping[str, Any], key: str, where: str, *, least: float | None = None, above: float | None = None
) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{key} must be a number, not {value!r}", where=where)
    if least is not None and value < least:
        raise UsageError(f"{key} is {value:g}, but must be at least {least:g}", where=where)
    if above is not None and value <= above:
        raise UsageError(f"{key} is {value:g}, but must be above {above:g}", where=where)
    return float(value)


def _pair(row: Mapping[str, Any], key: str, where: str) -> tuple[float, float] | None:
    value = row.get(key)
    if value is None:
        return None
    good = isinstance(value, list) and len(value) == 2 and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in value
    )  # fmt: skip
    if not good or not value[0] < value[1]:
        raise UsageError(f"{key} must be [low, high] with low < high", where=where)
    return float(value[0]), float(value[1])


def _text(row: Mapping[str, Any], key: str, where: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{key} must be a text", where=where)
    return value
