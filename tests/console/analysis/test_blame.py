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


def scattered(rows: list[dict[str, Any]], seed: int, sd: float, factor: float = 1.0) -> list[dict[str, Any]]:
    """The requests `factor` times as long, with so much more scatter between them."""
    draw = random.Random(seed)
    stretches = [factor * math.exp(draw.gauss(0, sd)) for _ in rows]
    return [
        {**one, **{name: one[name] * stretch for name in ("decode_s", "client_decode_s")}}
        for one, stretch in zip(rows, stretches, strict=True)
    ]


def test_a_slowdown_that_is_neither_excluded_nor_sure_is_no_small_matter() -> None:
    found: Counter[str] = Counter()
    for seed in (7, 10):
        for factor in (1.10, 1.15):
            golden = scattered(measured(2 * seed, reps=3), seed + 99, 0.1)
            now = scattered(measured(2 * seed + 1, reps=3), seed, 0.1, factor)
            verdict = judged("diagnose", now, env=ENV, reference={"run_id": "golden", "rows": golden})
            found[verdict["class"]] += 1
            if "not surely one beyond 5 %" in verdict["headline"]:
                found["a change"] += 1
                assert verdict["next"] == "run it again with more repeats"
    assert set(found) <= {"inconclusive", "step_regression", "healthy", "a change"}
    assert found["a change"] >= 2


DISTURBED = {
    # Step times over planned ones, request by request, of a sound engine on a machine that others used for twenty seconds.
    ("chat", 64): (1.34, 1.20, 1.01, 1.01, 0.98, 1.01),
    ("code", 64): (1.17, 1.10, 1.03, 1.02, 1.01, 1.11),
    ("copy", 64): (1.42, 1.23, 1.05, 0.99, 1.17, 1.21),
    ("json", 64): (1.65, 1.14, 1.02, 0.98, 1.02, 1.03),
    ("math", 64): (1.47, 1.05, 0.98, 1.01, 0.98, 1.12),
    ("prose", 64): (1.58, 1.04, 1.00, 1.03, 1.04, 1.37),
    ("prose", 1000): (1.04, 1.00, 1.01),
    ("prose", 3000): (1.07, 1.02, 1.03),
}


def stretched(rows: list[dict[str, Any]], factors: dict[tuple[str, int], tuple[float, ...]]) -> list[dict[str, Any]]:
    """The requests with each cell's step times multiplied in turn; as many requests a cell as there are factors."""
    found, places = [], Counter[tuple[str, int]]()
    for one in rows:
        cell = one["kind"], one["level"]
        if places[cell] < len(factors[cell]):
            factor = factors[cell][places[cell]]
            found.append({**one, **{name: one[name] * factor for name in ("decode_s", "client_decode_s")}})
            places[cell] += 1
    return found


def test_a_box_that_others_used_for_a_while_is_not_a_slower_engine() -> None:
    for seed in range(20):
        golden = measured(2 * seed, reps=4)
        now = stretched(measured(2 * seed + 1), DISTURBED)
        found = judged("diagnose", now, env=ENV, reference={"run_id": "golden", "rows": golden})
        assert found["class"] in ("inconclusive", "healthy"), found["headline"]
        (words,) = [one["msg"] for one in found["warnings"] if one["code"] == "unsteady"]
        assert 7 <= int(words.split()[0]) <= 12 and "42 requests had steps over 15 % slower" in words
        if found["class"] == "inconclusive":
            assert "between the fastest of each kind: disturbed now and then" in found["headline"]
            assert found["next"] == "see what else runs on the box, then run it again"
    slower = {cell: tuple(1.1 * one for one in factors) for cell, factors in DISTURBED.items()}
    found = judged("diagnose", stretched(now, slower), env=ENV, reference={"run_id": "golden", "rows": golden})
    assert found["class"] == "step_regression"


def test_a_run_that_was_disturbed_is_not_one_to_pin() -> None:
    quiet, disturbed = (judged("diagnose", rows, env=ENV) for rows in (measured(1), stretched(measured(1), DISTURBED)))
    assert quiet["next"].startswith("pin it if the engine is well")
    assert not [one for one in quiet["warnings"] if one["code"] == "unsteady"]
    assert disturbed["next"] == "run it once more on a quiet box before you pin it"
    found = judged(
        "diagnose", measured(2), env=ENV, reference={"run_id": "g", "rows": stretched(measured(1), DISTURBED)}
    )
    assert [one["msg"][:18] for one in found["warnings"] if one["code"] == "unsteady"] == ["in the golden run "]


def waiting(rows: list[dict[str, Any]], share: float, stretch: float = 1.0) -> list[dict[str, Any]]:
    """The requests `stretch` times as long, with that share of their decode time spent waiting for a processor."""
    return [
        {**one, "decode_s": one["decode_s"] * stretch, "cpu_wait_s": one["decode_s"] * stretch * share} for one in rows
    ]


def test_steps_that_are_slower_by_what_the_engine_waited_for_a_processor_are_other_work_and_no_regression() -> None:
    reference = {"run_id": "golden", "rows": waiting(measured(1), 0.02)}
    crowded = judged("diagnose", waiting(measured(2), 0.25, 0.98 / 0.75), env=ENV, reference=reference)
    assert crowded["class"] == "contention"
    assert "waited for a processor in 25 % of its decode time, 2 % in the golden run" in crowded["headline"]
    both = judged("diagnose", waiting(measured(2), 0.25, 2.0), env=ENV, reference=reference)
    assert both["class"] == "step_regression"  # it waited, and is slower by far more than that
    slower = judged("diagnose", waiting(measured(2), 0.02, 1.3), env=ENV, reference=reference)
    assert slower["class"] == "step_regression"


def test_a_disturbed_run_names_the_waits_where_they_were_counted() -> None:
    reference = {"run_id": "golden", "rows": waiting(measured(2, reps=4), 0.02)}
    found = judged("diagnose", waiting(stretched(measured(1), DISTURBED), 0.3), env=ENV, reference=reference)
    assert found["class"] == "inconclusive"
    assert "disturbed now and then; the engine waited for a processor in 30 % of its decode time" in found["headline"]
