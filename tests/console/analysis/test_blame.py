"""The night key's arithmetic on simulated requests: nothing is blamed where nothing was planted, and what was is found.

Commit lengths are drawn step by step (geometric, as drafts are kept), step times with noise, in the night key's own cells.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from test_judges import judged

CELLS = [(kind, 64) for kind in ("code", "json", "math", "copy", "prose", "chat")] + [("prose", 1000), ("prose", 3000)]
ENV = {"settings": {"mode": "ddtree"}, "gpu": ["stand-in"]}


def measured(
    seed: int, *, reps: int = 6, tokens: int = 64, commit: Callable[[str], float] = lambda kind: 2.0,
    step: Callable[[int], float] = lambda level: 30 + 0.004 * level,
) -> list[dict[str, Any]]:  # fmt: skip
    """One run's requests."""
    draw = random.Random(seed)
    rows = []
    for kind, level in CELLS * reps:
        n = steps = 0
        kept = 1.0 - 1.0 / commit(kind)
        while n < tokens:
            length = 1
            while draw.random() < kept and length < 16:
                length += 1
            n, steps = n + length, steps + 1
        decode_s = steps * step(level) / 1000 * math.exp(draw.gauss(0, 0.02))
        rows.append(
            {"kind": kind, "level": level, "P": level, "N": n, "N_usage": n + 1, "steps": steps, "decode_s": decode_s,
             "client_decode_s": decode_s * 1.001, "chunks": steps + 1, "queue_s": 0.0, "distinct2": 0.9, "tok_s": n / decode_s}
        )  # fmt: skip
    return rows


def classes(runs: int, **planted: Any) -> Counter[str]:
    """What the night key says to `runs` pairs of runs, the second with something planted."""
    found: Counter[str] = Counter()
    for seed in range(runs):
        reference = {"run_id": "golden", "rows": measured(2 * seed)}
        verdict = judged("diagnose", measured(2 * seed + 1, **planted), env=ENV, reference=reference)
        found[verdict["class"]] += 1
    return found


def test_nothing_is_blamed_where_nothing_was_planted() -> None:
    found = classes(60)
    assert found["healthy"] >= 57, found
    assert set(found) <= {"healthy", "inconclusive"}, found


def test_what_was_planted_is_found() -> None:
    assert classes(25, step=lambda level: 30 + 0.012 * level) == {"step_regression": 25}
    assert classes(25, step=lambda level: (30 + 0.004 * level) * (1.6 if level >= 3000 else 1)) == {
        "step_regression": 25
    }
    assert classes(25, commit=lambda kind: 1.3 if kind == "code" else 2.0)["acceptance_regression"] >= 24
    assert classes(25, commit=lambda kind: 1.7)["acceptance_regression"] >= 24


def test_a_kind_of_text_on_which_nothing_is_kept_any_more_is_found_in_short_answers_of_a_poor_drafter() -> None:
    usual = {"code": 1.38, "json": 1.2, "math": 1.26, "copy": 1.23, "prose": 1.26, "chat": 1.21}
    found: Counter[str] = Counter()
    for seed in range(40):
        golden = measured(2 * seed, reps=4, tokens=39, commit=usual.__getitem__)
        now = measured(2 * seed + 1, reps=6, tokens=39, commit={**usual, "code": 1.0}.__getitem__)
        reference = {"run_id": "golden", "rows": golden}
        found[judged("diagnose", now, env=ENV, reference=reference)["class"]] += 1
    assert found["acceptance_regression"] >= 38, found


def test_a_change_for_the_better_is_no_alarm() -> None:
    assert classes(10, step=lambda level: 0.7 * (30 + 0.004 * level)) == {"healthy": 10}
