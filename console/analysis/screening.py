"""Which requests of a run count, and what makes a whole run void (measurement.md 2.3, 8 and 12).

A request is left out for a cause that was seen beside it, never for its value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from console.analysis.verdicts import Caution

Row = Mapping[str, Any]

DEGENERATE_BIGRAMS = 0.25
"""Below this ratio of distinct pairs an output is a loop: the fastest arm of any speculative benchmark."""
ONE_TOKEN_SHARE = 0.5
"""One token that makes up more than this of an output: a loop of its own. JSON and lists have up to a third."""
LOOP_SHARE = 0.5
"""An output whose second half repeats itself at a short distance for more than this share is a loop."""
WARM_SHARE = 0.02
"""A prompt with more of its tokens cached than this was not cold."""
TEMPLATE_TOKENS = 32
"""So many may be cached all the same: the chat template's own head is the same in every prompt."""
COUNT_GAP = 0.01
"""Own token count and the engine's usage may differ by this share."""
OFF_COMMIT = 1.0005
"""A commit length at or below this means that no drafted token was kept at all."""
OFF_EVIDENCE = math.log(1e6)
"""Requests that kept no drafted token are no accident where less than one in a million such runs would end like that."""
TEXTS_DIFFER = 3.0
"""How unlike answers to the same kind of text are: kept tokens of one answer scatter as a gamma of this shape around the
kind's rate (1: as its mean; without end: all alike). On the tiny model 3 answers in 500 keep nothing of 10 to 14 expected."""

_CAUSES = {
    "degenerate_output": "degenerate output (a repetition loop)",
    "warm_cache": "warm prefix cache",
    "contention": "another client's request ran beside it",
}
_VOID_WORDS = {
    "no_requests": "the run made no measured request",
    "token_count": "tokens counted by the playbook and by the engine differ by more than 1 %",
    "speculation_off": "speculation switched itself off during the run",
    "throttled_arm": "one arm was throttled and the other was not",
    "degenerate_output": "{out} of {all} outputs are repetition loops: their speed says nothing",
    "warm_cache": "{out} of {all} prompts were in the prefix cache: the time to their first token says nothing",
    "contention": "{out} of {all} requests had another client's request beside them",
}


def screen(rows: Sequence[Row]) -> tuple[list[Row], list[Caution]]:
    """Requests that count, and why the others do not."""
    kept = [row for row in rows if exclusion(row) is None]
    causes = Counter(cause for cause in map(exclusion, rows) if cause is not None)
    return kept, [
        Caution("excluded", f"{count} of {len(rows)} requests left out: {_CAUSES.get(cause, cause)}")
        for cause, count in causes.items()
    ]


def exclusion(row: Row) -> str | None:
    """Why a request does not count: a code of this module, or the playbook's own words; None: it counts."""
    if row.get("excluded"):
        return str(row["excluded"])
    if is_degenerate(row):
        return "degenerate_output"
    cached, prompt = row.get("cached"), row.get("P")
    if cached and prompt and cached > max(WARM_SHARE * prompt, TEMPLATE_TOKENS):
        return "warm_cache"
    return None


def is_degenerate(row: Row) -> bool:
    """Whether an output repeats itself, by any of three signs."""
    distinct, top, loop = row.get("distinct2"), row.get("top1"), row.get("loop")
    return bool(
        (distinct is not None and distinct < DEGENERATE_BIGRAMS)
        or (top is not None and top > ONE_TOKEN_SHARE)
        or (loop is not None and loop > LOOP_SHARE)
    )


def void_reason(rows: Sequence[Row], kept: Sequence[Row]) -> str | None:
    """The code of what makes a run count for nothing; None where it counts."""
    if not rows:
        return "no_requests"
    if any(_miscounted(row) for row in rows):
        return "token_count"
    if speculation_went_off(rows):
        return "speculation_off"
    if len(kept) * 2 < len(rows) or not kept:
        commonest = Counter(cause for cause in map(exclusion, rows) if cause is not None).most_common(1)
        return commonest[0][0] if commonest and commonest[0][0] in _CAUSES else "contaminated"
    return None


def void_words(void: str, rows: Sequence[Row], kept: Sequence[Row]) -> str:
    """One sentence about a void run."""
    words = _VOID_WORDS.get(void, "only {kept} of {all} requests are free of other influences")
    return words.format(out=len(rows) - len(kept), kept=len(kept), all=len(rows))


def _miscounted(row: Row) -> bool:
    own, usage = row.get("N"), row.get("N_usage")
    # The engine's usage counts the token that prefill gave; our N does not.
    return bool(own and usage and min(abs(usage - own), abs(usage - own - 1)) > max(COUNT_GAP * usage, 1e-9))


def speculation_went_off(rows: Sequence[Row]) -> bool:
    """Whether requests that drafted kept nothing from some point on, where the same work had kept something before: a
    switch, not a hard text.

    A drafter that is never right keeps nothing from the start, and one that is never right on a kind of text or beyond a
    context keeps nothing there: those are other findings, even where such requests happen to come last.
    """
    drafted = [row for row in rows if row.get("steps") and row.get("N") and row.get("arm") != "off"]
    off = [row["N"] / row["steps"] <= OFF_COMMIT for row in drafted]
    if not any(off) or all(off):
        return False
    first = len(off) - off[::-1].index(False)  # behind the last request that kept anything
    kept, steps = Counter[Any](), Counter[Any]()
    for row in drafted[:first]:
        kept[_work(row)] += row["N"] - row["steps"]
        steps[_work(row)] += row["steps"]
    evidence = 0.0
    for row in drafted[first:]:
        expected = row["steps"] * kept[_work(row)] / max(steps[_work(row)], 1)
        evidence += TEXTS_DIFFER * math.log1p(expected / TEXTS_DIFFER)  # -ln of a gamma-Poisson's nought
    return evidence >= OFF_EVIDENCE


def _work(row: Row) -> tuple[Any, ...]:
    return row.get("kind"), row.get("level"), row.get("arm")
